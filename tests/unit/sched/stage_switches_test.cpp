// What can be switched off in stages: each switch changes the plan, and everything is still done once.
#include <gtest/gtest.h>

#include <algorithm>

#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "stage_case.hpp"

namespace cleave::sched {
namespace {

class StageSwitches : public testing::Test {
 protected:
  // The plan of these options, and what its step takes.
  struct Ran {
    plan::StagePlan plan;
    double time_s, bytes_down;
  };
  Ran run(plan::StageOptions options) const {
    options.server = kWide;
    SimulatedFleet fleet(devices, kWide, DType::f16);
    StageScheduler scheduler(fleet, graph, {options, DType::f16});
    const StepReport report = scheduler.run();
    expect_all_done_once(scheduler, graph);
    for (std::size_t i = 0; i < devices.size(); ++i)
      EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value());
    return {scheduler.plan(), report.time.value(), static_cast<double>(report.bytes_down.value())};
  }
  model::StepGraph graph = graph_of("opt", 12, 6);
  std::vector<fleet::DeviceProfile> devices = devices_of(60, 5);
};

TEST_F(StageSwitches, Chunks) {
  const Ran best = run({}), whole = run({.server = {}, .chunk = 384}), more = run({.server = {}, .chunk = 1024});
  EXPECT_LT(best.plan.chunk, 384);
  EXPECT_EQ(whole.plan.chunk, 384) << "a sequence";
  EXPECT_EQ(more.plan.chunk, 384) << "no more than a sequence";
  EXPECT_GT(whole.time_s, best.time_s);
}

TEST_F(StageSwitches, Owners) {
  const auto replicas = [](const plan::StagePlan& plan) {
    return std::ranges::count(plan.owners, true, &plan::GradientOwner::replica);
  };
  const Ran best = run({}), apart = run({.server = {}, .owners = plan::OwnerPlaces::apart}),
            own = run({.server = {}, .owners = plan::OwnerPlaces::replicas});
  EXPECT_GT(replicas(best.plan), 0);
  EXPECT_EQ(replicas(apart.plan), 0);
  EXPECT_EQ(replicas(own.plan), std::ssize(own.plan.owners));
  EXPECT_GT(apart.time_s, best.time_s) << "owners are sent what they did not run";
}

TEST_F(StageSwitches, Preloading) {
  const Ran best = run({}), late = run({.server = {}, .preload = false});
  EXPECT_TRUE(best.plan.preload);
  EXPECT_FALSE(late.plan.preload);
  EXPECT_GT(late.plan.forecast, best.plan.forecast);
  EXPECT_GT(late.time_s, best.time_s);
}

}  // namespace
}  // namespace cleave::sched
