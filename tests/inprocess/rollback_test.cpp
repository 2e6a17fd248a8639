// Steps that are taken back: a device that is found out leaves no trace, not even in the steps before, as far back as
// verify.rollback reaches.
#include <gtest/gtest.h>

#include "run.hpp"

namespace cleave::testing_run {
namespace {

using fleet::InjectedFaultKind;
using Mode = server::VerifyMode;

Setting checked(Mode mode, double fraction, std::int64_t rollback, std::int64_t steps) {
  Setting s = small_setting();
  s.devices = alike_devices(5);
  s.device_ranks = 2;
  s.row_groups = 4;
  s.steps = steps;
  s.verification = {.mode = mode, .fraction = fraction, .rollback = rollback, .seed = 7};
  return s;
}

Setting with_liar(Setting s, double share, InjectedFaultKind kind = InjectedFaultKind::element) {
  s.churn = {{Seconds(0), DeviceId(1), fleet::ChurnKind::faulty, share, kind}};
  return s;
}

// With pairs this few the liar is found out some steps after its first lie.
TEST(Rollback, WhatALiarDidInEarlierStepsIsTakenBack) {
  std::int64_t taken_back = 0;
  for (const Mode mode : {Mode::quorum, Mode::audit}) {
    for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
      Setting s = with_liar(checked(mode, 0.05, 40, 40), 0.3);
      s.clock = clock;
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(1)});
      EXPECT_EQ(outcome.parts_stay, 0);
      EXPECT_EQ(outcome.hash, honest_bits(s));
      taken_back += outcome.taken_back;
    }
  }
  EXPECT_GT(taken_back, 0);
}

// A fifth of the devices, every kind of lie that a digest may meet.
TEST(Rollback, EveryKindOfLieIsTakenBack) {
  for (const InjectedFaultKind kind : {InjectedFaultKind::element, InjectedFaultKind::bit, InjectedFaultKind::swap_rows,
                                       InjectedFaultKind::stale, InjectedFaultKind::other, InjectedFaultKind::mixed}) {
    const Setting s = with_liar(checked(Mode::quorum, 0.1, 20, 20), 0.5, kind);
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(1)});
    EXPECT_EQ(outcome.hash, honest_bits(s)) << static_cast<int>(kind);
  }
}

// Updates that begin before the last block is in are taken back too.
TEST(Rollback, WithoutClippingToo) {
  Setting s = with_liar(checked(Mode::quorum, 0.1, 20, 20), 0.5);
  s.grad_clip = 0;
  EXPECT_EQ(train(s).hash, honest_bits(s));
}

// The same seeds without rollback end with other bits in some runs, or the tests above could not fail.
TEST(Rollback, WithoutItTheyStay) {
  std::int64_t other = 0;
  for (int run = 0; run < 12; ++run) {
    const Setting s = with_liar(checked(Mode::quorum, 0.05, 0, 20), 0.3);
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.taken_back, 0);
    other += outcome.hash != honest_bits(s) ? 1 : 0;
  }
  EXPECT_GT(other, 0);
}

// Who lies once in a long while has had parts in steps that are not kept: the run says so.
TEST(Rollback, WhatIsOutOfReachIsSaid) {
  std::int64_t stays = 0;
  for (int run = 0; run < 12 && stays == 0; ++run)
    stays += train(with_liar(checked(Mode::quorum, 0.05, 1, 30), 0.05)).parts_stay;
  EXPECT_GT(stays, 0);
}

TEST(Rollback, NobodyLiesAndNothingIsTakenBack) {
  const Setting s = checked(Mode::quorum, 0.5, 3, 6);
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.taken_back, 0);
  EXPECT_EQ(outcome.parts_stay, 0);
  EXPECT_EQ(outcome.hash, honest_bits(s));
}

}  // namespace
}  // namespace cleave::testing_run
