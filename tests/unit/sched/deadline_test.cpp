// How far a predicted time is stretched, by how predictions held.
#include "recovery/deadline.hpp"

#include <gtest/gtest.h>

namespace cleave::sched {
namespace {

TEST(Deadline, KnowsNothingAtFirst) {
  Deadline deadline;
  EXPECT_DOUBLE_EQ(deadline.stretch(), Deadline::kUnknown);
  deadline.observe(Seconds(0), Seconds(1));
  deadline.observe(Seconds(1), Seconds(0));
  for (std::size_t i = 1; i < Deadline::kEnough; ++i) deadline.observe(Seconds(1), Seconds(1));
  EXPECT_DOUBLE_EQ(deadline.stretch(), Deadline::kUnknown);
}

TEST(Deadline, ExactPredictionsAreHeldToTheLeast) {
  Deadline deadline;
  for (int i = 0; i < 200; ++i) deadline.observe(Seconds(2), Seconds(2));
  EXPECT_DOUBLE_EQ(deadline.stretch(), Deadline::kLeast);
  EXPECT_DOUBLE_EQ(deadline.limit(Seconds(4)).value(), 4 * Deadline::kLeast);
}

TEST(Deadline, AFifthOfStragglersStretchesNothing) {
  Deadline deadline;
  for (int i = 0; i < 500; ++i) deadline.observe(Seconds(1), Seconds(i % 5 == 0 ? 10 : 1));
  EXPECT_DOUBLE_EQ(deadline.stretch(), Deadline::kLeast);
}

TEST(Deadline, AWideSpreadStretches) {
  Deadline deadline;
  for (int i = 0; i < 512; ++i) deadline.observe(Seconds(1), Seconds(1.0 + (i % 4)));  // quartiles at 2, 3, 4
  EXPECT_DOUBLE_EQ(deadline.stretch(), 3 + Deadline::kSpreads * 1);
}

TEST(Deadline, WhatIsLongAgoIsForgotten) {
  Deadline deadline;
  for (std::size_t i = 0; i < Deadline::kWindow; ++i) deadline.observe(Seconds(1), Seconds(5));
  EXPECT_DOUBLE_EQ(deadline.stretch(), 5);
  for (std::size_t i = 0; i < Deadline::kWindow; ++i) deadline.observe(Seconds(1), Seconds(1));
  EXPECT_DOUBLE_EQ(deadline.stretch(), Deadline::kLeast);
}

}  // namespace
}  // namespace cleave::sched
