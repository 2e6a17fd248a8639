// Devices that do as they declare are only counted; from the first answer that says otherwise on, estimators decide, as
// if they had seen every answer.
#include "estimation/rate_estimates.hpp"

#include <gtest/gtest.h>

#include "cleave/base/random.hpp"

namespace cleave::sched {
namespace {

fleet::DeviceProfile declared() {
  fleet::DeviceProfile profile;
  profile.id = DeviceId(4);
  profile.compute = FlopsPerSecond(1e9);
  profile.downlink = BytesPerSecond(1e6);
  profile.uplink = BytesPerSecond(5e5);
  return profile;
}

Measured answer(double factor, bool uplink_used) {
  Measured measured;
  measured.bytes_down = Bytes(1'000'000);
  measured.down = Seconds(1 / factor);
  measured.flops = Flops(1e9);
  measured.compute = Seconds(1);
  measured.bytes_up = Bytes(uplink_used ? 500'000 : 0);
  measured.up = Seconds(uplink_used ? 1 : 0);
  return measured;
}

double estimated_downlink(const RateEstimates& estimates) {
  std::vector<plan::DeviceState> devices{{declared(), {}, {}, {}}};
  estimates.apply(devices);
  return devices.front().profile.downlink.value();
}

TEST(RateEstimates, AreThoseOfAnEstimatorThatSawEveryAnswer) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Random random(seed, Purpose::test);
    RateEstimates estimates;
    estimates.know(declared());
    RateEstimator estimator;
    const std::uint64_t slow_from = random.below(1000, 15);
    for (std::uint64_t i = 0; i < 30; ++i) {
      const double about = 0.97 + 0.06 * random.uniform(3 * i);
      const double factor = i >= slow_from && random.below(3 * i + 1, 3) > 0 ? 0.4 * about : about;
      estimates.observe(DeviceId(4), answer(factor, random.below(3 * i + 2, 2) == 0));
      estimator.observe(1e6, Seconds(1 / factor));
      estimates.renew(true);
      EXPECT_DOUBLE_EQ(estimated_downlink(estimates), estimator.rate(1e6)) << "seed " << seed << ", answer " << i;
    }
  }
}

TEST(RateEstimates, NobodyIsLearnedOfThatIsNotKnown) {
  RateEstimates estimates;
  for (int i = 0; i < 9; ++i) estimates.observe(DeviceId(4), answer(0.1, true));
  estimates.renew(true);
  EXPECT_EQ(estimated_downlink(estimates), 1e6);
  EXPECT_EQ(estimates.version(), 0U);
}

// Work in hand takes twice as long where each resource turns out to be half as fast.
TEST(RateEstimates, WorkInHandIsCountedAtTheLearnedRates) {
  RateEstimates estimates;
  estimates.know(declared());
  Measured half = answer(0.5, true);
  half.compute = half.up = Seconds(2);
  for (int i = 0; i < 20; ++i) estimates.observe(DeviceId(4), half);
  estimates.renew(true);
  std::vector<plan::DeviceState> devices{{declared(), Seconds(1), Seconds(2), Seconds(3)}};
  estimates.apply(devices);
  EXPECT_DOUBLE_EQ(devices.front().profile.downlink.value(), 0.5e6);
  EXPECT_DOUBLE_EQ(devices.front().profile.compute.value(), 0.5e9);
  EXPECT_DOUBLE_EQ(devices.front().profile.uplink.value(), 2.5e5);
  EXPECT_DOUBLE_EQ(devices.front().down_busy.value(), 2);
  EXPECT_DOUBLE_EQ(devices.front().compute_busy.value(), 4);
  EXPECT_DOUBLE_EQ(devices.front().up_busy.value(), 6);
}

}  // namespace
}  // namespace cleave::sched
