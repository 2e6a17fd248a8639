// The planner on several threads: rehearsals and smaller fleets that are looked at ahead of their turn. What is found
// is what one thread finds.
#include "stages/stage_planner.hpp"

#include <gtest/gtest.h>

#include "cleave/sched/layout_choice.hpp"
#include "stage_case.hpp"
#include "support/cases.hpp"

namespace cleave::sched::stages {
namespace {

using testing_support::all_or_few;

// What was begun before another rehearsal turned out quicker counts as with the lower limit from its beginning.
TEST(StagePlanner, ARehearsalHoldsForALowerLimitThatItHadNotPassed) {
  StagePlanner::Rehearsal stopped;
  stopped.before = Seconds(10);
  EXPECT_TRUE(stopped.holds_for(Seconds(10)));
  EXPECT_FALSE(stopped.holds_for(Seconds(9))) << "it would have been stopped before";
  StagePlanner::Rehearsal ended;
  ended.before = Seconds(10);
  ended.time = Seconds(12);
  EXPECT_TRUE(ended.holds_for(Seconds(12)));
  EXPECT_FALSE(ended.holds_for(Seconds(11))) << "it would have no time";
}

std::optional<StagePlanner::Found> found_by(int threads, const StepSpec& spec, std::int64_t passages) {
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  StageSchedulerOptions options = stage_scheduler_options(spec);
  options.stages.threads = threads;
  StagePlanner::Effort effort;
  effort.passages = passages;
  return StagePlanner(graph, options).quickest(spec.devices, effort);
}

void expect_same(const StepSpec& spec, const std::string& what) {
  // With little effort as well, so that it ends in the middle: then what counts is how far each rehearsal went.
  constexpr std::int64_t kPassages[] = {2'000, 20'000, 200'000};
  for (const std::int64_t passages : std::span(kPassages).first(all_or_few(3, 2))) {
    const auto alone = found_by(1, spec, passages);
    ASSERT_TRUE(alone) << what;
    for (const int threads : {2, 5}) {
      const auto together = found_by(threads, spec, passages);
      ASSERT_TRUE(together) << what;
      EXPECT_EQ(together->plan, alone->plan) << what << ", " << threads << " threads, " << passages << " passages";
      EXPECT_EQ(together->time, alone->time) << what;
    }
  }
}

TEST(StagePlanner, CandidatesAndExchangesAreThoseOfOneThread) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    StepSpec spec = small_spec("opt", 4, 256, 8);
    spec.devices = published_devices(seed, 24, 1e7);
    expect_same(spec, "seed " + std::to_string(seed));
  }
}

TEST(StagePlanner, SmallerFleetsAreThoseOfOneThread) {
  for (const std::int64_t count : {40, all_or_few(200, 80)}) {
    StepSpec spec = small_spec("opt", 3, 256, 8);
    spec.devices = published_devices(7, count, 1e7);
    spec.plan.server.nic_out = spec.plan.server.nic_in = BytesPerSecond(1.25e8);
    expect_same(spec, std::to_string(count) + " devices");
  }
}

TEST(StagePlanner, FleetsWithoutWeakDevicesAreThoseOfOneThread) {
  StepSpec spec = small_spec("opt", 4, 256, 8);
  spec.devices = published_devices(3, 16, 1e7);
  for (std::size_t i = 8; i < spec.devices.size(); ++i) {
    spec.devices[i].uplink = spec.devices[i].uplink / 50;
    spec.devices[i].compute = spec.devices[i].compute / 50;
  }
  expect_same(spec, "half of them weak");
}

}  // namespace
}  // namespace cleave::sched::stages
