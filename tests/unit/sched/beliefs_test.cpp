// Devices that do as they declare are only counted; from the first answer that says otherwise on, estimators decide, as
// if they had seen every answer.
#include "../../../src/sched/beliefs.hpp"

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

double believed_downlink(const Beliefs& beliefs) {
  std::vector<plan::DeviceState> devices{{declared(), {}, {}, {}}};
  beliefs.apply(devices);
  return devices.front().profile.downlink.value();
}

TEST(Beliefs, AreThoseOfAnEstimatorThatSawEveryAnswer) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Random random(seed, Purpose::test);
    Beliefs beliefs;
    beliefs.know(declared());
    plan::RateEstimator estimator;
    const std::uint64_t slow_from = random.below(1000, 15);
    for (std::uint64_t i = 0; i < 30; ++i) {
      const double about = 0.97 + 0.06 * random.uniform(3 * i);
      const double factor = i >= slow_from && random.below(3 * i + 1, 3) > 0 ? 0.4 * about : about;
      beliefs.observe(DeviceId(4), answer(factor, random.below(3 * i + 2, 2) == 0));
      estimator.observe(1e6, Seconds(1 / factor));
      beliefs.renew(true);
      EXPECT_DOUBLE_EQ(believed_downlink(beliefs), estimator.rate(1e6)) << "seed " << seed << ", answer " << i;
    }
  }
}

TEST(Beliefs, NobodyIsLearnedOfThatIsNotKnown) {
  Beliefs beliefs;
  for (int i = 0; i < 9; ++i) beliefs.observe(DeviceId(4), answer(0.1, true));
  beliefs.renew(true);
  EXPECT_EQ(believed_downlink(beliefs), 1e6);
  EXPECT_EQ(beliefs.version(), 0U);
}

}  // namespace
}  // namespace cleave::sched
