// What a step in stages reports as recomputed, against what was sent.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "cleave/sched/observer.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "quiet_observer.hpp"
#include "stage_case.hpp"

namespace cleave::sched {
namespace {

// A chunk that is sent through a stage for the second time in one direction counts as recomputed, and none that is sent
// for the first time.
TEST(StageRedone, WhatIsSentTwice) {
  struct Seen final : QuietObserver {
    std::set<std::tuple<Errand, std::int32_t, std::int64_t, std::int64_t>> chunks;
    std::int64_t twice = 0;
    void submitted(const Tasklet& tasklet) override {
      if (tasklet.errand != Errand::forward && tasklet.errand != Errand::backward) return;
      const bool first = chunks.emplace(tasklet.errand, tasklet.stage, tasklet.item.sequence, tasklet.item.row).second;
      EXPECT_EQ(tasklet.redone, !first) << tasklet.stage << " " << tasklet.item.sequence << " " << tasklet.item.row;
      twice += first ? 0 : 1;
    }
  };
  std::int64_t twice = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const model::StepGraph graph = graph_of("opt", 8, 4);
    const auto devices = devices_of(40, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, {{kWide, 0}, DType::f16}).run().time;
    for (const double progress : {0.2, 0.4, 0.6}) {
      fleet::ChurnTrace churn;
      for (const std::int64_t victim : {5, 12, 21})
        churn.push_back({step * progress, DeviceId(victim), fleet::ChurnKind::leave, 1});
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      Seen seen;
      fleet.set_observer(&seen);
      StageScheduler(fleet, graph, {{kWide, 0}, DType::f16}).run();
      twice += seen.twice;
    }
  }
  EXPECT_GT(twice, 4) << "hardly anything was sent again";
}

}  // namespace
}  // namespace cleave::sched
