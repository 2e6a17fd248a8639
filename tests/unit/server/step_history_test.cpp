// How far back the history reaches, for how many copies, and what it brings back.
#include "step_history.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace cleave::server {
namespace {

// A store of one parameter whose values tell the step that they were last updated in.
class StepHistoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model::TensorSpec spec;
    spec.name = "w";
    spec.rows = 2;
    spec.cols = 3;
    store_ = ParameterStore(std::span(&spec, 1));
    Parameter& p = store_.at("w");
    p.exp_avg.assign(6, 0.0F);
    p.exp_avg_sq.assign(6, 0.0F);
  }
  // Runs step `step`: the state before it is `step` everywhere.
  void run(StepHistory& history, std::int64_t step, const std::vector<DeviceId>& unverified) {
    EXPECT_EQ(state(), step);
    history.begin(step);
    Parameter& p = store_.at("w");
    const auto after = static_cast<float>(step + 1);
    std::ranges::fill(p.value, after);
    std::ranges::fill(p.exp_avg, after);
    std::ranges::fill(p.exp_avg_sq, after);
    history.done(unverified);
  }
  std::int64_t state() {
    const Parameter& p = store_.at("w");
    EXPECT_EQ(p.value[5], p.exp_avg[0]);
    EXPECT_EQ(p.value[0], p.exp_avg_sq[5]);
    return static_cast<std::int64_t>(p.value[0]);
  }
  ParameterStore store_;
};

TEST_F(StepHistoryTest, ReachesAsFarAsItIsToldAndHardlyFurther) {
  for (const std::int64_t reach : {1, 2, 3, 4, 5, 7, 20, 33}) {
    SetUp();
    StepHistory history(store_, reach);
    for (std::int64_t step = 0; step < 100; ++step) {
      run(history, step, {DeviceId(1)});
      EXPECT_LE(history.reach(), std::max<std::int64_t>(0, step - reach));
      EXPECT_GT(history.reach(), step - reach - (reach + 3) / 4);
      EXPECT_EQ(history.too_late_for({DeviceId(1)}), history.reach() > 0);
      EXPECT_FALSE(history.too_late_for({DeviceId(2)}));
    }
    const std::int64_t first = *history.first_part_of({DeviceId(1)});
    EXPECT_EQ(first, history.reach());
    EXPECT_EQ(history.go_back_to(first), first);
    for (std::int64_t step = first; step < 120; ++step) run(history, step, {});  // asks for the state before each
  }
}

TEST_F(StepHistoryTest, GoesBackToBeforeTheFirstPartOfWhoeverIsFoundOut) {
  StepHistory history(store_, 8);  // a copy of every second step
  for (std::int64_t step = 0; step < 8; ++step) {
    std::vector<DeviceId> unverified{DeviceId(1)};
    if (step >= 5) unverified.emplace_back(2);
    if (step == 7) unverified.emplace_back(3);
    run(history, step, unverified);
  }
  EXPECT_EQ(history.first_part_of({DeviceId(3)}), 7);
  EXPECT_FALSE(history.first_part_of({}));
  EXPECT_EQ(history.first_part_of({DeviceId(2), DeviceId(3)}), 5);
  EXPECT_EQ(history.go_back_to(5), 4);
  EXPECT_EQ(state(), 4);
  EXPECT_FALSE(history.first_part_of({DeviceId(2)}));
  EXPECT_EQ(history.first_part_of({DeviceId(1)}), 0);
  for (const int times : {1, 2}) {  // copies are as far apart as before, so it goes back no further the next time
    for (std::int64_t step = 4; step < 6; ++step) run(history, step, {});
    EXPECT_EQ(history.go_back_to(5), 4) << times;
  }
  EXPECT_EQ(history.go_back_to(0), 0);
  EXPECT_EQ(state(), 0);
}

// What the process before knew, this one knows, for as long as it matters.
TEST_F(StepHistoryTest, ReachesIntoStepsOfTheProcessBefore) {
  StepHistory first(store_, 4);
  for (std::int64_t step = 0; step < 10; ++step) run(first, step, {DeviceId(step < 2 ? 1 : 2), DeviceId(step)});
  const PartRecord record = first.record(10);
  EXPECT_EQ(record.steps.begin()->first, 5);  // when step 9 began it reached as far
  EXPECT_EQ(record.steps.rbegin()->first, 9);
  EXPECT_FALSE(record.unknown_before);

  StepHistory second(store_, 4);
  second.remember(record);
  EXPECT_EQ(second.record(10), record);
  run(second, 10, {DeviceId(3)});
  EXPECT_EQ(second.reach(), 10);
  EXPECT_EQ(second.first_part_of({DeviceId(2)}), 6);
  EXPECT_EQ(second.first_copied_part_of({DeviceId(2)}), std::nullopt);
  EXPECT_EQ(second.first_part_of({DeviceId(8)}), 8);
  EXPECT_EQ(second.first_part_of({DeviceId(3)}), 10);
  EXPECT_FALSE(second.first_part_of({DeviceId(1)}));
  EXPECT_TRUE(second.too_late_for({DeviceId(1)}));
  EXPECT_FALSE(second.too_late_for({DeviceId(8)}));
  EXPECT_FALSE(second.too_late_for({DeviceId(17)}));  // every step is known of
  run(second, 11, {});
  EXPECT_EQ(second.first_part_of({DeviceId(2)}), 7);
  EXPECT_TRUE(second.too_late_for({DeviceId(6)}));

  std::ranges::fill(store_.at("w").value, 5.0F);  // a state of before, from elsewhere
  std::ranges::fill(store_.at("w").exp_avg, 5.0F);
  std::ranges::fill(store_.at("w").exp_avg_sq, 5.0F);
  second.go_on_from(5);
  EXPECT_TRUE(second.record(5).steps.empty());
  for (std::int64_t step = 5; step < 12; ++step) run(second, step, {DeviceId(4)});
  EXPECT_FALSE(second.first_part_of({DeviceId(2)}));
  EXPECT_EQ(second.first_part_of({DeviceId(4)}), second.reach());
  EXPECT_LE(second.reach(), 7);
}

// What another process did before is not known where nobody says so.
TEST_F(StepHistoryTest, BeforeARunThatWasResumedAnybodyMayHaveLied) {
  std::ranges::fill(store_.at("w").value, 30.0F);
  std::ranges::fill(store_.at("w").exp_avg, 30.0F);
  std::ranges::fill(store_.at("w").exp_avg_sq, 30.0F);
  StepHistory history(store_, 4);
  run(history, 30, {});
  EXPECT_TRUE(history.too_late_for({DeviceId(9)}));
  EXPECT_FALSE(history.too_late_for({}));
  EXPECT_EQ(history.reach(), 30);
}

}  // namespace
}  // namespace cleave::server
