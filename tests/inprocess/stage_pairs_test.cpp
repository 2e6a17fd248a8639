// Second devices in stages, with real numbers: liars of every kind are found out and leave no trace, who tells false
// digests is found out and nobody else, and honest devices train to the same bits as without.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "churn_schedule.hpp"
#include "head_in_parts.hpp"
#include "liar_expectations.hpp"
#include "liar_runs.hpp"
#include "run.hpp"
#include "support/cases.hpp"
#include "unit/small_model.hpp"

namespace cleave::testing_run {
namespace {

using fleet::InjectedFaultKind;
using server::ClockMode;
using testing_support::all_or_few;
using Mode = server::VerifyMode;

Setting in_stages(double fraction, std::int64_t devices = 5, Mode mode = Mode::quorum) {
  Setting s = small_setting();
  s.model.n_layer = 2;
  s.batch = 6;
  s.devices = alike_devices(devices);
  s.device_ranks = 2;
  s.layout = sched::Layout::stages;
  s.verification = {.mode = mode, .fraction = fraction, .seed = 11};
  return s;
}

TEST(StagePairs, HonestDevicesTrainToTheSameBits) {
  for (const Mode mode : {Mode::quorum, Mode::audit}) {
    for (const ClockMode clock : {ClockMode::virtual_time, ClockMode::off}) {
      for (const double clip : {1.0, 0.0}) {
        Setting s = in_stages(1.0, 5, mode);
        s.clock = clock;
        s.grad_clip = clip;
        s.evaluations = 1;
        const Outcome outcome = train(s);
        EXPECT_EQ(outcome.hash, honest_bits(s));
        EXPECT_EQ(outcome.rejected, 0);
        EXPECT_TRUE(outcome.distrusted.empty());
        for (const server::Finding& finding : outcome.verification.wrong)
          ADD_FAILURE() << server::name_of(mode) << ' ' << finding.operation << ' ' << finding.device.value;
        EXPECT_EQ(outcome.verification.suspected, 0);
        EXPECT_EQ(outcome.recomputed, 0);
        EXPECT_GT(outcome.verification.checked, 2 * 2 * s.batch);
        EXPECT_EQ(outcome.witnesses > 0, mode == Mode::quorum);
      }
    }
  }
}

TEST(StagePairs, AllFamiliesAndOddShapes) {
  for (const std::string family : {"gpt2", "opt", "llama"}) {
    Setting s = in_stages(1.0, 6);
    s.model.family = family;
    s.model.n_head = 4;
    s.model.n_kv_head = family == "llama" ? 2 : 4;
    s.model.d_model = 32;
    s.model.d_ff = 70;
    s.model.seq_len = s.model.max_pos = 300;
    s.model.tie_embeddings = family != "opt";
    s.batch = 3;
    s.steps = 1;
    for (const auto& [chunk, wire] : {std::pair(128, DType::f32), {300, DType::f16}, {128, DType::bf16}}) {
      s.chunk_tokens = chunk;
      s.wire = wire;
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.hash, honest_bits(s)) << family << chunk << name_of(wire);
      EXPECT_EQ(outcome.verification.suspected, 0);
      EXPECT_GT(outcome.verification.checked, 0);
    }
  }
}

// What train says of time and bytes, simulate says, if it draws the same.
TEST(StagePairs, TakeTheTimeOfTheSimulator) {
  Setting s = in_stages(0.5);
  s.devices = unlike_devices(5);
  s.verification.pair_secret = sched::stage_scheduler_options(options_of(s)).quorum->secret;
  const Outcome real = train(s);
  const Outcome simulated = simulate(s);
  EXPECT_EQ(real.time, simulated.time);
  EXPECT_EQ(real.bytes_down, simulated.bytes_down);
  EXPECT_EQ(real.witnesses, simulated.witnesses);
  EXPECT_GT(simulated.witnesses, 0);
}

class StageLies : public ::testing::TestWithParam<InjectedFaultKind> {};

// With everything recomputed nothing false stands, whatever the lie and however rare. The two liars are of one group:
// of a pair, both could tell the same lie.
TEST_P(StageLies, NothingFalseStandsWhereEverythingIsMadeAgain) {
  std::int64_t found = 0;
  for (const Mode mode : {Mode::quorum, Mode::audit}) {
    for (const ClockMode clock : {ClockMode::virtual_time, ClockMode::off}) {
      for (const double share : {1.0, 0.05}) {
        if (all_or_few(false, true) && share < 1 && clock == ClockMode::off) continue;
        Setting s = in_stages(1.0, 5, mode);
        s.clock = clock;
        s.steps = share == 1.0 ? 3 : 6;  // so that some of the rare lies are told
        s.devices[1].group = s.devices[3].group = "liars";
        s.churn = {liar(1, share, GetParam()), liar(3, share, GetParam())};
        const Outcome outcome = train(s);
        EXPECT_EQ(outcome.hash, honest_bits(s)) << share << server::name_of(mode);
        for (const DeviceId id : outcome.distrusted) EXPECT_TRUE(id == DeviceId(1) || id == DeviceId(3)) << id.value;
        if (share == 1.0) { EXPECT_EQ(outcome.distrusted.size(), 2U) << server::name_of(mode); }
        found += std::ssize(outcome.distrusted);
      }
    }
  }
  EXPECT_GT(found, 8);
}

constexpr InjectedFaultKind kStageLies[] = {
    InjectedFaultKind::element, InjectedFaultKind::bit,  InjectedFaultKind::swap_rows, InjectedFaultKind::stale,
    InjectedFaultKind::other,   InjectedFaultKind::bias, InjectedFaultKind::zero,      InjectedFaultKind::infinity,
    InjectedFaultKind::nan,     InjectedFaultKind::mixed};
INSTANTIATE_TEST_SUITE_P(Kinds, StageLies, ::testing::ValuesIn(kStageLies),
                         [](const auto& test) { return std::string(fleet::name_of(test.param)); });

TEST(StagePairs, WhoTellsAFalseDigestIsAccusedAndNobodyElse) {
  for (const ClockMode clock : {ClockMode::virtual_time, ClockMode::off}) {
    Setting s = in_stages(1.0, 4);
    s.clock = clock;
    s.steps = 6;
    s.churn = {liar(2, 0.5, InjectedFaultKind::false_digest)};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest_bits(s));
    EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(2)});
    ASSERT_EQ(outcome.verification.wrong.size(), 1U);
    EXPECT_TRUE(outcome.verification.wrong[0].digest);
    EXPECT_EQ(outcome.verification.suspected, outcome.verification.cleared);
  }
}

// Values that no honest device can compute with do not end the run, and whoever refused them is not blamed. Where
// nothing is verified, too.
TEST(StagePairs, HugeValuesAreTracedToWhoSentThem) {
  std::int64_t found = 0;
  for (const Mode mode : {Mode::quorum, Mode::off}) {
    for (std::uint64_t run = 0; run < 6; ++run) {
      Setting s = in_stages(0.1, 5, mode);
      s.steps = 2;
      s.churn = {liar(static_cast<std::int64_t>(run % 5), 0.5, InjectedFaultKind::huge)};
      const Outcome outcome = train(s);
      for (const DeviceId id : outcome.distrusted) EXPECT_EQ(id, s.churn[0].device);
      found += std::ssize(outcome.distrusted);
    }
  }
  EXPECT_GT(found, 4);
}

TEST(StagePairs, ColludersPassOnlyWhereTheyMeet) {
  Setting s = in_stages(1.0, 3);
  s.steps = 3;
  s.churn = {liar(0, 1.0, InjectedFaultKind::colluding), liar(1, 1.0, InjectedFaultKind::colluding)};
  for (fleet::DeviceProfile& device : s.devices) device.owner = device.id.value < 2 ? "one" : "";
  const Outcome apart = train(s);
  EXPECT_EQ(apart.hash, honest_bits(s));
  EXPECT_EQ(apart.distrusted.size(), 2U);
}

TEST(StagePairs, TheServerStandsInWhereNobodyElseMay) {
  Setting s = in_stages(1.0);
  for (fleet::DeviceProfile& device : s.devices) device.group = "all";
  s.churn = {liar(1, 1.0, InjectedFaultKind::bias)};
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, honest_bits(s));
  EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(1)});
  EXPECT_EQ(outcome.witnesses, 0);
}

TEST(StagePairs, OutliveLosses) {
  for (std::uint64_t seed = 1; seed <= all_or_few(6U, 2U); ++seed) {
    Setting s = in_stages(0.5, 6);
    const Seconds horizon = train(s).time;
    s.churn = sessions_in(horizon, 0.3, 6, seed);
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest_bits(s)) << seed;
    EXPECT_TRUE(outcome.distrusted.empty()) << seed;
    EXPECT_GT(outcome.lost, 0) << seed;
  }
}

// A small model whose head is most of it, and a server that has no time to sum along, so that devices watch each other;
// with little memory, so that none has everything. Those memories for which there are stages.
std::vector<Setting> that_watch_each_other(std::int64_t devices) {
  std::vector<Setting> settings;
  constexpr std::int64_t kApart = all_or_few(8'000, 32'000);
  for (std::int64_t memory = 40'000; memory <= 200'000; memory += kApart) {
    Setting s = in_stages(1.0, devices);
    s.model.family = "opt";
    s.model.n_layer = s.model.n_head = s.model.n_kv_head = 1;
    s.model.vocab_size = 256;
    s.model.d_model = s.model.d_ff = 6;
    s.model.seq_len = s.model.max_pos = 33;
    s.batch = 9;
    s.steps = 1;
    s.wire = DType::bf16;
    s.owners = plan::OwnerPlaces::apart;
    s.server_compute = FlopsPerSecond(1e8);
    set_memory(s, memory);
    if (plan_of(s)) settings.push_back(std::move(s));
  }
  EXPECT_GT(kApart * std::ssize(settings), 80'000);
  return settings;
}

// At a head operands wait of every sequence that is open, for what an owner watches as for its own sums: with little
// memory there is none to spare, and who refuses for want of it is left out.
TEST(StagePairs, WatchersHaveRoomForEverySequenceThatIsOpen) {
  for (Setting& s : that_watch_each_other(3)) {
    for (fleet::DeviceProfile& device : s.devices) device.jitter = Seconds(0.2);  // sums come later than sequences
    const Outcome outcome = train(s);
    const std::int64_t memory = s.devices[0].memory.value();
    EXPECT_EQ(outcome.hash, honest_bits(s)) << memory;
    EXPECT_EQ(outcome.rejected, 0) << memory;
    EXPECT_TRUE(outcome.distrusted.empty()) << memory;
  }
}

// Where weights come to a stage with its first sequence, they come to those who only watch its owners as well.
TEST(StagePairs, WatchersAreSentTheirWeightsWithTheStage) {
  for (Setting& s : that_watch_each_other(2)) {
    s.preload = false;
    const Outcome outcome = train(s);
    const std::int64_t memory = s.devices[0].memory.value();
    EXPECT_EQ(outcome.hash, honest_bits(s)) << memory;
    EXPECT_EQ(outcome.lost, 0) << memory;
    EXPECT_EQ(outcome.redone, 0) << memory;
  }
}

// With a 16-bit wire sums of large gradients take more memory than others. A device that has none for that refuses, and
// what it had goes to others as after a loss; it has not lied.
TEST(StagePairs, WhoHasNoMemoryForLargeSumsIsNotAccused) {
  std::int64_t refused = 0;
  for (std::int64_t memory = 115'000; memory <= 140'000; memory += 5'000) {
    Setting s = in_stages(1.0, 4);
    s.model = model::small_model("opt", 2, 64, 256, 1);
    s.model.n_head = s.model.n_kv_head = 1;
    s.batch = 1;
    s.wire = DType::f16;
    s.owners = plan::OwnerPlaces::replicas;
    set_memory(s, memory);
    if (!plan_of(s)) continue;
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest_bits(s)) << memory;
    EXPECT_TRUE(outcome.distrusted.empty()) << memory;
    refused += outcome.rejected;
  }
  EXPECT_GT(refused, 0);
}

// A fifth of the devices lies in a fifth of its tasklets or more. bench/quorum_trace runs more seeds, from 1 % on.
TEST(StagePairs, AFifthOfTheDevicesLeavesNoTrace) {
  Setting s = stage_liar_run_setting();
  s.batch = 64;
  s.steps = 12;
  const std::uint64_t honest = honest_bits(s);
  for (std::uint64_t seed = 2; seed <= all_or_few(4U, 2U); ++seed) {
    s.churn = {draw_liar(seed)};
    s.verification.seed = seed;
    s.churn[0].factor = std::max(s.churn[0].factor, 0.2);  // fewer tasklets than in the bench
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest) << seed;
    EXPECT_EQ(outcome.distrusted, std::vector{s.churn[0].device}) << seed;
    EXPECT_EQ(outcome.parts_stay, 0) << seed;
  }
}

// With pairs this few the liar is found out some steps after its first lie.
TEST(StagePairs, WhatALiarDidInEarlierStepsIsTakenBack) {
  expect_earlier_steps_taken_back([](Mode mode) {
    Setting s = in_stages(0.02, 5, mode);
    s.steps = 40;
    s.verification.rollback = 40;
    s.churn = {liar(1, 0.3, InjectedFaultKind::element)};
    return s;
  });
}

// The lies of these runs do harm where nobody looks, or the tests above could not fail.
TEST(StagePairs, WithoutThemLiesStay) {
  for (const InjectedFaultKind kind : kStageLies) {
    Setting s = in_stages(0.0, 5, Mode::off);
    s.churn = {liar(1, 1.0, kind)};
    const Outcome outcome = train(s);
    EXPECT_TRUE(outcome.hash != honest_bits(s) || !outcome.distrusted.empty()) << fleet::name_of(kind);
  }
}

}  // namespace
}  // namespace cleave::testing_run
