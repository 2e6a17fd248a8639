// Learned rates: robust against outliers, quick to believe a real change, blind to nonsense.
#include "estimation/rate_estimator.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace cleave::sched {
namespace {

TEST(RateEstimator, DeclaredUntilEnoughIsSeen) {
  RateEstimator rate;
  rate.observe(100, Seconds(10));
  rate.observe(100, Seconds(10));
  EXPECT_EQ(rate.rate(50), 50);
  rate.observe(100, Seconds(10));
  EXPECT_EQ(rate.rate(50), 10);
}

TEST(RateEstimator, OutliersChangeNothing) {
  RateEstimator rate;
  for (int i = 0; i < 5; ++i) rate.observe(100, Seconds(10));
  for (int i = 0; i < 4; ++i) rate.observe(100, Seconds(1e6));
  EXPECT_EQ(rate.rate(50), 10);
}

TEST(RateEstimator, RealChangeIsBelieved) {
  RateEstimator rate;
  for (int i = 0; i < 100; ++i) rate.observe(100, Seconds(1));
  for (int i = 0; i < 5; ++i) rate.observe(100, Seconds(10));
  EXPECT_EQ(rate.rate(100), 10);
}

TEST(RateEstimator, SmallDifferencesKeepTheDeclaredRate) {
  RateEstimator rate;
  for (int i = 0; i < 9; ++i) rate.observe(98, Seconds(1));
  EXPECT_EQ(rate.rate(100), 100);
}

TEST(RateEstimator, NonsenseIsNoObservation) {
  RateEstimator rate;
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double time : {0.0, -1.0, infinite, nan}) {
    for (int i = 0; i < 3; ++i) rate.observe(1, Seconds(time));
  }
  for (int i = 0; i < 3; ++i) rate.observe(-1, Seconds(1));
  EXPECT_EQ(rate.rate(7), 7);
}

}  // namespace
}  // namespace cleave::sched
