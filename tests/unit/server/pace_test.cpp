// The computation that makes real time follow the model, on clocks that the test moves.
#include "pace.hpp"

#include <gtest/gtest.h>

namespace cleave::server {
namespace {

TEST(Pace, NothingIsDueBeforeItsTime) {
  Pace pace;
  pace.begin(Seconds(100), Seconds(5));
  EXPECT_EQ(pace.left(Seconds(100), Seconds(7)), Seconds(2));
  EXPECT_EQ(pace.left(Seconds(101.5), Seconds(7)), Seconds(0.5));
  EXPECT_EQ(pace.left(Seconds(102), Seconds(7)), Seconds(0));
  EXPECT_EQ(pace.left(Seconds(110), Seconds(7)), Seconds(0));
}

TEST(Pace, DilationIsRealOverModelledTime) {
  Pace pace;
  pace.begin(Seconds(100), Seconds(5));
  EXPECT_EQ(pace.dilation(), 1.0);
  pace.passed(Seconds(102), Seconds(7));
  EXPECT_EQ(pace.dilation(), 1.0);
  EXPECT_EQ(pace.lateness(), Seconds(0));
  pace.passed(Seconds(105), Seconds(9));  // 5 real seconds for 4 of the model
  EXPECT_EQ(pace.dilation(), 1.25);
  EXPECT_EQ(pace.lateness(), Seconds(1));
  EXPECT_EQ(pace.left(Seconds(105), Seconds(12)), Seconds(2));  // what is late is caught up with
  pace.passed(Seconds(107), Seconds(12));
  EXPECT_EQ(pace.dilation(), 1.0);
  EXPECT_EQ(pace.lateness(), Seconds(1));
}

TEST(Pace, EveryStepBeginsAnew) {
  Pace pace;
  pace.begin(Seconds(0), Seconds(0));
  pace.passed(Seconds(3), Seconds(2));
  pace.begin(Seconds(10), Seconds(2));  // what lies between two steps is of neither
  EXPECT_EQ(pace.dilation(), 1.0);
  EXPECT_EQ(pace.left(Seconds(10), Seconds(3)), Seconds(1));
  pace.passed(Seconds(12), Seconds(3));
  EXPECT_EQ(pace.dilation(), 2.0);
  EXPECT_EQ(pace.lateness(), Seconds(1));
}

TEST(Pace, WhatIsLateIsSharedOutToWhomItWaitedFor) {
  Pace pace;
  pace.begin(Seconds(0), Seconds(0));
  EXPECT_TRUE(pace.shares().empty());
  pace.passed(Seconds(2), Seconds(2), 1, Seconds(1));  // waited for, and yet not late
  EXPECT_TRUE(pace.shares().empty());
  pace.passed(Seconds(5), Seconds(4), 1, Seconds(0.75));  // 1 s late: a quarter of a second is the server's
  EXPECT_DOUBLE_EQ(pace.shares().at(1), 0.75 / 4);
  EXPECT_DOUBLE_EQ(pace.shares().at(0), 0.25 / 4);
  pace.passed(Seconds(7), Seconds(5), 2, Seconds(3));  // no more than by what it became later
  EXPECT_DOUBLE_EQ(pace.shares().at(2), 1.0 / 5);
  double sum = 0;
  for (const auto& [rank, share] : pace.shares()) sum += share;
  EXPECT_DOUBLE_EQ(sum, pace.dilation() - 1);
  pace.passed(Seconds(8), Seconds(7));  // half of it is caught up with, and half of each part
  EXPECT_DOUBLE_EQ(pace.shares().at(1), 0.375 / 7);
  EXPECT_DOUBLE_EQ(pace.shares().at(2), 0.5 / 7);
  pace.passed(Seconds(9), Seconds(9));
  for (const auto& [rank, share] : pace.shares()) EXPECT_EQ(share, 0.0) << rank;
  pace.begin(Seconds(9), Seconds(9));
  EXPECT_TRUE(pace.shares().empty());
}

}  // namespace
}  // namespace cleave::server
