// Lower bounds of operations of which one thing takes all the time, so that they can be told by hand.
#include "cleave/plan/bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cleave/model/family.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "fleets.hpp"
#include "stages/tile_rounds.hpp"
#include "unit/small_model.hpp"

namespace cleave::plan {
namespace {

constexpr double kQuick = 1e15, kSlow = 1e5, kLatency = 0.5, kNear = 2e-5;
constexpr double kHeader = static_cast<double>(kMessageHeader.value());
constexpr std::int64_t kRoom = 1'000'000'000'000;

double bound_of(const Work& work, const std::vector<DeviceState>& devices, const fleet::ServerProfile& server = {}) {
  return lower_bound(work, devices, {.server = server}).value();
}

// One device does all of a square block: its operands with a header, its FLOP or its result with a header, and a
// latency each way.
TEST(Bound, OneDeviceTakesAsLongAsItsBusiestResource) {
  const Work work = gemm_work(20, 20, 500);
  const double down = 40.0 * 500 * 2, flops = 2.0 * 20 * 20 * 500, up = 20.0 * 20 * 2;
  const auto expect = [&](const DeviceState& one, double seconds) {
    EXPECT_NEAR(bound_of(work, {one}), seconds + 2 * kLatency, kNear * seconds);
  };
  expect(device(0, kQuick, kRoom, kSlow, kQuick, kLatency), (down + kHeader) / kSlow);
  expect(device(0, kSlow, kRoom, kQuick, kQuick, kLatency), flops / kSlow);
  expect(device(0, kQuick, kRoom, kQuick, kSlow / 1000, kLatency), (up + kHeader) / (kSlow / 1000));
}

TEST(Bound, InstancesComeOneAfterAnother) {
  Work work = gemm_work(20, 20, 500);
  work.instances = 7;
  const double down = 40.0 * 500 * 2;
  EXPECT_NEAR(bound_of(work, {device(0, kQuick, kRoom, kSlow, kQuick)}), 7 * down / kSlow, kNear * 7 * down / kSlow);
}

// Five pairs on two devices alike: one of them has three.
TEST(Bound, PairsAreWhole) {
  const Work work =
      attention_work(WorkKind::attention_forward, {.batch = 1, .seq = 16, .n_head = 5, .n_kv_head = 5, .head_dim = 4});
  const double pair = 3.0 * 16 * 4 * 2;
  EXPECT_NEAR(bound_of(work, {device(0, kQuick, kRoom, kSlow, kQuick, kLatency),
                              device(1, kQuick, kRoom, kSlow, kQuick, kLatency)}),
              (3 * pair + kHeader) / kSlow + 2 * kLatency, kNear);
}

// However quick the devices, every operand leaves the server once and every result comes back once.
TEST(Bound, TheServersInterfaceCarriesEverythingOnce) {
  const Work work =
      attention_work(WorkKind::attention_forward, {.batch = 4, .seq = 16, .n_head = 5, .n_kv_head = 5, .head_dim = 4});
  const Volume whole = volume_of(work);
  std::vector<DeviceState> devices;
  for (std::int64_t id = 0; id < 20; ++id) devices.push_back(device(id, kQuick, kRoom, kQuick, kQuick, kLatency));
  fleet::ServerProfile out, in;
  out.nic_out = in.nic_in = BytesPerSecond(100);
  EXPECT_DOUBLE_EQ(bound_of(work, devices, out), 2 * kLatency + static_cast<double>(whole.down.value()) / 100);
  EXPECT_DOUBLE_EQ(bound_of(work, devices, in), 2 * kLatency + static_cast<double>(whole.up.value()) / 100);
}

// With memory for M bytes, of an element of which e fit, at most sqrt(e) / 2 products are made for each element that
// comes (Irony, Toledo, Tiskin 2004): little memory means many bytes, and the bound knows.
TEST(Bound, LittleMemoryMovesMoreBytes) {
  const Work work = gemm_work(4000, 4000, 1000);
  const double roomy = bound_of(work, {device(0, kQuick, kRoom, kSlow, kQuick)});
  EXPECT_NEAR(roomy, 8000.0 * 1000 * 2 / kSlow, 0.001 * roomy);
  EXPECT_GT(bound_of(work, {device(0, kQuick, 1'000'000, kSlow, kQuick)}), 3 * roomy);
}

// The MLP half of a layer in tiles: each of its operations needs the one before.
TEST(Bound, ARoundInTilesIsAsLongAsItsChain) {
  const model::ModelConfig config = model::small_model("opt", 1, 64, 320, 64);
  const StageWork work = stage_work_of(
      model::build_step(config,
                        {.kind = model::StepKind::train, .batch = 2, .clip = true, .freeze = {}, .loss_rows = 0}),
      DType::f16);
  const std::vector<DeviceState> states{device(0, 1e9, kRoom, kSlow, kSlow), device(1, 1e9, kRoom, kSlow, kSlow)};
  std::vector<fleet::DeviceProfile> devices;
  for (const DeviceState& state : states) devices.push_back(state.profile);
  fleet::ServerProfile server;
  server.compute = FlopsPerSecond(1e9);
  server.memory_bandwidth = BytesPerSecond(1e9);
  double chain = 0;
  std::int64_t products = 0;
  for (const model::Operation* op : operations_in_tiles(work, 1, 2, false)) {
    const bool product = model::runs_on_devices(op->kind);
    products += product ? 1 : 0;
    chain += product ? bound_of(work_of(*op, work.wire), states, server) : kernel_time(*op, server).value();
  }
  ASSERT_EQ(products, 2);
  EXPECT_NEAR(stages::TilesBound(devices, server)(work, 1, 2, false), chain, 1e-9 * chain);
}

}  // namespace
}  // namespace cleave::plan
