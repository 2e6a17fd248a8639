// The circuit breaker of a device: closed, open, half open.
#include "recovery/breaker.hpp"

#include <gtest/gtest.h>

namespace cleave::sched {
namespace {

const DeviceId kDevice(7);

void fail_until_open(Breaker& breaker, Seconds now) {
  for (int i = 0; i < Breaker::kFailuresInARow; ++i) breaker.failed(kDevice, now);
}

TEST(Breaker, OpensAfterFailuresInARow) {
  Breaker breaker;
  for (int i = 1; i < Breaker::kFailuresInARow; ++i) breaker.failed(kDevice, Seconds(0));
  EXPECT_FALSE(breaker.leaves_out(kDevice));
  const std::uint64_t before = breaker.version();
  breaker.failed(kDevice, Seconds(0));
  EXPECT_TRUE(breaker.leaves_out(kDevice));
  EXPECT_FALSE(breaker.leaves_out(DeviceId(8)));
  EXPECT_NE(breaker.version(), before);
}

TEST(Breaker, AnAnswerInBetweenForgives) {
  Breaker breaker;
  for (int i = 0; i < 10; ++i) {
    breaker.failed(kDevice, Seconds(0));
    breaker.failed(kDevice, Seconds(0));
    breaker.answered(kDevice);
  }
  EXPECT_FALSE(breaker.leaves_out(kDevice));
}

TEST(Breaker, ReturnsAfterItsPause) {
  Breaker breaker;
  fail_until_open(breaker, Seconds(10));
  breaker.advance(Seconds(10) + Breaker::kFirstPause * 0.99);
  EXPECT_TRUE(breaker.leaves_out(kDevice));
  breaker.answered(kDevice);  // late: of before
  EXPECT_TRUE(breaker.leaves_out(kDevice));
  breaker.advance(Seconds(10) + Breaker::kFirstPause);
  EXPECT_FALSE(breaker.leaves_out(kDevice));
}

TEST(Breaker, HalfOpenOneFailureOpensForTwiceAsLong) {
  Breaker breaker;
  Seconds now(0), pause = Breaker::kFirstPause;
  fail_until_open(breaker, now);
  for (int i = 0; i < 10; ++i) {
    now += pause;
    breaker.advance(now);
    ASSERT_FALSE(breaker.leaves_out(kDevice));
    breaker.failed(kDevice, now);
    ASSERT_TRUE(breaker.leaves_out(kDevice));
    pause = std::min(pause * 2.0, Breaker::kLongestPause);
    breaker.advance(now + pause * 0.99);
    ASSERT_TRUE(breaker.leaves_out(kDevice)) << "pause " << i;
  }
}

TEST(Breaker, HalfOpenOneAnswerCloses) {
  Breaker breaker;
  fail_until_open(breaker, Seconds(0));
  breaker.advance(Breaker::kFirstPause);
  breaker.answered(kDevice);
  breaker.failed(kDevice, Breaker::kFirstPause);
  EXPECT_FALSE(breaker.leaves_out(kDevice));
}

}  // namespace
}  // namespace cleave::sched
