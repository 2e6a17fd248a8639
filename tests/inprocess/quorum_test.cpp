// Second devices that return digests: liars of every kind are found out and leave no trace of their step, who tells
// false digests is found out and nobody else, and honest devices train to the same bits as without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "churn_schedule.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

using fleet::InjectedFaultKind;
using server::ClockMode;
using Mode = server::VerifyMode;

Setting paired(Setting s, double fraction, std::int64_t devices = 5) {
  s.devices = unlike_devices(devices);
  s.device_ranks = 2;
  s.verification = {.mode = Mode::quorum, .fraction = fraction};
  return s;
}

TEST(Quorum, HonestDevicesTrainToTheSameBits) {
  for (const ClockMode clock : {ClockMode::virtual_time, ClockMode::off}) {
    for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
      for (const double clip : {1.0, 0.0}) {
        Setting s = paired(clip > 0 ? Setting{} : small_setting(), 0.5);
        s.steps = 2;
        s.wire = wire;
        s.clock = clock;
        s.grad_clip = clip;
        s.parts = kSmallParts;
        const Outcome outcome = train(s);
        EXPECT_EQ(outcome.hash, honest_bits(s));
        EXPECT_EQ(outcome.rejected, 0);
        EXPECT_TRUE(outcome.distrusted.empty());
        EXPECT_TRUE(outcome.verification.wrong.empty());
        EXPECT_EQ(outcome.verification.suspected, 0);
        EXPECT_EQ(outcome.recomputed, 0);
        const auto blocks = static_cast<double>(outcome.verification.blocks);
        EXPECT_NEAR(static_cast<double>(outcome.verification.checked) / blocks, 0.5, 5 * 0.5 / std::sqrt(blocks));
        EXPECT_GT(outcome.witnesses, outcome.verification.checked / 2);
      }
    }
  }
}

// Operands are kept for pairs while row groups and the two buffers of logits are used again.
TEST(Quorum, WhatAPairNeedsIsNotOverwritten) {
  for (const std::int64_t groups : {2, 7}) {
    Setting s = paired({}, 1.0);
    s.steps = 2;
    s.row_groups = groups;
    s.keep_columns = plan::KeepColumns::always;
    s.grad_clip = 0;
    const Outcome outcome = train(s);
    s.row_groups = 1;
    EXPECT_EQ(outcome.hash, honest_bits(s));
    EXPECT_TRUE(outcome.distrusted.empty());
    EXPECT_EQ(outcome.verification.suspected, 0);
    EXPECT_EQ(outcome.verification.checked, outcome.verification.blocks);
  }
}

constexpr InjectedFaultKind kLies[] = {
    InjectedFaultKind::element, InjectedFaultKind::bit,  InjectedFaultKind::swap_rows, InjectedFaultKind::stale,
    InjectedFaultKind::other,   InjectedFaultKind::bias, InjectedFaultKind::mixed};

class QuorumLies : public ::testing::TestWithParam<std::tuple<InjectedFaultKind, ClockMode>> {};

// With every tasklet paired nothing false stands, whatever the lie and how rare: the first that differs tells.
TEST_P(QuorumLies, NothingFalseStandsWhereEveryTaskletIsPaired) {
  const auto& [kind, clock] = GetParam();
  std::int64_t found = 0;
  // What repeats an earlier block is honest until there is one of that shape.
  const bool repeats = kind == InjectedFaultKind::stale || kind == InjectedFaultKind::other;
  for (const double share : {1.0, repeats ? 0.3 : 0.05}) {
    Setting s = paired(small_setting(), 1.0);
    s.clock = clock;
    s.steps = 3;
    s.churn = {liar(1, share, kind), liar(3, share, kind)};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest_bits(s)) << share;
    for (const DeviceId id : outcome.distrusted) EXPECT_TRUE(id == DeviceId(1) || id == DeviceId(3)) << id.value;
    if (share == 1.0) { EXPECT_EQ(outcome.distrusted.size(), 2U); }
    found += std::ssize(outcome.distrusted);
  }
  EXPECT_GT(found, 2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, QuorumLies,
                         ::testing::Combine(::testing::ValuesIn(kLies),
                                            ::testing::Values(ClockMode::virtual_time, ClockMode::off)),
                         [](const auto& test) {
                           return std::string(fleet::name_of(std::get<0>(test.param))) +
                                  (std::get<1>(test.param) == ClockMode::off ? "_off" : "_virtual");
                         });

TEST(Quorum, WhoTellsAFalseDigestIsAccusedAndNobodyElse) {
  for (const ClockMode clock : {ClockMode::virtual_time, ClockMode::off}) {
    for (const double share : {1.0, 0.2}) {
      Setting s = paired(small_setting(), 0.5);
      s.clock = clock;
      s.steps = 4;
      s.churn = {liar(2, share, InjectedFaultKind::false_digest)};
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.hash, honest_bits(s));
      EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(2)});
      ASSERT_EQ(outcome.verification.wrong.size(), 1U);
      EXPECT_TRUE(outcome.verification.wrong[0].digest);
      EXPECT_EQ(outcome.verification.suspected, outcome.verification.cleared);
      EXPECT_EQ(server::slip_probability(s.verification, outcome.verification), 0.0);
    }
  }
}

// Liars that are found out leave no trace of that step, at a share of pairs at which other lies of it went unseen.
TEST(Quorum, ALiarThatIsFoundOutLeavesNoTraceOfItsStep) {
  std::int64_t found = 0, recomputed = 0;
  for (const double clip : {1.0, 0.0}) {
    for (int run = 0; run < 8; ++run) {
      Setting s = paired(small_setting(), 0.25);
      s.steps = 1;
      s.grad_clip = clip;
      s.churn = {liar(1, 1.0, InjectedFaultKind::element)};
      const Outcome outcome = train(s);
      recomputed += outcome.recomputed;
      if (outcome.distrusted.empty()) continue;
      ++found;
      EXPECT_EQ(outcome.hash, honest_bits(s));
    }
  }
  EXPECT_GT(found, 5);
  EXPECT_GT(recomputed, 5);
}

// Two that lie alike pass where one witnesses the other, and are found out by everybody else; declared as one group
// they never meet.
TEST(Quorum, ColludersPassOnlyWhereTheyMeet) {
  Setting s = paired(small_setting(), 1.0, 3);
  s.steps = 4;
  s.churn = {liar(0, 1.0, InjectedFaultKind::colluding), liar(1, 1.0, InjectedFaultKind::colluding)};
  s.devices = alike_devices(3);
  for (fleet::DeviceProfile& device : s.devices) device.owner = device.id.value < 2 ? "one" : "";
  const Outcome apart = train(s);
  EXPECT_EQ(apart.hash, honest_bits(s));
  EXPECT_EQ(apart.distrusted.size(), 2U);

  s.devices.resize(2);  // nobody else is there
  for (fleet::DeviceProfile& device : s.devices) device.owner.clear();
  s.steps = 1;
  const Outcome alone = train(s);
  EXPECT_TRUE(alone.distrusted.empty());
  EXPECT_NE(alone.hash, honest_bits(s));
}

// Who owns everything witnesses nothing: the server stands in.
// Ranks that could choose which of them are apart could choose their witnesses: two that collude would say that all
// others are on the host of one of them.
TEST(Quorum, WhatRanksSayOfTheirHostsChangesNoDraw) {
  Setting s = paired(small_setting(), 1.0, 6);
  s.device_ranks = 3;
  const Outcome plain = train(s);
  for (const std::vector<std::string>& said :
       {std::vector<std::string>{"a", "a", "b"}, {"a", "b", "c"}, {"a", "a", "a"}}) {
    s.hosts = said;
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.time, plain.time);
    EXPECT_EQ(outcome.bytes_down, plain.bytes_down);
    EXPECT_EQ(outcome.witnesses, plain.witnesses);
  }
}

TEST(Quorum, TheServerStandsInWhereNobodyElseMay) {
  for (const ClockMode clock : {ClockMode::virtual_time, ClockMode::off}) {
    Setting s = paired(small_setting(), 1.0);
    s.clock = clock;
    for (fleet::DeviceProfile& device : s.devices) device.group = "all";
    s.churn = {liar(1, 1.0, InjectedFaultKind::bias)};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest_bits(s));
    EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(1)});
    EXPECT_EQ(outcome.witnesses, 0);
    EXPECT_EQ(outcome.verification.suspected, 0);
  }
}

// Witnesses leave, hang, slow down and come back.
TEST(Quorum, OutlivesLosses) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Setting s = paired({}, 0.5, 6);
    const Seconds horizon = train(s).time;
    s.churn = sessions_in(horizon, 0.2, 6, seed);
    for (std::int64_t device = 0; device < 3; ++device)
      s.churn.push_back(
          {horizon * (0.1 + 0.2 * static_cast<double>(device)), DeviceId(device), fleet::ChurnKind::hang});
    std::ranges::stable_sort(s.churn, {}, &fleet::ChurnEvent::at);
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest_bits(s)) << seed;
    EXPECT_TRUE(outcome.distrusted.empty()) << seed;
    EXPECT_GT(outcome.lost, 0) << seed;
  }
}

}  // namespace
}  // namespace cleave::testing_run
