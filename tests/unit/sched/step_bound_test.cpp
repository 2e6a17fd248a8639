// Bounds of steps in tiles of which one thing takes nearly all the time, so that they can be told by hand.
#include "cleave/plan/bound.hpp"
#include "cleave/plan/cost.hpp"
#include "graphs.hpp"

namespace cleave::sched {
namespace {

constexpr double kQuick = 1e15, kSlow = 1e5, kNear = 1e-4;
constexpr double kNoLimit = fleet::kUnlimitedRate.value();
constexpr GemmShape kProduct{40, 40, 500};
constexpr double kOperands = 80.0 * 500 * 4, kResult = 40.0 * 40 * 4, kFlops = 2.0 * 40 * 40 * 500;

double bound_of(const model::StepGraph& graph, const std::vector<fleet::DeviceProfile>& devices) {
  std::vector<plan::DeviceState> states;
  for (const fleet::DeviceProfile& profile : devices) states.push_back({profile, {}, {}, {}});
  return step_lower_bound(graph, states, options_of()).value();
}

model::StepGraph products(std::int64_t count, bool chained) {
  std::vector<model::Operation> all;
  for (std::int64_t id = 0; id < count; ++id)
    all.push_back(gemm(id, kProduct, chained && id > 0 ? std::vector{id - 1} : std::vector<std::int64_t>{}));
  return graph_of(std::move(all));
}

// Of operations that need each other each pays its latencies.
TEST(StepBound, AChainIsAsLongAsItsOperationsTogether) {
  EXPECT_NEAR(bound_of(products(3, true), {device(0, kQuick, kQuick, kQuick, 5)}), 3 * 2 * 5, 30 * kNear);
}

// The server computes kernels one after another, whether they need each other or not.
TEST(StepBound, KernelsAddUp) {
  const model::StepGraph graph = graph_of({kernel(0, 1000, 500), kernel(1, 1000, 500), kernel(2, 1000, 500)});
  EXPECT_NEAR(bound_of(graph, {device(0, kQuick, kQuick, kQuick)}), 3 * 1000.0 * 500 * 8 / 100e9, 1e-9);
}

// Operations that need nothing of each other share processors, downlinks and uplinks.
TEST(StepBound, ResourcesCarryAllOperations) {
  const model::StepGraph graph = products(7, false);
  const auto expect = [&](double seconds, double compute, double down, double up) {
    EXPECT_NEAR(bound_of(graph, {device(0, compute, down, up)}), seconds, seconds * kNear);
  };
  expect(7 * kFlops / kSlow, kSlow, kNoLimit, kNoLimit);
  expect(7 * kOperands / kSlow, kQuick, kSlow, kNoLimit);
  expect(7 * kResult / kSlow, kQuick, kNoLimit, kSlow);
}

// Devices that are taken together count for no less than they are: here each of two neighbours has the quick uplink.
TEST(StepBound, ClassesOfDevicesAreAsGoodAsTheirBest) {
  std::vector<fleet::DeviceProfile> devices;
  double uplinks = 0;
  for (std::int64_t id = 0; id < 512; ++id) {
    const double up = id % 2 == 0 ? 100 * kSlow : kSlow;
    devices.push_back(device(id, kQuick, kQuick + 1e9 * static_cast<double>(id), up));
    uplinks += up;
  }
  const double bound = bound_of(products(50, false), devices);
  EXPECT_LE(bound, 50 * kResult / uplinks * (1 + kNear) + bound_of(products(1, false), devices));
  EXPECT_GE(bound, 50 * kResult / (512 * 100 * kSlow) * (1 - kNear));
}

// Four large products at once: hurried each, they move more bytes than the links carry meanwhile; one by one they take
// longer than each alone. No schedule has both, so the bound is above either.
TEST(StepBound, HasteCostsBytes) {
  std::vector<model::Operation> all;
  for (std::int64_t id = 0; id < 4; ++id) all.push_back(gemm(id, {4096, 4096, 16384}));
  const model::StepGraph graph = graph_of(std::move(all));
  const std::vector<fleet::DeviceProfile> devices = edge_devices(64, {0, 0});
  std::vector<plan::DeviceState> states;
  double down = 0, up = 0, compute = 0;
  for (const fleet::DeviceProfile& profile : devices) {
    states.push_back({profile, {}, {}, {}});
    down += profile.downlink.value();
    up += profile.uplink.value();
    compute += profile.compute.value();
  }
  const plan::Work one = plan::work_of(graph.operations.front(), DType::f32);
  const plan::Volume volume = plan::volume_of(one);
  const double apart = std::max({plan::lower_bound(one, states, options_of().plan).value(),
                                 4 * static_cast<double>(volume.down.value()) / down,
                                 4 * static_cast<double>(volume.up.value()) / up, 4 * volume.flops.value() / compute});
  const double bound = bound_of(graph, devices);
  EXPECT_GT(bound, 1.5 * apart);
  SimulatedFleet fleet(devices, wide_server(), DType::f32);
  EXPECT_LE(bound, Scheduler(fleet, options_of()).run(graph).time.value());
}

TEST(StepBound, IsBelowEveryRun) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const model::StepGraph graph = random_graph(25, seed);
    const std::vector<fleet::DeviceProfile> devices = mixed_devices(1 + static_cast<std::int64_t>(seed % 7), seed);
    std::vector<plan::DeviceState> states;
    for (const fleet::DeviceProfile& profile : devices) states.push_back({profile, {}, {}, {}});
    const Seconds bound = step_lower_bound(graph, states, options_of());
    for (const plan::Partition partition : {plan::Partition::automatic, plan::Partition::grid, plan::Partition::rows}) {
      SimulatedFleet fleet(devices, wide_server(), DType::f32);
      const StepReport report = Scheduler(fleet, options_of(partition)).run(graph);
      EXPECT_GE(report.time.value(), bound.value() * (1 - 1e-9)) << "seed " << seed;
    }
    EXPECT_GT(bound.value(), 0);
  }
}

}  // namespace
}  // namespace cleave::sched
