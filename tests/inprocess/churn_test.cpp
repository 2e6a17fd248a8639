// 200 seeded random churn schedules: devices leave, join, slow down, hang and lie at any moment; the bits stay the
// same.
#include <gtest/gtest.h>

#include "run.hpp"

namespace cleave::testing_run {
namespace {

constexpr std::uint64_t kSchedules = 200, kRealSchedules = 12;

// Up to 30 events over the time of the undisturbed run and half as much again.
fleet::ChurnTrace random_schedule(std::uint64_t seed, std::int64_t devices, Seconds whole, bool liars) {
  const Random random(seed, Purpose::test, 1);
  fleet::ChurnTrace trace;
  const std::uint64_t events = 1 + random.below(0, 30);
  for (std::uint64_t i = 1; i <= events; ++i) {
    const DeviceId device(static_cast<std::int64_t>(random.below(4 * i, static_cast<std::uint64_t>(devices))));
    const Seconds at = whole * (1.5 * random.uniform(4 * i + 1));
    switch (random.below(4 * i + 2, liars ? 9 : 8)) {
      case 0:
      case 1:
      case 2: trace.push_back({at, device, fleet::ChurnKind::leave, 1.0}); break;
      case 3:
      case 4: trace.push_back({at, device, fleet::ChurnKind::join, 1.0}); break;
      case 5:
      case 6: trace.push_back({at, device, fleet::ChurnKind::slow, 0.1 + random.uniform(4 * i + 3)}); break;
      case 7: trace.push_back({at, device, fleet::ChurnKind::hang, 1.0}); break;
      default: trace.push_back({at, device, fleet::ChurnKind::faulty, 1.0}); break;
    }
  }
  std::stable_sort(trace.begin(), trace.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  return trace;
}

TEST(Churn, RandomSchedulesEndWithTheSameBits) {
  const std::uint64_t expected = train(small_setting()).hash;
  Setting s = small_setting();
  s.devices = unlike_devices(5);
  s.device_ranks = 2;
  const Seconds whole = train(s).time;
  std::int64_t lost = 0, rejected = 0;
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    const bool liars = seed % 2 == 1;
    s.churn = random_schedule(seed, 5, whole, liars);
    s.verification.mode = liars ? server::VerifyMode::all : server::VerifyMode::off;
    s.verification.seed = seed;
    const Outcome outcome = train(s);
    ASSERT_EQ(outcome.hash, expected) << "schedule " << seed;
    lost += outcome.lost;
    rejected += outcome.rejected;
  }
  EXPECT_GT(lost, static_cast<std::int64_t>(kSchedules));  // the schedules do hit blocks in flight
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
