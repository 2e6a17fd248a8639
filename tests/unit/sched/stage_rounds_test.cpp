// Steps in rounds of stages: memory holds, everything is done once, whatever is lost and whenever.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/stage_bound.hpp"
#include "cleave/sched/observer.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "quiet_observer.hpp"
#include "stage_case.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

// So little memory that stages need several rounds.
std::vector<fleet::DeviceProfile> short_of_memory(std::int64_t count, std::uint64_t seed) {
  auto devices = devices_of(count, seed);
  for (fleet::DeviceProfile& device : devices) device.memory = Bytes(4'500'000);
  return devices;
}

const StageSchedulerOptions kOptions{.stages = {.server = kWide}, .wire = DType::f16};

void expect_memory_holds(const SimulatedFleet& fleet, const std::vector<fleet::DeviceProfile>& devices) {
  for (std::size_t i = 0; i < devices.size(); ++i)
    EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value()) << "device " << i;
}

// Which stages have weights that come, in order of time.
class Loads final : public QuietObserver {
 public:
  void submitted(const Tasklet& tasklet) override {
    if (tasklet.errand != Errand::weights || !tasklet.item.weights || tasklet.item.owner >= 0) return;
    if (stages.empty() || stages.back() != tasklet.stage) stages.push_back(tasklet.stage);
  }
  std::vector<std::int32_t> stages;
};

TEST(StageRounds, GoUpRoundByRoundAndDownAgain) {
  std::set<std::int64_t> rounds;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const model::StepGraph graph = graph_of("opt", 4, 8);
    const auto devices = short_of_memory(6 + 2 * static_cast<std::int64_t>(seed), seed);
    SimulatedFleet fleet(devices, kWide, DType::f16);
    Loads loads;
    fleet.set_observer(&loads);
    StageScheduler scheduler(fleet, graph, kOptions);
    const plan::StagePlan plan = scheduler.plan();
    rounds.insert(plan.rounds());
    const StepReport report = scheduler.run();
    expect_all_done_once(scheduler, graph);
    expect_memory_holds(fleet, devices);
    const plan::ServerShare share = plan::server_share(graph, kWide);
    const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
    EXPECT_GE(report.time, plan::stage_lower_bound(work, plan, devices, kWide, share)) << seed;
    EXPECT_EQ(report.lost + report.redone, 0);
    std::vector<std::int64_t> order;
    for (const std::int32_t s : loads.stages) {
      const std::int64_t round = plan.stages[static_cast<std::size_t>(s)].round;
      if (order.empty() || order.back() != round) order.push_back(round);
    }
    std::vector<std::int64_t> wanted;
    for (std::int64_t r = 0; r < plan.rounds(); ++r) wanted.push_back(r);
    for (std::int64_t r = plan.rounds() - 1; r-- > 0;) wanted.push_back(r);
    EXPECT_EQ(order, wanted) << seed;
    // A second step goes as the first one did.
    EXPECT_NEAR(scheduler.run().time.value(), report.time.value(), 1e-6 * report.time.value());
  }
  EXPECT_GE(rounds.size(), 3U) << "1, 2 and more";
  EXPECT_GE(*rounds.rbegin(), 3);
}

TEST(StageRounds, FrozenLayersAreNotHeldAgain) {
  const model::StepGraph graph = graph_of_shape(
      {.layers = 8, .freeze = {"*embed*", "*layers.0.*", "*layers.1.*", "*layers.2.*", "*layers.3.*", "*layers.4.*"}},
      4);
  std::int64_t fewer = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto devices = short_of_memory(5, seed);
    SimulatedFleet fleet(devices, kWide, DType::f16);
    Loads loads;
    fleet.set_observer(&loads);
    StageScheduler scheduler(fleet, graph, kOptions);
    const plan::StagePlan plan = scheduler.plan();
    if (plan.rounds() < 2) continue;
    const StepReport report = scheduler.run();
    EXPECT_GE(report.time, plan::stage_lower_bound(plan::stage_work_of(graph, DType::f16), plan, devices, kWide,
                                                   plan::server_share(graph, kWide)));
    if (std::ranges::count(loads.stages, 0) == 1) ++fewer;
  }
  EXPECT_GE(fewer, 2);
}

TEST(StageRounds, WhateverLeavesEverythingIsDoneOnce) {
  constexpr int kMoments = all_or_few(7, 4);
  constexpr std::int64_t kSeeds = all_or_few(6, 2), kRuns = kSeeds * kMoments;
  std::int64_t lost = 0, redone = 0, refused = 0, done = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const model::StepGraph graph = graph_of("opt", 4, 8);
    const auto devices = short_of_memory(9, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    StageScheduler undisturbed(calm, graph, kOptions);
    ASSERT_GT(undisturbed.plan().rounds(), 1);
    const Seconds step = undisturbed.run().time;
    for (int moment = 0; moment < kMoments; ++moment) {
      const double progress = 0.05 + 0.9 / (kMoments - 1) * moment;
      fleet::ChurnTrace churn;
      for (const std::int64_t victim : {2, 5, 7}) {
        churn.push_back({step * progress, DeviceId(victim), fleet::ChurnKind::leave, 1.0});
        if (seed % 2 == 0) churn.push_back({step * (progress + 0.1), DeviceId(victim), fleet::ChurnKind::join, 1.0});
      }
      std::ranges::stable_sort(churn, {}, &fleet::ChurnEvent::at);
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      StageScheduler scheduler(fleet, graph, kOptions);
      try {
        for (int k = 0; k < 2; ++k) {
          const StepReport report = scheduler.run();
          expect_all_done_once(scheduler, graph);
          lost += report.lost;
          redone += report.redone;
          ++done;
        }
      } catch (const InputError& error) { ++refused; }
      expect_memory_holds(fleet, devices);
    }
  }
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(done, 2 * kRuns);
  EXPECT_GT(lost, 10 * kRuns / 7);
  EXPECT_GT(redone, 17 * kRuns / 7);
}

TEST(StageRounds, SessionsOfDevices) {
  constexpr std::int64_t kFleets = all_or_few(8, 3);
  std::int64_t lost = 0, steps = 0, rounds = 0;
  for (std::uint64_t seed = 0; seed < kFleets; ++seed) {
    const model::StepGraph graph = graph_of(seed % 2 == 0 ? "gpt2" : "llama", 4, 6);
    const auto devices = short_of_memory(12, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, kOptions).run().time;
    SimulatedFleet fleet(devices, kWide, DType::f16, sessions_of(devices, seed, step, 3, 0.3));
    StageScheduler scheduler(fleet, graph, kOptions);
    for (int k = 0; k < 4; ++k, ++steps) {
      lost += scheduler.run().lost;
      rounds = std::max(rounds, scheduler.plan().rounds());
      expect_all_done_once(scheduler, graph);
    }
    expect_memory_holds(fleet, devices);
  }
  EXPECT_EQ(steps, 4 * kFleets);
  EXPECT_GT(rounds, 1);
  EXPECT_GT(lost, 3 * steps) << "hardly anything was lost";
}

// One that hardly does anything any more: what it has is given to others, in whichever round.
TEST(StageRounds, SlowDevicesAreFoundOut) {
  std::int64_t late = 0, runs = 0;
  for (std::uint64_t seed = 0; seed < all_or_few(4U, 2U); ++seed) {
    const model::StepGraph graph = graph_of("opt", 4, 8);
    const auto devices = short_of_memory(9, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, kOptions).run().time;
    for (const double progress : {0.0, 0.3, 0.7}) {
      fleet::ChurnTrace churn{{step * progress, DeviceId(5), fleet::ChurnKind::slow, 1e-4}};
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      StageScheduler scheduler(fleet, graph, kOptions);
      const StepReport report = scheduler.run();
      late += report.late;
      ++runs;
      expect_all_done_once(scheduler, graph);
      EXPECT_LT(report.time.value(), 6 * step.value()) << seed << ' ' << progress;
    }
  }
  EXPECT_GT(2 * late, runs);
}

}  // namespace
}  // namespace cleave::sched
