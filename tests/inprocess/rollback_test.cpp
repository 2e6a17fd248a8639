// Steps that are taken back: a device that is found out leaves no trace, not even in the steps before, as far back as
// verify.rollback reaches.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "liar_expectations.hpp"
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
  expect_earlier_steps_taken_back([](Mode mode) { return with_liar(checked(mode, 0.05, 40, 40), 0.3); });
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
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Setting s = with_liar(checked(Mode::quorum, 0.05, 0, 20), 0.3);
    s.verification.seed = seed;
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.taken_back, 0);
    other += outcome.hash != honest_bits(s) ? 1 : 0;
  }
  EXPECT_GT(other, 0);
}

// Who lies once in a long while has had parts in steps that are not kept: the run says so.
TEST(Rollback, WhatIsOutOfReachIsSaid) {
  std::int64_t stays = 0;
  for (std::uint64_t seed = 0; seed < 12 && stays == 0; ++seed) {
    Setting s = with_liar(checked(Mode::quorum, 0.05, 1, 30), 0.05);
    s.verification.seed = seed;
    stays += train(s).parts_stay;
  }
  EXPECT_GT(stays, 0);
}

// The step before an evaluation is as much to be taken back as those before it.
TEST(Rollback, WhoIsFoundOutInAnEvaluationLeavesNoTraceOfTheStepBefore) {
  std::int64_t found_in_evaluation = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Setting s = with_liar(checked(Mode::audit, 0.1, 1, 1), 1.0);
    s.row_groups = 1;
    s.verification.seed = seed;
    s.evaluations = 10;
    const Outcome outcome = train(s);
    if (outcome.distrusted.empty()) continue;
    found_in_evaluation += outcome.taken_back;
    EXPECT_EQ(outcome.hash, honest_bits(s)) << seed;
  }
  EXPECT_GT(found_in_evaluation, 0);
}

// States in memory, as a run has them in checkpoints.
class States : public server::EarlierStates {
 public:
  explicit States(server::ParameterStore& parameters) : parameters_(parameters) {}
  void keep(std::int64_t step) {
    std::vector<Values>& values = states_[step];
    values.clear();
    for (const server::Parameter& p : parameters_.parameters())
      values.push_back({{p.value.begin(), p.value.end()}, p.exp_avg, p.exp_avg_sq});
  }
  void drop_before(std::int64_t step) { states_.erase(states_.begin(), states_.lower_bound(step)); }
  void drop_after(std::int64_t step) { states_.erase(states_.upper_bound(step), states_.end()); }
  std::optional<std::int64_t> find(std::int64_t wanted, std::int64_t reach) override {
    std::optional<std::int64_t> found;
    for (const auto& [step, values] : states_) {
      if (step < reach && (!found || step <= wanted)) found = step;
    }
    return found;
  }
  void load(std::int64_t step) override {
    EXPECT_GE(condemned_, 0) << "gone back before anybody was told";
    std::size_t i = 0;
    for (server::Parameter& p : parameters_.parameters()) {
      const Values& values = states_.at(step)[i++];
      std::ranges::copy(values.value, p.value.begin());
      p.exp_avg = values.exp_avg;
      p.exp_avg_sq = values.exp_avg_sq;
    }
  }
  void condemn(std::int64_t step, const std::vector<DeviceId>& devices) override {
    condemned_ = step;
    EXPECT_EQ(devices, std::vector{DeviceId(1)});
  }
  [[nodiscard]] std::int64_t condemned() const { return condemned_; }

 private:
  struct Values {
    std::vector<float> value, exp_avg, exp_avg_sq;
  };
  server::ParameterStore& parameters_;
  std::map<std::int64_t, std::vector<Values>> states_;
  std::int64_t condemned_ = -1;
};

// Three processes: nobody lies, one lies and nobody looks, everything is looked at. The last one goes back to before it
// began, as far as there are states.
class ResumedRollback : public ::testing::Test {
 protected:
  static constexpr std::int64_t kLies = 2, kLast = 5, kSteps = 8;

  Outcome resumed() {
    parameters_ = initial_parameters(checked(Mode::audit, 0, 3, kSteps));
    Handover handover{.parts = {}, .earlier = &states_, .on_state = [&](std::int64_t step) { states_.keep(step); }};
    (void)train(checked(Mode::audit, 0, 3, kSteps), parameters_, 0, kLies, &handover);
    (void)train(with_liar(checked(Mode::audit, 0, 3, kSteps), 1.0), parameters_, kLies, kLast, &handover);
    change_(handover);
    last_ = with_liar(checked(Mode::audit, 1, 3, kSteps), 1.0);
    return train(last_, parameters_, kLast, kSteps, &handover);
  }
  std::uint64_t honest() { return honest_bits(checked(Mode::audit, 0, 3, kSteps)); }

  server::ParameterStore parameters_;
  States states_{parameters_};
  std::function<void(Handover&)> change_ = [](Handover&) {};
  Setting last_;
};

TEST_F(ResumedRollback, GoesBackToBeforeItWasResumed) {
  const Outcome outcome = resumed();
  EXPECT_EQ(outcome.parts_known_from, 2);
  EXPECT_EQ(outcome.went_back_to, 2);
  EXPECT_EQ(states_.condemned(), 2);
  EXPECT_EQ(outcome.hash, honest());
  EXPECT_EQ(outcome.parts_stay, 1);  // what it did, honestly, in the two steps before
}

TEST_F(ResumedRollback, AnOlderStateWillDo) {
  change_ = [&](Handover&) { states_.drop_after(1); };
  const Outcome outcome = resumed();
  EXPECT_EQ(outcome.went_back_to, 1);
  EXPECT_EQ(states_.condemned(), 2);
  EXPECT_EQ(outcome.hash, honest());
}

TEST_F(ResumedRollback, GoesAsFarAsThereAreStatesAndSaysWhatStays) {
  change_ = [&](Handover&) { states_.drop_before(4); };
  const Outcome outcome = resumed();
  EXPECT_EQ(outcome.went_back_to, 4);
  EXPECT_EQ(states_.condemned(), 4);
  EXPECT_EQ(outcome.parts_stay, 1);
  EXPECT_NE(outcome.hash, honest());
}

TEST_F(ResumedRollback, WithoutStatesOrARecordItSaysThatAllStays) {
  for (const bool record : {false, true}) {
    change_ = [&](Handover& handover) {
      if (record) states_.drop_before(100);
      if (!record) handover.parts.clear();
    };
    const Outcome outcome = resumed();
    EXPECT_EQ(outcome.parts_known_from, record ? std::optional<std::int64_t>(2) : std::nullopt);
    EXPECT_EQ(outcome.parts_stay, 1);
    EXPECT_NE(outcome.hash, honest());
  }
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
