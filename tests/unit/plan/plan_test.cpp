// Plans are legal whatever the shape, the fleet and the scheme; errors are told.
#include "cleave/plan/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/plan/bound.hpp"
#include "fleets.hpp"
#include "order.hpp"

namespace cleave::plan {
namespace {

std::vector<Partition> partitions() {
  std::vector<Partition> all;
  for (const auto& [partition, help] : all_partitions()) all.push_back(partition);
  return all;
}

void expect_plan(const Work& work, const std::vector<DeviceState>& devices, const PlanOptions& options) {
  const OperationPlan plan = plan_operation(work, devices, options);
  expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
  EXPECT_GT(plan.busy.value(), 0);
  EXPECT_GE(plan.time, plan.busy);
  EXPECT_GE(plan.time.value(), plan.lower_bound.value() * (1 - 1e-5));
}

TEST(Plan, LegalForManyShapes) {
  const std::vector<std::vector<DeviceState>> fleets{cleave_fleet(1), cleave_fleet(2), cleave_fleet(8),
                                                     cleave_fleet(40)};
  const GemmShape shapes[] = {{1, 1, 1},      {1, 500, 64},     {500, 1, 64},       {3, 5, 1},
                              {5, 7, 4000},   {512, 384, 128},  {4096, 4096, 4096}, {256, 256, 100000},
                              {1, 1, 100000}, {131072, 512, 1}, {769, 767, 769}};
  for (const auto& devices : fleets) {
    for (const GemmShape& s : shapes) {
      for (const DType wire : {DType::f32, DType::f16}) {
        for (const Partition scheme : partitions()) {
          SCOPED_TRACE(testing::Message()
                       << s.m << "x" << s.n << "x" << s.k << " on " << devices.size() << " scheme " << scheme.name());
          expect_plan(gemm_work(s.m, s.n, s.k, wire), devices, {.partition = scheme, .server = {}});
        }
      }
    }
  }
}

// Alone, results leave earlier, and links are taken hardly longer.
TEST(Plan, AnOperationAloneEndsEarlier) {
  const std::vector<DeviceState> devices = cleave_fleet(256);
  for (const GemmShape& s :
       {GemmShape{9216, 36864, 131072}, GemmShape{8192, 8192, 65536}, GemmShape{131072, 5120, 5120}}) {
    const Work work = gemm_work(s.m, s.n, s.k);
    const OperationPlan step = plan_operation(work, devices, {.objective = Objective::step, .server = {}});
    const OperationPlan alone = plan_operation(work, devices, {.objective = Objective::alone, .server = {}});
    expect_legal(work, {whole_piece(work)}, alone.tasklets, devices);
    EXPECT_LT(alone.time, 0.97 * step.time) << s.m << " x " << s.n << " x " << s.k;
    EXPECT_LT(alone.busy, 1.05 * step.busy) << s.m << " x " << s.n << " x " << s.k;
  }
}

TEST(Plan, LegalForAttention) {
  for (const WorkKind kind : {WorkKind::attention_forward, WorkKind::attention_backward}) {
    for (const std::int64_t batch : {1, 3, 50}) {
      const Work work = attention_work(kind, {.batch = batch, .seq = 64, .n_head = 8, .n_kv_head = 2, .head_dim = 32});
      for (const Partition scheme : partitions())
        expect_plan(work, cleave_fleet(12), {.partition = scheme, .server = {}});
    }
  }
}

// Each of these could cover 0.65 of a plane: not 1.3 planes two by two, but parts of it that are cut along any side.
TEST(Plan, FewDevicesThatFitNoSlabs) {
  const Work work = gemm_work(5120, 5120, 131072);
  const std::vector<DeviceState> devices = cleave_fleet(8);
  const OperationPlan plan = plan_operation(work, devices, {.objective = Objective::alone, .server = {}});
  expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
  EXPECT_LT(plan.busy, 1.22 * plan.lower_bound);
}

// Where the server's interface sends no faster, uplinks are taken for a little less than all of the time.
TEST(Plan, AnOperationAloneBehindTheInterface) {
  const PlanOptions options{.objective = Objective::alone, .server = {}};
  for (const GemmShape& s : {GemmShape{131072, 5120, 5120}, GemmShape{131072, 20480, 5120}}) {
    const Work work = gemm_work(s.m, s.n, s.k);
    const OperationPlan plan = plan_operation(work, cleave_fleet(1024), options);
    EXPECT_LT(plan.busy, 1.03 * plan.lower_bound) << s.n;
    EXPECT_LT(plan.time, 1.25 * plan.lower_bound) << s.n;
  }
}

// Seven K blocks in halves take the interface longer in than out; some of the rows at the whole depth even it out.
TEST(Plan, WholeDepthsAmongSlabsWhereLinksAreSymmetric) {
  const std::vector<DeviceState> devices = fleet_of({{.name = "edge",
                                                      .count = 2048,
                                                      .compute_flops = {5e12, 7e12},
                                                      .memory_bytes = {1e9, 3e9},
                                                      .downlink_bytes = {10e6, 100e6},
                                                      .uplink_bytes = {10e6, 100e6},
                                                      .latency_s = {0, 0}}});
  const Work work = gemm_work(131072, 5120, 5120);
  const OperationPlan plan = plan_operation(work, devices, {});
  expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
  const auto whole = [&](const TaskletPlan& t) { return t.box.k() == work.gemm.k; };
  EXPECT_TRUE(std::any_of(plan.tasklets.begin(), plan.tasklets.end(), whole));
  EXPECT_FALSE(std::all_of(plan.tasklets.begin(), plan.tasklets.end(), whole));
  EXPECT_LT(plan.busy, 1.12 * plan.lower_bound);
}

// A device that cannot hold its share at once gets it in several tasklets.
TEST(Plan, MemoryIsRespected) {
  std::vector<DeviceState> devices = cleave_fleet(6);
  for (DeviceState& d : devices) d.profile.memory = Bytes(200'000);
  for (const Partition scheme : partitions()) {
    expect_plan(gemm_work(700, 900, 2048), devices, {.partition = scheme, .server = {}});
  }
}

// Where memory asks for several tasklets to a device, they still fit each other.
TEST(Plan, LittleMemoryIsUsedInRounds) {
  const Work work = gemm_work(16384, 5120, 5120);
  std::vector<DeviceState> devices = cleave_fleet(8);
  for (const std::int64_t memory : {6'000'000, 400'000}) {
    for (DeviceState& d : devices) d.profile.memory = Bytes(memory);
    const OperationPlan plan = plan_operation(work, devices, {});
    expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
    EXPECT_GT(std::ssize(plan.tasklets), plan.devices_used);
    EXPECT_LE(plan.busy.value(), 2.5 * plan.lower_bound.value()) << memory;
  }
}

TEST(Plan, SlowDevicesGetLittleAndUselessOnesNothing) {
  std::vector<DeviceState> devices = cleave_fleet(4);
  devices[1].profile.latency = Seconds(1e6);
  devices[2].profile.uplink = BytesPerSecond(0);
  devices[3].profile.memory = Bytes(10);
  const OperationPlan plan = plan_operation(gemm_work(512, 512, 512), devices, {});
  for (const TaskletPlan& t : plan.tasklets) EXPECT_EQ(t.device, DeviceId(0));
  EXPECT_EQ(plan.devices_used, 1);
}

TEST(Plan, SaysWhyItCannot) {
  EXPECT_THROW(static_cast<void>(plan_operation(gemm_work(8, 8, 8), {}, {})), InputError);
  const std::vector<DeviceState> tiny{device(0, 1e9, 100, 1e6, 1e6)};
  try {
    static_cast<void>(plan_operation(gemm_work(8, 8, 768), tiny, {}));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("100 B"), std::string::npos) << error.what();
  }
  const std::vector<DeviceState> dead{device(0, 0, 100000, 1e6, 1e6)};
  EXPECT_THROW(static_cast<void>(plan_operation(gemm_work(8, 8, 8), dead, {})), InputError);
  EXPECT_EQ(lower_bound(gemm_work(8, 8, 8), dead, {}).value(), std::numeric_limits<double>::infinity());
}

TEST(Replan, CoversWhatWasLostUnderLoad) {
  const Work work = gemm_work(4096, 2048, 3000);
  std::vector<DeviceState> devices = cleave_fleet(30);
  const OperationPlan plan = plan_operation(work, devices, {});
  std::vector<TaskletPlan> lost;
  for (const TaskletPlan& t : plan.tasklets) {
    if (t.device.value < 3) lost.push_back(t);
  }
  ASSERT_FALSE(lost.empty());
  devices.erase(devices.begin(), devices.begin() + 3);
  devices[5].down_busy = Seconds(1e4);
  const std::vector<TaskletPlan> again = replan(work, lost, devices, {});
  expect_legal(work, lost, again, devices);
  for (const TaskletPlan& t : again) EXPECT_NE(t.device, devices[5].profile.id);
}

// A device that is busy for much longer than a piece takes, and has room for a part of it at a time: nothing that is
// cut by its share of the memory ends up whole.
TEST(Replan, CoversWhatWasLostHoweverBusyDevicesAre) {
  const Work work = gemm_work(128, 128, 1600, DType::f32);
  std::vector<DeviceState> devices{device(19, 49104307537.498871, 256'000, 89133506.698828593, 6099351.0330197429)};
  devices[0].profile.latency = Seconds(0.001);
  devices[0].down_busy = devices[0].compute_busy = devices[0].up_busy = Seconds(3.190454218731654);
  TaskletPlan piece;
  piece.box = {32, 64, 0, 106, 0, 1600};
  const std::vector<TaskletPlan> lost{piece};
  expect_legal(work, lost, replan(work, lost, devices, {}), devices);

  const Random random(1, Purpose::test, 3);
  std::uint64_t next = 0;
  const auto draw = [&](double low, double high) { return low * std::pow(high / low, random.uniform(next++)); };
  for (int trial = 0; trial < 3000; ++trial) {
    devices.clear();
    const auto count = static_cast<std::int64_t>(draw(1, 5));
    for (std::int64_t d = 0; d < count; ++d) {
      devices.push_back(
          device(d, draw(1e8, 1e13), static_cast<std::int64_t>(draw(3e4, 1e8)), draw(1e5, 1e9), draw(1e5, 1e9)));
      devices.back().down_busy = Seconds(draw(1e-9, 1e6));
      devices.back().compute_busy = Seconds(draw(1e-9, 1e6));
      devices.back().up_busy = Seconds(draw(1e-9, 1e6));
    }
    const auto m = static_cast<std::int64_t>(draw(1, 300)), n = static_cast<std::int64_t>(draw(1, 300));
    const Work some =
        gemm_work(m, n, static_cast<std::int64_t>(draw(1, 4000)), trial % 2 == 0 ? DType::f32 : DType::f16);
    std::vector<TaskletPlan> pieces{whole_piece(some)};
    if (n > 1) {
      pieces.push_back(pieces.front());
      pieces[0].box.n1 = pieces[1].box.n0 = n / 2;
    }
    SCOPED_TRACE(trial);
    expect_legal(some, pieces, replan(some, pieces, devices, {}), devices);
    if (HasFailure()) return;
  }
}

// Five blocks that cannot be cut, lost with others: two devices alike take turns, whichever of their resources they
// take longest.
TEST(Replan, WhoHasTakenABlockIsBusyWithIt) {
  const Work work =
      attention_work(WorkKind::attention_forward, {.batch = 1, .seq = 64, .n_head = 8, .n_kv_head = 8, .head_dim = 32});
  std::vector<TaskletPlan> lost;
  for (std::int64_t pair = 0; pair < 5; ++pair) {
    TaskletPlan piece = whole_piece(work);
    piece.pairs = {pair, pair + 1};
    lost.push_back(piece);
  }
  constexpr double kSlow = 1e4, kQuick = 1e14;
  for (const auto& [compute, down, up] :
       {std::array{kSlow, kQuick, kQuick}, {kQuick, kSlow, kQuick}, {kQuick, kQuick, kSlow}}) {
    std::map<std::int64_t, int> count;
    for (const TaskletPlan& t :
         replan(work, lost,
                std::vector{device(0, compute, 1'000'000, down, up), device(1, compute, 1'000'000, down, up)}, {}))
      ++count[t.device.value];
    EXPECT_EQ(std::abs(count[0] - count[1]), 1) << compute << " " << down << " " << up;
  }
}

// One device that holds a part of its piece at a time: a tasklet's time counts those before it.
TEST(Plan, TaskletsOfADeviceFollowEachOther) {
  const Work work = gemm_work(400, 300, 500);
  constexpr double kSlow = 1e4, kQuick = 1e14;
  for (const auto& [compute, down, up] :
       {std::array{kSlow, kQuick, kQuick}, {kQuick, kSlow, kQuick}, {kQuick, kQuick, kSlow}}) {
    const std::vector<DeviceState> one{device(0, compute, 60'000, down, up)};
    const OperationPlan plan = plan_operation(work, one, {.partition = Partition::equal, .server = {}});
    ASSERT_GT(plan.tasklets.size(), 3U);
    double taken = 0;
    for (const TaskletPlan& t : plan.tasklets) {
      taken += std::max({volume_of(work, t).flops.value() / compute, static_cast<double>(t.bytes_down.value()) / down,
                         static_cast<double>(t.bytes_up.value()) / up});
      EXPECT_GE(t.time.value(), taken * (1 - 1e-9));
    }
  }
}

// A plan is busy for as long as its busiest resource, the server's interface among them, and names it.
TEST(Plan, NamesItsBusiestResource) {
  const Work work = gemm_work(512, 384, 1000);
  const auto plan_with = [&](const DeviceState& one, double out, double in) {
    fleet::ServerProfile server;
    server.nic_out = BytesPerSecond(out);
    server.nic_in = BytesPerSecond(in);
    std::vector<DeviceState> devices{one, one};
    devices[1].profile.id = DeviceId(1);
    return plan_operation(work, devices, {.partition = Partition::equal, .server = server});
  };
  constexpr double kSlow = 1e5, kQuick = 1e12;
  const DeviceState quick = device(0, kQuick, 1'000'000'000, kQuick, kQuick);
  const OperationPlan out = plan_with(quick, kSlow, kQuick), in = plan_with(quick, kQuick, kSlow);
  EXPECT_EQ(out.bottleneck, Bottleneck::server_out);
  EXPECT_DOUBLE_EQ(out.busy.value(), static_cast<double>(out.bytes_down.value()) / kSlow);
  EXPECT_EQ(in.bottleneck, Bottleneck::server_in);
  EXPECT_DOUBLE_EQ(in.busy.value(), static_cast<double>(in.bytes_up.value()) / kSlow);
  const OperationPlan down = plan_with(device(0, kQuick, 1'000'000'000, kSlow, kQuick), kQuick, kQuick);
  EXPECT_EQ(down.bottleneck, Bottleneck::downlink);
  EXPECT_DOUBLE_EQ(down.busy.value(), static_cast<double>(down.tasklets[0].bytes_down.value()) / kSlow);
  const OperationPlan up = plan_with(device(0, kQuick, 1'000'000'000, kQuick, kSlow), kQuick, kQuick);
  EXPECT_EQ(up.bottleneck, Bottleneck::uplink);
  EXPECT_DOUBLE_EQ(up.busy.value(), static_cast<double>(up.tasklets[0].bytes_up.value()) / kSlow);
  const OperationPlan slow = plan_with(device(0, kSlow, 1'000'000'000, kQuick, kQuick), kQuick, kQuick);
  EXPECT_EQ(slow.bottleneck, Bottleneck::compute);
  EXPECT_DOUBLE_EQ(slow.busy.value(), 512.0 * 384 * 1000 / kSlow);
}

// Panels below the limit that together reach it, in either direction, are no single message.
TEST(Plan, ASingleMessageHasItsLimitEachWay) {
  const Bytes half = kMaxMessage / 2;
  for (const bool upwards : {false, true}) {
    std::vector<Panel> panels(2);
    for (Panel& panel : panels) (upwards ? panel.up : panel.down) = half;
    EXPECT_TRUE(messages_fit(panels, {.server = {}, .single_message = false})) << upwards;
    EXPECT_FALSE(messages_fit(panels, {.server = {}, .single_message = true})) << upwards;
    (upwards ? panels[0].up : panels[0].down) -= Bytes(1);
    EXPECT_TRUE(messages_fit(panels, {.server = {}, .single_message = true})) << upwards;
    (upwards ? panels[0].up : panels[0].down) = kMaxMessage;
    EXPECT_FALSE(messages_fit(panels, {.server = {}, .single_message = false})) << upwards;
  }
}

}  // namespace
}  // namespace cleave::plan
