// 200 seeded random churn schedules: devices leave, join, slow down, hang and lie at any moment; and devices that are
// back before the server looks. The bits stay the same.
#include <gtest/gtest.h>

#include <tuple>

#include "churn_schedule.hpp"
#include "run.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

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

// The only device that can hold the smallest block leaves: the server goes on alone, until it is back.
TEST(Churn, NobodyLeftHasRoom) {
  Setting s = small_setting();
  s.steps = 4;
  const std::uint64_t expected = train(s).hash;
  s.devices = alike_devices(3);
  for (const std::size_t small : {1, 2}) s.devices[small].memory = Bytes(400);
  const Seconds whole = train(s).time;
  for (const double moment : {0.1, 0.3, 0.6}) {
    s.churn = {{whole * moment, DeviceId(0), fleet::ChurnKind::leave, 1.0},
               {whole * (moment + 0.2), DeviceId(0), fleet::ChurnKind::join, 1.0}};
    EXPECT_EQ(train(s).hash, expected) << moment;
  }
}

// Devices with room for a part of a block at a time come and go faster than they answer, so that what is lost is
// planned again for few devices that are busy for long.
TEST(Churn, LittleMemoryInRealTime) {
  Setting s;
  s.model.family = "llama";
  s.model.d_model = 128;
  s.model.d_ff = 352;
  s.model.seq_len = s.model.max_pos = 200;
  s.batch = 8;
  s.steps = 1;
  const std::uint64_t wanted = train(s).hash;
  s.devices = alike_devices(12);
  for (std::size_t i = 0; i < 10; ++i) s.devices[i].memory = Bytes(256'000);
  s.clock = server::ClockMode::off;
  std::int64_t lost = 0;
  for (int run = 0; run < all_or_few(8, 2); ++run) {
    s.device_ranks = 1 + run % 2;
    s.churn = fleet::draw_churn(
        {.mean_session = Seconds(0.02), .mean_absence = Seconds(0.1), .seed = static_cast<std::uint64_t>(run)}, 12,
        Seconds(20));
    const Outcome got = train(s);
    EXPECT_EQ(got.hash, wanted) << "run " << run;
    lost += got.lost;
  }
  EXPECT_GT(lost, 0) << "nobody held anything when he left";
}

// In real time a server that is busy learns of several departures and returns at once, and devices go on with what they
// were asked before they left.
class BackBeforeAnybodyLooks : public ::testing::TestWithParam<std::tuple<DType, sched::Layout, double>> {};

TEST_P(BackBeforeAnybodyLooks, TheSameBits) {
  const auto& [wire, layout, fraction] = GetParam();
  Setting s = small_setting();
  s.model.n_layer = 2;
  s.wire = wire;
  const std::uint64_t wanted = train(s).hash;
  s.devices = alike_devices(4);
  s.device_ranks = 2;
  s.layout = layout;
  s.clock = server::ClockMode::off;
  if (fraction > 0) s.verification = {.mode = server::VerifyMode::quorum, .fraction = fraction};
  s.churn = bursts();
  std::int64_t lost = 0;
  for (int run = 0; run < all_or_few(4, 1); ++run) {
    const Outcome got = train(s);
    EXPECT_EQ(got.hash, wanted) << "run " << run;
    EXPECT_EQ(got.rejected, 0);
    lost += got.lost;
  }
  EXPECT_GT(lost, 0) << "nobody held anything when he left";
}

INSTANTIATE_TEST_SUITE_P(Churn, BackBeforeAnybodyLooks,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Values(sched::Layout::stages, sched::Layout::tiles),
                                            ::testing::Values(0.0, 0.5, 1.0)));

}  // namespace
}  // namespace cleave::testing_run
