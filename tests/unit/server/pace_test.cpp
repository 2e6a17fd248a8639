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

}  // namespace
}  // namespace cleave::server
