// Devices of a layout that take each other's part: which pairs are worth it, and what comes of them.
#include "stages/exchanges.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cleave/sched/simulated_fleet.hpp"
#include "stage_case.hpp"
#include "stages/stage_planner.hpp"

namespace cleave::sched::stages {
namespace {

fleet::DeviceProfile device_of(std::int32_t id, double down, double up) {
  fleet::DeviceProfile device;
  device.id = DeviceId(id);
  device.compute = FlopsPerSecond(1);
  device.downlink = BytesPerSecond(down);
  device.uplink = BytesPerSecond(up);
  return device;
}

Usage usage_of(double down, double compute, double up) {
  Usage usage;
  usage.down = Seconds(down);
  usage.compute = Seconds(compute);
  usage.up = Seconds(up);
  return usage;
}

TEST(Exchanges, PairsWhoseBusiestResourceGainsComeByWhatTheyGain) {
  // Twice the uplink for the device that sends longest; the third one is quick, but has more to receive than the first
  // could in that time.
  const std::vector<fleet::DeviceProfile> devices{device_of(0, 10, 5), device_of(1, 10, 10), device_of(2, 40, 20)};
  const std::vector<Usage> usage{usage_of(20, 10, 100), usage_of(30, 10, 40), usage_of(90, 10, 10)};
  // 0 and 1: 100 s become max(50, 80). 0 and 2: max(25, 90 x 4 = 360). 1 and 2: 90 become max(20, 360).
  EXPECT_EQ(worthwhile_exchanges(devices, usage), (std::vector<DevicePair>{{0, 1}}));
  const std::vector<Usage> even{usage_of(20, 10, 100), usage_of(30, 10, 60), usage_of(9, 10, 10)};
  // 0 and 1: 120 s, no. 0 and 2: max(25, 40) for 100. 1 and 2: max(30, 36) for 60.
  EXPECT_EQ(worthwhile_exchanges(devices, even), (std::vector<DevicePair>{{0, 2}, {1, 2}}));
}

TEST(Exchanges, TakeReplicasAndOwnersAndKeepToMemory) {
  auto devices = devices_of(8, 3);
  const model::StepGraph graph = graph_of("opt", 4, 4);
  const plan::StagePlan plan =
      plan::plan_stages(plan::stage_work_of(graph, DType::f16), devices, plan::StageOptions{.server = kWide});
  ASSERT_TRUE(fits(plan, devices));
  const plan::StagePlan other = exchanged(plan, {1, 6}), back = exchanged(other, {1, 6});
  std::int64_t moved = 0;
  const auto of = [](DeviceId device) { return device.value == 1 ? 6 : device.value == 6 ? 1 : device.value; };
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (std::size_t k = 0; k < plan.stages[s].replicas.size(); ++k) {
      const DeviceId before = plan.stages[s].replicas[k].device;
      EXPECT_EQ(other.stages[s].replicas[k].device.value, of(before));
      EXPECT_EQ(back.stages[s].replicas[k].device, before);
      moved += of(before) != before.value ? 1 : 0;
    }
  }
  for (std::size_t k = 0; k < plan.owners.size(); ++k)
    EXPECT_EQ(other.owners[k].device.value, of(plan.owners[k].device));
  EXPECT_GT(moved, 0);
  // A device that has just enough for its part has none for a larger one.
  std::vector<Bytes> reserved(devices.size());
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::StageReplica& replica : stage.replicas)
      reserved[static_cast<std::size_t>(replica.device.value)] += replica.memory;
  }
  for (const plan::GradientOwner& owner : plan.owners)
    reserved[static_cast<std::size_t>(owner.device.value)] += owner.memory;
  for (std::size_t i = 0; i < devices.size(); ++i) devices[i].memory = reserved[i];
  EXPECT_TRUE(fits(plan, devices));
  const auto [least, most] = std::ranges::minmax_element(reserved);
  ASSERT_LT(*least, *most);
  const auto a = static_cast<std::size_t>(least - reserved.begin()),
             b = static_cast<std::size_t>(most - reserved.begin());
  EXPECT_FALSE(fits(exchanged(plan, {std::min(a, b), std::max(a, b)}), devices));
}

// What is found is no slower than the best candidate, and often quicker; its forecast is what it takes.
TEST(Exchanges, BetterTheQuickestCandidate) {
  std::int64_t quicker = 0;
  const StageSchedulerOptions options{.stages = {.server = kWide}, .wire = DType::f16};
  const model::StepGraph graph = graph_of("opt", 8, 4);
  const StagePlanner planner(graph, options);
  constexpr Seconds kNoLimit(1e9);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const auto devices = devices_of(12, seed);
    Seconds least = kNoLimit;
    for (const plan::StagePlan& candidate :
         plan::stage_candidates(plan::stage_work_of(graph, DType::f16), devices, options.stages, 400))
      least = std::min(least, planner.rehearse(candidate, devices, least).value_or(kNoLimit));
    const auto found = planner.quickest(devices, {});
    ASSERT_TRUE(found && found->time);
    EXPECT_TRUE(fits(found->plan, devices));
    EXPECT_EQ(*planner.rehearse(found->plan, devices, kNoLimit), *found->time);
    EXPECT_EQ(found->plan.forecast, *found->time);
    EXPECT_LE(*found->time, least * 1.05) << seed;  // candidates whose forecast is far off are not rehearsed
    quicker += *found->time < least ? 1 : 0;
    EXPECT_EQ(planner.quickest(devices, {})->time, found->time) << "not a function of its arguments";
  }
  EXPECT_GE(quicker, 3);
}

}  // namespace
}  // namespace cleave::sched::stages
