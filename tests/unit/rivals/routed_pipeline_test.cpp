// Pipelines with routing: against the plain pipeline, in closed form, and what must hold whatever the devices.
#include "routed_pipeline.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "pipeline.hpp"
#include "studies.hpp"

namespace cleave::rivals {
namespace {

// With one replica a stage there is nothing to choose.
TEST(RoutedPipeline, OneReplicaAStageIsThePlainPipeline) {
  const std::vector<fleet::DeviceProfile> devices = unlike_devices(4, 5);
  const fleet::LinkMatrix links;
  const Network network(devices, links);
  const std::vector<double> boundaries{3e5, 2e5, 4e5};
  const std::vector<std::int64_t> micro_batches{2, 2, 2, 2, 1};
  std::vector<RoutedDevice> replicas;
  std::vector<Stage> stages(4);
  for (std::size_t s = 0; s < 4; ++s) {
    const double forward_s = 0.1 * static_cast<double>(s + 1), backward_s = 0.3;
    replicas.push_back({s, s, forward_s, backward_s, 5});
    stages[s] = {.forward_s = forward_s, .backward_s = backward_s, .in_flight = 5, .next = {}, .previous = {}};
    const auto hop = [&](std::size_t to, double bytes) {
      const Hop none = network.hop(s, to, 0), one = network.hop(s, to, bytes);
      return StageHop{one.send_s - none.send_s, one.receive_s - none.receive_s, none.send_s, none.receive_s,
                      none.latency_s};
    };
    if (s < 3) stages[s].next = hop(s + 1, boundaries[s]);
    if (s > 0) stages[s].previous = hop(s - 1, boundaries[s - 1]);
  }
  const std::vector<RoutedTimes> routed = run_routed(network, replicas, boundaries, micro_batches);
  const std::vector<StageTimes> plain = run_pipeline(stages, micro_batches);
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_NEAR(routed[s].end_s, plain[s].end_s, 1e-9);
    EXPECT_NEAR(routed[s].up_s, plain[s].up_s, 1e-9);
    EXPECT_NEAR(routed[s].down_s, plain[s].down_s, 1e-9);
    EXPECT_GE(routed[s].most_in_flight, plain[s].most_in_flight);  // counted from when they are given to it
  }
}

// One stage: a list of equal jobs over machines of two speeds. The fast one is done twice as fast and gets twice as
// many.
TEST(RoutedPipeline, FasterReplicasGetMore) {
  const std::vector<fleet::DeviceProfile> devices = equal_devices(2, 1, 1);
  const fleet::LinkMatrix links;
  const Network network(devices, links);
  const std::vector<RoutedDevice> replicas{{0, 0, 1, 2, 100}, {1, 0, 0.5, 1, 100}};
  const std::vector<std::int64_t> nine(9, 1);
  const std::vector<RoutedTimes> times = run_routed(network, replicas, {}, nine);
  EXPECT_DOUBLE_EQ(times[0].compute_s, 9);  // three of nine
  EXPECT_DOUBLE_EQ(times[1].compute_s, 9);
}

// Links take far longer than passes, and downlinks half of what uplinks do. Of two replicas alike but for a processor
// that is a little faster each gets half; with an uplink of half the rate, a third.
TEST(RoutedPipeline, SlowLinksShareTheirStage) {
  for (const double rate : {1e6, 5e5}) {
    std::vector<fleet::DeviceProfile> devices{make_device(0, 1, 1e9, 1e9), make_device(1, 1, 2e6, 1e6),
                                              make_device(2, 1, 2e6, rate)};
    const fleet::LinkMatrix links;
    const Network network(devices, links);
    const std::vector<RoutedDevice> replicas{
        {0, 0, 1e-6, 1e-6, 100}, {1, 1, 1e-3, 1e-3, 100}, {2, 1, 0.9e-3, 0.9e-3, 100}};
    const std::vector<double> boundaries{1e6};
    const std::vector<std::int64_t> micro_batches(60, 1);
    const std::vector<RoutedTimes> times = run_routed(network, replicas, boundaries, micro_batches);
    const double share = rate == 1e6 ? 0.5 : 1.0 / 3;
    EXPECT_NEAR(times[2].bytes_up / (times[1].bytes_up + times[2].bytes_up), share, 0.02);
    EXPECT_NEAR(times[1].up_s, times[2].up_s, 2);
    // By the forward pass alone one of them gets nearly all.
    const std::vector<RoutedTimes> by_pass =
        run_routed(network, replicas, boundaries, micro_batches, Routing::by_forward_pass);
    EXPECT_GT(std::max(by_pass[1].bytes_up, by_pass[2].bytes_up), 0.9 * (by_pass[1].bytes_up + by_pass[2].bytes_up));
  }
}

TEST(RoutedPipeline, EveryMicroBatchPassesEveryStageOnce) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<fleet::DeviceProfile> devices = unlike_devices(12, seed);
    const fleet::LinkMatrix links;
    const Network network(devices, links);
    std::vector<RoutedDevice> replicas;
    const Random random(seed, Purpose::test, 9);
    for (std::size_t d = 0; d < 12; ++d) {
      const std::size_t stage = d < 3 ? d : static_cast<std::size_t>(random.below(d, 3));
      replicas.push_back({d, stage, 1, 1, 1 + static_cast<std::int64_t>(random.below(100 + d, 3))});
    }
    const std::vector<double> boundaries{1e6, 2e6};
    const std::vector<std::int64_t> micro_batches(17, 2);
    const std::vector<RoutedTimes> times = run_routed(network, replicas, boundaries, micro_batches);
    std::vector<double> compute_s(3, 0);
    double up = 0, down = 0;
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      compute_s[replicas[r].stage] += times[r].compute_s;
      up += times[r].bytes_up;
      down += times[r].bytes_down;
      EXPECT_LE(times[r].most_in_flight, replicas[r].room);
      EXPECT_GE(times[r].quiet_s + 1e-9, times[r].up_s);
    }
    for (const double sum : compute_s) EXPECT_NEAR(sum, 17 * 2 * 2, 1e-9);
    EXPECT_NEAR(up, down, 1e-6 * up);
    EXPECT_NEAR(up, 17 * (2 * 2 * (1e6 + 2e6) + 4 * 128), 1e-6 * up);
  }
}

// All-reduces take longer than the whole batch does on one device: the fastest one does it alone.
TEST(Swarm, LeavesOutDevicesThatCostMoreThanTheyBring) {
  StudyInput study = small_study(equal_devices(8, 1e9, 1e3), 8);
  study.devices[5].compute = FlopsPerSecond(2e9);
  const Workload w = workload_of(study);
  const SystemReport report = run("swarm", study);
  EXPECT_EQ(report.devices_used, 1) << report.layout;
  const double expected_s = (w.step_flops() + Workload::kUpdateFlops * static_cast<double>(w.total_parameters())) / 2e9;
  EXPECT_NEAR(report.step.value(), expected_s, 1e-9 * expected_s);
}

// Uplinks of one rate, and processors that differ a little. Downlinks that are faster than them make no step longer.
TEST(Swarm, FasterDownlinksDoNoHarm) {
  StudyInput study = small_study(unlike_devices(12, 4, 2e6, 3e6), 32);
  double before_s = std::numeric_limits<double>::infinity();
  for (const double ratio : {1, 2, 5}) {
    for (fleet::DeviceProfile& device : study.devices) {
      device.uplink = BytesPerSecond(1e5);
      device.downlink = BytesPerSecond(1e5 * ratio);
      device.latency = Seconds(0);
    }
    const SystemReport report = run("swarm", study);
    ASSERT_TRUE(report.feasible) << report.why;
    EXPECT_LE(report.step.value(), 1.02 * before_s) << ratio;
    before_s = report.step.value();
  }
}

// What a stage takes of links is what measured pairs take, whatever the devices' own links are.
TEST(Swarm, LooksAtMeasuredPairs) {
  StudyInput study = small_study(equal_devices(2, 1e8, 1e3), 8);
  study.links = fleet::LinkMatrix(2, {Seconds(0), BytesPerSecond(1e5)});
  const SystemReport report = run("swarm", study);
  EXPECT_EQ(report.devices_used, 2) << report.layout;
  EXPECT_EQ(report.layout.substr(0, 8), "2 stages") << report.layout;
}

}  // namespace
}  // namespace cleave::rivals
