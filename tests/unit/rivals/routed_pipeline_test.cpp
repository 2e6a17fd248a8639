// Pipelines with routing: against the plain pipeline, in closed form, and what must hold whatever the devices.
#include "routed_pipeline.hpp"

#include <algorithm>
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

}  // namespace
}  // namespace cleave::rivals
