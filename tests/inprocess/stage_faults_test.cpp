// Training in stages while devices come and go, turn out slow, and messages are damaged: the bits of training in tiles.
#include <gtest/gtest.h>

#include <algorithm>

#include "churn_schedule.hpp"
#include "cleave/model/step_text.hpp"
#include "faulty_run.hpp"
#include "run.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

constexpr std::uint64_t kSchedules = all_or_few(200, 20), kSchedulesOf16Bits = all_or_few(60, 10);

TEST(StageFaults, DevicesThatComeAndGoLeaveNoTrace) {
  for (const Wire& wire : kWires) {
    Setting plain = with_wire(small_setting(), wire);
    plain.model.n_layer = 2;
    const std::uint64_t wanted = train(plain).hash;
    SCOPED_TRACE(name_of(wire));
    expect_same_bits_while_devices_come_and_go(in_stages(plain, unlike_devices(6), 2),
                                               wire == DType::f32 ? kSchedules : kSchedulesOf16Bits, wanted);
  }
}

// Devices that are left have no room for all stages and all sums at once: sums wait until sequences have passed.
// Nothing waits for a norm of all gradients then: parameters must not change while sums may still be recomputed.
TEST(StageFaults, WithoutClippingNeither) {
  Setting plain;
  plain.batch = 3;
  plain.grad_clip = 0;
  const std::uint64_t wanted = train(plain).hash;
  Setting calm = in_stages(plain, unlike_devices(4), 2);
  set_memory(calm, 400'000);  // several stages
  const Seconds whole = train(calm).time;
  std::int64_t lost = 0;
  constexpr int kMoments = all_or_few(40, 10);
  for (int moment = 0; moment < kMoments; ++moment) {
    Setting s = calm;
    const double progress = (0.6 + 0.4 / kMoments * moment) / static_cast<double>(s.steps);
    s.churn = {{whole * progress, DeviceId(moment % 4), fleet::ChurnKind::leave, 1.0}};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, wanted) << moment;
    lost += outcome.lost + outcome.redone;
  }
  EXPECT_GT(lost, kMoments / 4);
  Setting audited = calm;
  audited.verification = {.mode = server::VerifyMode::audit, .fraction = 1};
  const Outcome outcome = train(audited);
  EXPECT_EQ(outcome.hash, wanted);
  EXPECT_TRUE(outcome.distrusted.empty());
}

// Everybody leaves, and nobody comes back: the step does not wait for a minute before it is run by the server.
TEST(StageFaults, NobodyIsLeft) {
  Setting plain = small_setting();
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_stages(plain, slower(alike_devices(4), 20), 2);
  const Seconds whole = train(s).time;
  for (std::int64_t device = 0; device < 4; ++device)
    s.churn.push_back({whole * 0.2, DeviceId(device), fleet::ChurnKind::leave, 1.0});
  for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::wall}) {
    s.clock = clock;
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, wanted);
    EXPECT_LT(outcome.time.value(), 10);
  }
}

TEST(StageFaults, FleetsThatShrinkBelowTheirPlanLeaveNoTrace) {
  Setting plain = small_setting();
  plain.model.n_layer = 10;
  plain.steps = 3;
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_stages(plain, alike_devices(8), 3);
  s.rounds = false;
  const model::StepGraph graph = model::graph_of_stages({s.model, s.batch, {}, s.wire, s.wire.boundary});
  const auto fits = [&](std::int64_t memory, std::size_t count) {
    set_memory(s, memory);
    return plan::find_stages(plan::stage_work_of(graph, s.wire), std::span(s.devices).first(count),
                             sched::stage_scheduler_options(options_of(s)).stages)
        .has_value();
  };
  std::int64_t low = 1'000, high = 10'000'000;
  while (high - low > low / 50) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle, 8) ? high : low) = middle;
  }
  ASSERT_FALSE(fits(high + high / 10, 6));
  const Seconds whole = train(s).time;
  std::int64_t lost = 0;
  for (const double at : {0.1, 0.25, 0.32}) {  // of three steps
    s.churn = {{.at = whole * at, .device = DeviceId(2), .kind = fleet::ChurnKind::leave},
               {.at = whole * at, .device = DeviceId(5), .kind = fleet::ChurnKind::leave}};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, wanted) << at;
    lost += outcome.lost;
    EXPECT_EQ(outcome.time, simulate(s).time) << "not in stages to the end, at " << at;
  }
  EXPECT_GT(lost, 0);
}

// Devices that do far less than they declare: others do what they had, and what they still answer is dropped.
TEST(StageFaults, DevicesThatTurnOutSlowLeaveNoTrace) {
  std::int64_t late = 0;
  for (const Wire& wire : kWires) {
    Setting plain = with_wire(small_setting(), wire);
    plain.model.n_layer = 2;
    plain.batch = 6;
    plain.model.seq_len = plain.model.max_pos = 130;  // two chunks, one of two tokens
    const std::uint64_t wanted = train(plain).hash;
    Setting s = in_stages(plain, slower(alike_devices(8), 20), 2);
    const Seconds whole = train(s).time;
    for (std::uint64_t seed = 0; seed < kSchedules / 10; ++seed) {
      const Random random(seed, Purpose::test, 3);
      s.churn.clear();
      for (std::uint64_t i = 0; i < 1 + seed % 3; ++i)
        s.churn.push_back({whole * (0.1 * static_cast<double>(seed % 8)),
                           DeviceId(static_cast<std::int64_t>(random.below(i, 8))), fleet::ChurnKind::slow,
                           seed % 2 == 0 ? 0.05 : 1e-4});
      const Outcome outcome = train(s);
      ASSERT_EQ(outcome.hash, wanted) << "schedule " << seed << " " << name_of(wire);
      EXPECT_EQ(outcome.rejected, 0);
      late += outcome.late;
    }
  }
  EXPECT_GT(late, 5) << "nobody was late";
}

// The same where every device has the whole model and keeps what ways forward have made.
TEST(StageFaults, KeptSequencesAreMadeAgainWhereTheirDeviceIsLost) {
  Setting plain = small_setting();
  plain.model.n_layer = 2;
  plain.model.seq_len = plain.model.max_pos = 130;
  plain.batch = 5;
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_stages(plain, alike_devices(3), 3);
  const server::TrainerOptions options = options_of(s);
  const model::StepGraph graph = model::build_step(
      options.model, {.kind = model::StepKind::train, .batch = s.batch, .clip = true, .freeze = {}, .loss_rows = 0});
  const plan::StagePlan layout = plan::plan_stages(plan::stage_work_of(graph, options.wire), options.devices,
                                                   sched::stage_scheduler_options(options).stages);
  ASSERT_EQ(layout.groups.front(), 3);
  ASSERT_GT(layout.stages.front().replicas.front().kept_slots, 0);
  expect_same_bits_while_devices_come_and_go(s, kSchedules / 4, wanted);
}

// What a rehearsal may choose: the same bits, whatever the layout, with replicas that keep sequences of a stage among
// several stages, and where devices of theirs are lost.
TEST(StageFaults, TheSameBitsInAnyLayoutThatIsRehearsed) {
  Setting plain = small_setting();
  plain.model.n_layer = 3;
  plain.model.seq_len = plain.model.max_pos = 130;
  plain.batch = 9;
  std::int64_t in_pipelines = 0, lost = 0;
  for (const Wire& wire : kWires) {
    plain.wire = wire;
    const std::uint64_t wanted = train(plain).hash;
    Setting s = in_stages(plain, unlike_devices(10), 3);
    const server::TrainerOptions options = options_of(s);
    const model::StepGraph graph = model::build_step(
        options.model, {.kind = model::StepKind::train, .batch = s.batch, .clip = true, .freeze = {}, .loss_rows = 0});
    const std::vector<plan::StagePlan> layouts =
        plan::stage_candidates(plan::stage_work_of(graph, wire), options.devices,
                               sched::stage_scheduler_options(options).stages, kSchedules / 10);
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      s.stage_plan = layouts[i];
      s.churn.clear();
      const Outcome calm = train(s);
      ASSERT_EQ(calm.hash, wanted) << "layout " << i << " " << name_of(wire);
      const bool kept =
          std::ranges::any_of(layouts[i].stages, [](const plan::Stage& of) { return of.kept_slots() > 0; });
      if (!kept || layouts[i].stages.front().replicas.size() == options.devices.size()) continue;
      ++in_pipelines;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        s.churn = random_schedule(seed, 10, calm.time, /*liars=*/false);
        const Outcome outcome = train(s);
        ASSERT_EQ(outcome.hash, wanted) << "layout " << i << ", schedule " << seed << " " << name_of(wire);
        lost += outcome.lost;
      }
    }
  }
  EXPECT_GE(in_pipelines, 3);
  EXPECT_GT(lost, in_pipelines);
}

class StageWireFaults : public ::testing::TestWithParam<MessageFault> {};

TEST_P(StageWireFaults, TheRunEndsWithTheSameBits) {
  Setting setting = small_setting();
  setting.steps = 4;
  expect_same_bits_under(GetParam(), in_stages(setting, unlike_devices(4), 2), train(setting).hash);
}

class StageWireFaultsOf16Bits : public StageWireFaults {};

TEST_P(StageWireFaultsOf16Bits, TheRunEndsWithTheSameBits) {
  const Setting plain = with_wire(small_setting(), DType::f16);
  expect_same_bits_under(GetParam(), in_stages(plain, unlike_devices(4), 2), train(plain).hash);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StageWireFaultsOf16Bits, ::testing::ValuesIn(all_message_faults({0, 40})),
                         [](const auto& of) { return name_of(of.param); });
INSTANTIATE_TEST_SUITE_P(Kinds, StageWireFaults, ::testing::ValuesIn(all_message_faults({0, 20, 60})),
                         [](const auto& of) { return name_of(of.param); });

}  // namespace
}  // namespace cleave::testing_run
