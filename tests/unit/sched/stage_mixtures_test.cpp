// Steps in stages some of which run in tiles: memory and bounds hold, everything is done once, whatever is lost and
// whenever.
#include <gtest/gtest.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/plan/stage_bound.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "stage_case.hpp"

namespace cleave::sched {
namespace {

const StageSchedulerOptions kMixing{.stages = {.server = kWide}, .wire = DType::f16};

// Devices of about the least memory for which one half of a layer runs in stages, and the other in tiles.
std::vector<fleet::DeviceProfile> too_small_for_a_half(const model::StepGraph& graph, std::int64_t count,
                                                       std::uint64_t seed) {
  const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
  auto devices = devices_of(count, seed);
  for (double memory = 1e5; memory < 1e8; memory *= 1.05) {
    for (fleet::DeviceProfile& device : devices) device.memory = Bytes(static_cast<std::int64_t>(memory));
    const auto plan = plan::find_stages(work, devices, kMixing.stages);
    if (plan && plan->has_tiles()) return devices;
  }
  ADD_FAILURE() << "no memory brings a mixture";
  return devices;
}

// With few columns keys and values of the sequences take more than all weights; with many, what follows attention does.
model::StepGraph graph_of_halves(std::uint64_t seed) {
  return seed % 2 == 0 ? graph_of_shape({.family = "opt", .layers = 4, .width = 64}, 4)
                       : graph_of_shape({.family = "llama", .layers = 4, .width = 512}, 4);
}

void expect_within_memory(const SimulatedFleet& fleet, const std::vector<fleet::DeviceProfile>& devices) {
  for (std::size_t i = 0; i < devices.size(); ++i)
    EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value()) << "device " << i;
}

TEST(StageMixtures, RunEveryStepWithinMemoryAndAboveTheBound) {
  bool attention = false, mlp = false;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const model::StepGraph graph = graph_of_halves(seed);
    const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
    const auto devices = too_small_for_a_half(graph, 8 + 2 * static_cast<std::int64_t>(seed), seed);
    SimulatedFleet fleet(devices, kWide, DType::f16);
    StageScheduler scheduler(fleet, graph, kMixing);
    const plan::StagePlan plan = scheduler.plan();
    ASSERT_TRUE(plan.has_tiles());
    for (const plan::Stage& stage : plan.stages) {
      if (!stage.tiles) continue;
      EXPECT_TRUE(stage.replicas.empty());
      (work.pieces[static_cast<std::size_t>(stage.first)].kind == model::PieceKind::attention ? attention : mlp) = true;
    }
    const StepReport report = scheduler.run();
    expect_all_done_once(scheduler, graph);
    expect_within_memory(fleet, devices);
    const Seconds bound = plan::stage_lower_bound(work, plan, devices, kWide, plan::server_share(graph, kWide));
    EXPECT_GE(report.time, bound) << seed;
    EXPECT_LE(report.time.value(), 3 * bound.value()) << seed;
    EXPECT_NEAR(plan.forecast.value(), report.time.value(), 0.5 * report.time.value()) << seed;
    EXPECT_EQ(report.lost + report.redone, 0);
    EXPECT_FALSE(report.operations.empty()) << "operations in tiles are timed";
    const Seconds again = scheduler.run().time;
    EXPECT_NEAR(again.value(), report.time.value(), 1e-6 * report.time.value());
  }
  EXPECT_TRUE(attention);
  EXPECT_TRUE(mlp);
}

TEST(StageMixtures, WhateverLeavesEverythingIsDoneOnce) {
  std::int64_t lost = 0, redone = 0, done = 0, mixed = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const model::StepGraph graph = graph_of_halves(seed);
    const auto devices = too_small_for_a_half(graph, 10, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, kMixing).run().time;
    for (const double progress : {0.02, 0.2, 0.4, 0.5, 0.6, 0.8, 0.97}) {
      fleet::ChurnTrace churn;
      for (const std::int64_t victim : {2, 7}) {
        churn.push_back({step * progress, DeviceId(victim), fleet::ChurnKind::leave, 1.0});
        churn.push_back({step * (progress + 0.1), DeviceId(victim), fleet::ChurnKind::join, 1.0});
      }
      std::ranges::stable_sort(churn, {}, &fleet::ChurnEvent::at);
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      StageScheduler scheduler(fleet, graph, kMixing);
      for (int k = 0; k < 2; ++k, ++done) {
        const StepReport report = scheduler.run();
        mixed += scheduler.plan().has_tiles() ? 1 : 0;
        expect_all_done_once(scheduler, graph);
        lost += report.lost;
        redone += report.redone;
      }
      expect_within_memory(fleet, devices);
    }
  }
  EXPECT_EQ(done, 84);
  EXPECT_GT(mixed, 60);
  EXPECT_GT(lost, 60);
  EXPECT_GT(redone, 60);
}

// One that hardly does anything any more, while its blocks are waited for or its sequences are.
TEST(StageMixtures, SlowDevicesHoldUpNobodyForLong) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const model::StepGraph graph = graph_of_halves(seed);
    const auto devices = too_small_for_a_half(graph, 10, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, kMixing).run().time;
    for (const double progress : {0.0, 0.3, 0.7}) {
      SimulatedFleet fleet(devices, kWide, DType::f16, {{step * progress, DeviceId(5), fleet::ChurnKind::slow, 1e-4}});
      StageScheduler scheduler(fleet, graph, kMixing);
      const StepReport report = scheduler.run();
      expect_all_done_once(scheduler, graph);
      EXPECT_LT(report.time.value(), 6 * step.value()) << seed << ' ' << progress;
    }
  }
}

}  // namespace
}  // namespace cleave::sched
