// Learned rates: robust against outliers, quick to believe a real change, blind to nonsense.
#include "cleave/plan/rates.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace cleave::plan {
namespace {

TEST(Rates, DeclaredUntilEnoughIsSeen) {
  RateEstimator rate;
  rate.observe(100, Seconds(10));
  rate.observe(100, Seconds(10));
  EXPECT_EQ(rate.rate(50), 50);
  rate.observe(100, Seconds(10));
  EXPECT_EQ(rate.rate(50), 10);
}

TEST(Rates, OutliersChangeNothing) {
  RateEstimator rate;
  for (int i = 0; i < 5; ++i) rate.observe(100, Seconds(10));
  for (int i = 0; i < 4; ++i) rate.observe(100, Seconds(1e6));
  EXPECT_EQ(rate.rate(50), 10);
}

TEST(Rates, RealChangeIsBelieved) {
  RateEstimator rate;
  for (int i = 0; i < 100; ++i) rate.observe(100, Seconds(1));
  for (int i = 0; i < 5; ++i) rate.observe(100, Seconds(10));
  EXPECT_EQ(rate.rate(100), 10);
}

TEST(Rates, SmallDifferencesKeepTheDeclaredRate) {
  RateEstimator rate;
  for (int i = 0; i < 9; ++i) rate.observe(98, Seconds(1));
  EXPECT_EQ(rate.rate(100), 100);
}

TEST(Rates, NonsenseIsNoObservation) {
  RateEstimator rate;
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double time : {0.0, -1.0, infinite, nan}) {
    for (int i = 0; i < 3; ++i) rate.observe(1, Seconds(time));
  }
  for (int i = 0; i < 3; ++i) rate.observe(-1, Seconds(1));
  EXPECT_EQ(rate.rate(7), 7);
}

TEST(Rates, PerDeviceAndResource) {
  LearnedRates rates;
  fleet::DeviceProfile device;
  device.id = DeviceId(3);
  device.downlink = BytesPerSecond(100);
  device.uplink = BytesPerSecond(10);
  device.compute = FlopsPerSecond(1000);
  for (int i = 0; i < 3; ++i) rates.observe(DeviceId(3), Resource::uplink, 4, Seconds(2));
  for (int i = 0; i < 3; ++i) rates.observe(DeviceId(4), Resource::downlink, 4, Seconds(2));
  const fleet::DeviceProfile learned = rates.learned(device);
  EXPECT_EQ(learned.uplink.value(), 2);
  EXPECT_EQ(learned.downlink.value(), 100);
  EXPECT_EQ(learned.compute.value(), 1000);
  rates.forget(DeviceId(3));
  EXPECT_EQ(rates.learned(device).uplink.value(), 10);
}

}  // namespace
}  // namespace cleave::plan
