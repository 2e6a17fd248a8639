// The cost model: bytes, memory and time of single tasklets, among them the case that docs/cost_model.md solves by
// hand.
#include "cleave/plan/cost.hpp"

#include <gtest/gtest.h>

#include "fleets.hpp"

namespace cleave::plan {
namespace {

TaskletPlan boxed(GemmBox box, PanelOrder order = PanelOrder::whole, std::int64_t panels = 1) {
  TaskletPlan t;
  t.box = box;
  t.order = order;
  t.panels = panels;
  return t;
}

// One K block: no exponents, and the result travels in the wire type.
TEST(Cost, BytesOfASingleBlock) {
  const Work work = gemm_work(100, 60, 768, DType::f32);
  const Volume v = volume_of(work, boxed({0, 10, 0, 20, 0, 768}));
  EXPECT_EQ(v.down.value(), (10 + 20) * 768 * 4);
  EXPECT_EQ(v.up.value(), 10 * 20 * 4);
  EXPECT_EQ(v.flops.value(), 2.0 * 10 * 20 * 768);
}

// Several K blocks: two bytes more per row and column; a run of blocks returns 64-bit sums for fp32, 32-bit for fp16.
TEST(Cost, BytesOfARunOfBlocks) {
  const Work wide = gemm_work(100, 60, 2000, DType::f32), narrow = gemm_work(100, 60, 2000, DType::f16);
  EXPECT_EQ(volume_of(wide, boxed({0, 10, 0, 20, 0, 768})).down.value(), 30 * (768 * 4 + 2));
  EXPECT_EQ(volume_of(wide, boxed({0, 10, 0, 20, 0, 768})).up.value(), 200 * 8);
  EXPECT_EQ(volume_of(wide, boxed({0, 10, 0, 20, 0, 2000})).up.value(), 200 * 4);
  EXPECT_EQ(volume_of(narrow, boxed({0, 10, 0, 20, 1536, 2000})).down.value(), 30 * (464 * 2 + 2));
  EXPECT_EQ(volume_of(narrow, boxed({0, 10, 0, 20, 1536, 2000})).up.value(), 200 * 4);
  EXPECT_EQ(volume_of(narrow, boxed({0, 10, 0, 20, 0, 2000})).up.value(), 200 * 2);
}

TEST(Cost, BytesOfAttention) {
  const AttentionShape shape{.batch = 2, .seq = 16, .n_head = 8, .n_kv_head = 2, .head_dim = 4};
  TaskletPlan t;
  t.pairs = {1, 3};
  const Volume forward = volume_of(attention_work(WorkKind::attention_forward, shape), t);
  EXPECT_EQ(forward.down.value(), 2 * (4 + 2) * 16 * 4 * 2);
  EXPECT_EQ(forward.up.value(), 2 * 4 * 16 * 4 * 2);
  EXPECT_EQ(forward.flops.value(), 2 * 4 * 2.0 * 2 * 4 * 16 * 17 / 2);
  const Volume backward = volume_of(attention_work(WorkKind::attention_backward, shape), t);
  EXPECT_EQ(backward.down.value(), 2 * (2 * 4 + 2) * 16 * 4 * 2);
  EXPECT_EQ(backward.up.value(), 2 * (4 + 2) * 16 * 4 * 2);
  EXPECT_EQ(backward.flops.value(), 2.5 * forward.flops.value());
}

// Whatever the order and the number of panels, the sums are the tasklet's.
TEST(Cost, PanelsAddUp) {
  const Work work = gemm_work(101, 67, 5000);
  for (const PanelOrder order : {PanelOrder::wavefront, PanelOrder::row_resident, PanelOrder::result_resident}) {
    for (const std::int64_t count : {1, 2, 3, 7}) {
      const TaskletPlan t = boxed({3, 101, 5, 67, 0, 5000}, order, count);
      const std::vector<Panel> panels = panels_of(work, t);
      ASSERT_EQ(std::ssize(panels), count);
      std::int64_t down = 0, up = 0, messages_down = 0, messages_up = 0;
      double flops = 0;
      for (const Panel& panel : panels) {
        down += panel.down.value();
        up += panel.up.value();
        flops += panel.flops.value();
        messages_down += panel.down.value() > 0;
        messages_up += panel.up.value() > 0;
      }
      const Volume v = volume_of(work, t);
      EXPECT_EQ(down, v.down.value() + messages_down * kMessageHeader.value());
      EXPECT_EQ(up, v.up.value() + messages_up * kMessageHeader.value());
      EXPECT_DOUBLE_EQ(flops, v.flops.value());
      const Panel last = panel_sequence(work, t).last();
      EXPECT_EQ(last.up, panels.back().up);
      EXPECT_EQ(last.flops.value(), order == PanelOrder::result_resident ? 0 : panels.back().flops.value());
    }
  }
}

TEST(Cost, StreamOfTwoPanels) {
  const DeviceState d = device(0, 10, 1000, 2, 1, 0.5);
  const std::vector<Panel> panels{{Bytes(4), Flops(10), Bytes(3)}, {Bytes(4), Flops(10), Bytes(3)}};
  // down 2, 4; computed 2.5 + 1 = 3.5, 4.5 + 1 = 5.5; up 3.5 + 3 = 6.5, 9.5; + 0.5
  EXPECT_DOUBLE_EQ(stream_time(panels, d, {}).value(), 10.0);
  fleet::ServerProfile slow;
  slow.nic_in = BytesPerSecond(0.5);
  // up 3.5 + 6 = 9.5, 15.5; + 0.5
  EXPECT_DOUBLE_EQ(stream_time(panels, d, slow).value(), 16.0);
  DeviceState loaded = d;
  loaded.up_busy = Seconds(8);
  EXPECT_DOUBLE_EQ(stream_time(panels, loaded, {}).value(), 8 + 6 + 0.5);
}

TEST(Cost, TailsOfTwoPanels) {
  const DeviceState d = device(0, 10, 1000, 2, 1, 0.5);
  std::vector<timing::Tail> tails;
  timing::tails_of(std::vector<Panel>{{Bytes(4), Flops(10), Bytes(3)}, {Bytes(4), Flops(10), Bytes(3)}}, d.profile,
                   tails);
  ASSERT_EQ(tails.size(), 2U);
  EXPECT_DOUBLE_EQ(tails[1].up.value(), 3);
  EXPECT_DOUBLE_EQ(tails[1].down.value(), 2 + 1 + 1 + 3);  // down, two latencies, computed, up
  EXPECT_DOUBLE_EQ(tails[0].up.value(), 6);
  // Alone, the tail of the first panel is the stream's time.
  EXPECT_DOUBLE_EQ(tails[0].down.value(), 10);
}

TEST(Cost, ResidentBytes) {
  const Work work = gemm_work(100, 100, 4 * kBlockK);  // 4 K blocks, fp16: sums of 4 bytes
  const GemmBox box{0, 40, 0, 60, 0, 4 * kBlockK};
  const std::int64_t strip = 4 * kBlockK * 2 + 2;
  EXPECT_EQ(resident_bytes(work, boxed(box)).value(), 100 * strip + 40 * 60 * 4);
  EXPECT_EQ(resident_bytes(work, boxed(box, PanelOrder::row_resident, 6)).value(), (40 + 20) * strip + 40 * 20 * 4);
  EXPECT_EQ(resident_bytes(work, boxed(box, PanelOrder::result_resident, 7)).value(),
            100 * (2 * kBlockK * 2 + 2) + 40 * 60 * 4);
}

// Of several instances two are in memory: the one that is computed and the one that travels.
TEST(Cost, TwoInstancesAreInMemory) {
  Work work = gemm_work(30, 20, 768, DType::f32);
  const Bytes one = resident_bytes(work, boxed({0, 30, 0, 20, 0, 768}));
  EXPECT_EQ(one.value(), (30 + 20) * 768 * 4 + 30 * 20 * 4);
  work.instances = 2;
  EXPECT_EQ(resident_bytes(work, boxed({0, 30, 0, 20, 0, 768})), one * 2);
  work.instances = 9;
  EXPECT_EQ(resident_bytes(work, boxed({0, 30, 0, 20, 0, 768})), one * 2);
}

// A kernel takes as long as its FLOP or its traffic, whichever is longer.
TEST(Cost, KernelsComputeOrMoveWhicheverIsLonger) {
  model::Operation kernel;
  kernel.kind = model::OpKind::gelu;
  kernel.in = {{TensorId(0), 0, 10, 0, 20}};
  kernel.out = {{TensorId(1), 0, 10, 0, 20}};
  const double flops = model::flops_of(kernel).value();
  ASSERT_GT(flops, 0);
  fleet::ServerProfile server;
  server.compute = FlopsPerSecond(1e12);
  server.memory_bandwidth = BytesPerSecond(100);
  EXPECT_DOUBLE_EQ(kernel_time(kernel, server).value(), 10 * 20 * 8 / 100.0);
  server.compute = FlopsPerSecond(1);
  server.memory_bandwidth = BytesPerSecond(1e12);
  EXPECT_DOUBLE_EQ(kernel_time(kernel, server).value(), flops);
}

}  // namespace
}  // namespace cleave::plan
