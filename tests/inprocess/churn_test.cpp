// 200 seeded random churn schedules: devices leave, join, slow down, hang and lie at any moment; the bits stay the
// same.
#include <gtest/gtest.h>

#include "churn_schedule.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

constexpr std::uint64_t kChurnSchedules = 200, kRealSchedules = 12;

TEST(Churn, RandomSchedulesEndWithTheSameBits) {
  const std::uint64_t expected = train(small_setting()).hash;
  Setting s = small_setting();
  s.devices = unlike_devices(5);
  s.device_ranks = 2;
  const Seconds whole = train(s).time;
  std::int64_t lost = 0, rejected = 0;
  for (std::uint64_t seed = 0; seed < kChurnSchedules; ++seed) {
    const bool liars = seed % 2 == 1;
    s.churn = random_schedule(seed, 5, whole, liars);
    s.verification.mode = liars ? server::VerifyMode::all : server::VerifyMode::off;
    s.verification.seed = seed;
    const Outcome outcome = train(s);
    ASSERT_EQ(outcome.hash, expected) << "schedule " << seed;
    lost += outcome.lost;
    rejected += outcome.rejected;
  }
  EXPECT_GT(lost, static_cast<std::int64_t>(kChurnSchedules));  // the schedules do hit blocks in flight
  EXPECT_GT(rejected, 0);
}

// The same in real time, and with devices that answer as soon as they can.
TEST(Churn, RandomSchedulesUnderRealClocks) {
  Setting s = small_setting();
  const std::uint64_t expected = train(s).hash;
  // So slow that links and processors are what a run takes its time for, on a slow or busy host too: then devices that
  // leave hold blocks.
  s.devices = slower(unlike_devices(5), 20);
  s.device_ranks = 2;
  const Seconds whole = train(s).time;
  for (const server::ClockMode clock : {server::ClockMode::wall, server::ClockMode::off}) {
    s.clock = clock;
    std::int64_t lost = 0;
    for (std::uint64_t seed = 0; seed < kRealSchedules; ++seed) {
      s.churn = random_schedule(seed, 5, whole, false);
      const Outcome outcome = train(s);
      ASSERT_EQ(outcome.hash, expected) << "clock " << static_cast<int>(clock) << ", schedule " << seed;
      lost += outcome.lost;
    }
    EXPECT_TRUE(lost > 0 || clock == server::ClockMode::off);
  }
}

}  // namespace
}  // namespace cleave::testing_run
