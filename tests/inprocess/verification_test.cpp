// Liars of every kind under every mode of verification: what each mode promises about the parameters, and that nobody
// is accused who did not lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "run.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using fleet::InjectedFaultKind;
using testing_support::all_or_few;
using Mode = server::VerifyMode;

constexpr InjectedFaultKind kKinds[] = {
    InjectedFaultKind::element,   InjectedFaultKind::bit,  InjectedFaultKind::swap_rows, InjectedFaultKind::zero,
    InjectedFaultKind::stale,     InjectedFaultKind::bias, InjectedFaultKind::nan,       InjectedFaultKind::infinity,
    InjectedFaultKind::colluding, InjectedFaultKind::mixed};

// Two of five devices lie; `share` of their blocks is wrong.
Setting with_liars(InjectedFaultKind kind, double share, DType wire) {
  Setting s;
  s.wire = wire;
  s.devices = unlike_devices(5);
  s.device_ranks = 2;
  for (const std::int64_t liar : {1, 3})
    s.churn.push_back({Seconds(0), DeviceId(liar), fleet::ChurnKind::faulty, share, kind});
  return s;
}

std::uint64_t honest_hash(DType wire) {
  static std::map<DType, std::uint64_t> known;
  if (!known.contains(wire)) {
    Setting s;
    s.wire = wire;
    known[wire] = train(s).hash;
  }
  return known[wire];
}

void expect_only_liars_accused(const Outcome& outcome) {
  for (const DeviceId id : outcome.distrusted) EXPECT_TRUE(id == DeviceId(1) || id == DeviceId(3)) << id.value;
  std::set<DeviceId> found;
  for (const server::Finding& finding : outcome.verification.wrong) found.insert(finding.device);
  EXPECT_EQ(std::ssize(found), std::ssize(outcome.distrusted));
}

class Liars : public ::testing::TestWithParam<std::tuple<InjectedFaultKind, DType>> {
 protected:
  [[nodiscard]] static InjectedFaultKind kind() { return std::get<0>(GetParam()); }
  [[nodiscard]] static DType wire() { return std::get<1>(GetParam()); }
};

TEST_P(Liars, AuditOfEveryBlockKeepsEveryBit) {
  Setting s = with_liars(kind(), 1.0, wire());
  s.verification = {.mode = Mode::audit, .fraction = 1.0, .seed = 5};
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, honest_hash(wire()));
  EXPECT_EQ(outcome.distrusted.size(), 2U);
  const std::int64_t refused = std::count_if(outcome.verification.wrong.begin(), outcome.verification.wrong.end(),
                                             [](const server::Finding& finding) { return !finding.checked; });
  EXPECT_EQ(outcome.verification.checked + refused, outcome.verification.blocks);  // what is not finite is not drawn
  EXPECT_EQ(outcome.verification.suspected, 0);                                    // audits do not look at it that way
  EXPECT_EQ(server::slip_probability(s.verification, outcome.verification), 0.0);
  expect_only_liars_accused(outcome);
}

// What `all` cannot see is below the bound of rounding: a flipped low bit, and with 16-bit results a bias of 1 %.
bool may_hide_in_rounding(InjectedFaultKind kind, DType wire) {
  return kind == InjectedFaultKind::bit || kind == InjectedFaultKind::mixed ||
         (kind == InjectedFaultKind::bias && wire != DType::f32);
}

TEST_P(Liars, CheckingEveryBlockKeepsEveryBit) {
  Setting s = with_liars(kind(), 1.0, wire());
  s.verification = {.mode = Mode::all, .seed = 5};
  const Outcome outcome = train(s);
  if (!may_hide_in_rounding(kind(), wire())) {
    EXPECT_EQ(outcome.hash, honest_hash(wire()));
    EXPECT_EQ(outcome.distrusted.size(), 2U);
  }
  EXPECT_EQ(outcome.verification.cleared, 0);
  EXPECT_LE(outcome.verification.largest_ratio, 1.0);
  expect_only_liars_accused(outcome);
}

TEST_P(Liars, SamplesFindTheLiars) {
  Setting s = with_liars(kind(), 1.0, wire());
  s.steps = 4;
  s.verification = {.mode = Mode::sample, .fraction = 0.3, .seed = 5};
  try {
    const Outcome outcome = train(s);
    if (!may_hide_in_rounding(kind(), wire())) { EXPECT_EQ(outcome.distrusted.size(), 2U); }
    EXPECT_LT(outcome.verification.checked, outcome.verification.blocks / 2);
    expect_only_liars_accused(outcome);
  } catch (const CheckFailure&) {  // a flipped exponent that was not drawn may end the run, which then says so
    EXPECT_TRUE(kind() == InjectedFaultKind::bit || kind() == InjectedFaultKind::mixed);
  }
}

std::string name_of(const ::testing::TestParamInfo<Liars::ParamType>& test) {
  return std::string(fleet::name_of(std::get<0>(test.param))) +
         (std::get<1>(test.param) == DType::f32 ? "_fp32" : "_bf16");
}

constexpr DType kLiarTypes[] = {DType::bf16, DType::f32};
INSTANTIATE_TEST_SUITE_P(Kinds, Liars,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::ValuesIn(std::span(kLiarTypes).first(all_or_few(2, 1)))),
                         name_of);

// A finite number that nobody can compute with, in a block that nobody looked at, makes honest devices refuse what
// comes next, and the server fail: the step is run again, each block is looked at, and who sent it is found out.
TEST(Verification, HugeValuesAreTracedToWhoSentThem) {
  std::int64_t found = 0;
  for (const Wire& wire : kSomeWires) {
    for (const Mode mode : {Mode::sample, Mode::audit, Mode::quorum}) {
      for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
        Setting s = with_liars(InjectedFaultKind::huge, 0.3, wire);
        s.steps = 1;
        s.clock = clock;
        s.verification = {.mode = mode, .fraction = 0.05, .seed = 1};
        const Outcome outcome = train(s);
        expect_only_liars_accused(outcome);
        found += std::ssize(outcome.distrusted);
      }
    }
  }
  EXPECT_GT(found, 2);
}

// A device that is found out in a step has no part in what that step leaves behind: neither in this attempt, nor, where
// gradients are not clipped and updates begin before the backward pass ends, in what was updated by then.
TEST(Verification, ALiarThatIsFoundOutLeavesNoTraceOfItsStep) {
  for (const double clip : {1.0, 0.0}) {
    for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
      Setting s = small_setting();
      s.steps = 1;
      s.grad_clip = clip;
      const std::uint64_t honest = train(s).hash;
      s.clock = clock;
      s.devices = unlike_devices(4);
      s.device_ranks = 2;
      s.churn = {{Seconds(0), DeviceId(1), fleet::ChurnKind::faulty, 1.0, InjectedFaultKind::element}};
      constexpr int kSeeds = all_or_few(6, 2);
      std::int64_t found = 0, recomputed = 0;
      for (const Mode mode : {Mode::sample, Mode::audit}) {
        for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
          s.verification = {.mode = mode, .fraction = 0.25, .seed = seed};
          const Outcome outcome = train(s);
          recomputed += outcome.recomputed;
          if (outcome.distrusted.empty()) continue;  // none of its blocks was drawn
          ++found;
          EXPECT_EQ(outcome.hash, honest) << "seed " << seed << ", clip " << clip;
          EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(1)});
        }
      }
      EXPECT_GE(found, kSeeds);
      EXPECT_GE(recomputed, kSeeds);
    }
  }
}

// The generator's fifth of the fleet lies; the run ends as the honest one.
TEST(Verification, AFifthOfTheFleetLies) {
  for (const Mode mode : {Mode::all, Mode::audit}) {
    Setting s;
    s.devices = unlike_devices(10);
    s.churn = fleet::draw_churn({.faulty_fraction = 0.2, .seed = 2}, 10, Seconds(1e6));
    ASSERT_GE(s.churn.size(), 1U);
    s.verification = {.mode = mode, .fraction = 1.0, .seed = 5};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest_hash(DType::f32));
    EXPECT_EQ(outcome.distrusted.size(), s.churn.size());
  }
}

TEST(Verification, HonestBlocksAreNeverRedone) {
  for (const Mode mode : {Mode::sample, Mode::all, Mode::audit}) {
    for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
      Setting s;
      s.wire = wire;
      s.devices = unlike_devices(7);
      s.verification = {.mode = mode, .fraction = 0.5, .seed = 5};
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.rejected, 0);
      EXPECT_TRUE(outcome.verification.wrong.empty());
      const auto checked = static_cast<double>(outcome.verification.checked),
                 blocks = static_cast<double>(outcome.verification.blocks);
      if (mode == Mode::all) {
        EXPECT_EQ(checked, blocks);
      } else {
        EXPECT_NEAR(checked / blocks, 0.5, 5 * 0.5 / std::sqrt(blocks));  // five standard deviations
      }
    }
  }
}

// Nothing is drawn here: an honest device never returns what is not finite.
TEST(Verification, WhatIsNotFiniteIsRefusedInEveryMode) {
  for (const InjectedFaultKind kind : {InjectedFaultKind::nan, InjectedFaultKind::infinity}) {
    for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
      const Outcome outcome = train(with_liars(kind, 1.0, wire));
      EXPECT_EQ(outcome.hash, honest_hash(wire));
      EXPECT_EQ(outcome.distrusted.size(), 2U);
      EXPECT_EQ(outcome.verification.checked, 0);
    }
  }
}

// Sums over equal rows may err more than roundings of random sign would: at worst such a block is computed again, and
// found right. Equal terms round alike, so the error of a sum of k of them grows like k, and the bound like its root.
// Every set of kernels adds 256 terms in one chain (its kc is 256 or 384), so a weight gradient over 256 tokens errs
// most beside its bound, and by the same amount whatever the kernels.
TEST(Verification, EqualTokensCostAtWorstARecomputation) {
  Setting s;
  s.batch = 4;
  ASSERT_EQ(s.batch * s.model.seq_len, 256);
  s.model.family = "llama";  // no table of positions: every row of every activation is the same
  s.model.tie_embeddings = false;
  s.one_token = true;
  const std::uint64_t honest = train(s).hash;
  s.devices = unlike_devices(3);
  s.verification = {.mode = Mode::all, .seed = 5};
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, honest);
  EXPECT_EQ(outcome.rejected, 0);
  EXPECT_TRUE(outcome.distrusted.empty());
  EXPECT_GT(outcome.verification.suspected, 0);  // else this test tries nothing
  EXPECT_EQ(outcome.verification.suspected, outcome.verification.cleared);
}

TEST(Verification, ALiarThatLiesNowAndThenIsFoundAtItsFirstLie) {
  Setting s = with_liars(InjectedFaultKind::element, 0.2, DType::f32);
  s.steps = 4;
  s.verification = {.mode = Mode::all, .seed = 5};
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.distrusted.size(), 2U);
  EXPECT_EQ(outcome.rejected, 2);
  s.verification = {.mode = Mode::off};
  const std::uint64_t unchecked = train(s).hash;
  s.churn.clear();
  const std::uint64_t honest = train(s).hash;
  EXPECT_EQ(outcome.hash, honest);
  EXPECT_NE(unchecked, honest);
}

TEST(Verification, ProbabilitiesInClosedForm) {
  server::VerificationReport report;
  const server::Verification sample{.mode = Mode::sample, .fraction = 0.25};
  EXPECT_EQ(server::slip_probability(sample, report), 0.0);
  for (const std::int64_t device : {4, 4, 6}) report.wrong.push_back({.device = DeviceId(device)});
  report.wrong.push_back({.device = DeviceId(9), .checked = false});  // always seen, whatever is drawn
  EXPECT_DOUBLE_EQ(server::slip_probability(sample, report), 1 - 0.25 * 0.25);
  EXPECT_EQ(server::slip_probability({.mode = Mode::all}, report), 0.0);
  EXPECT_TRUE(std::isnan(server::slip_probability({.mode = Mode::off}, report)));
  // (1 - 0.25 q)^200 = 0.05
  const double q = server::missed_share(sample, 200);
  EXPECT_NEAR(std::pow(1 - 0.25 * q, 200), 0.05, 1e-12);
  EXPECT_EQ(server::missed_share(sample, 1), 1.0);
}

}  // namespace
}  // namespace cleave::testing_run
