// Training in stages with real numbers, over device ranks in this process: the bits of training in tiles, whatever the
// devices, the layout, the clock and what becomes of devices and messages.
#include <gtest/gtest.h>

#include "churn_schedule.hpp"
#include "faulty_run.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

constexpr std::uint64_t kSchedules = 200;

Setting in_stages(Setting setting, std::vector<fleet::DeviceProfile> devices, int ranks) {
  setting.devices = std::move(devices);
  setting.device_ranks = ranks;
  setting.layout = sched::Layout::stages;
  return setting;
}

TEST(Stages, TheSameBitsAsTilesForAnyDevicesAndRanks) {
  const Outcome wanted = train(small_setting());
  for (const auto& [devices, ranks] : std::vector<std::pair<std::int64_t, int>>{{2, 1}, {3, 2}, {5, 5}, {9, 3}}) {
    SCOPED_TRACE(devices);
    const Outcome got = train(in_stages(small_setting(), unlike_devices(devices), ranks));
    EXPECT_EQ(got.hash, wanted.hash);
    EXPECT_EQ(got.first_loss, wanted.first_loss);
    EXPECT_EQ(got.last_loss, wanted.last_loss);
  }
}

TEST(Stages, AllFamiliesAndOddShapes) {
  for (const std::string family : {"gpt2", "opt", "llama"}) {
    Setting s = small_setting();
    s.model.family = family;
    s.model.n_layer = 2;
    s.model.n_head = 4;
    s.model.n_kv_head = family == "llama" ? 2 : 4;
    s.model.d_model = 32;
    s.model.d_ff = 70;
    s.model.seq_len = s.model.max_pos = 300;  // chunks of 128 do not divide it
    s.model.tie_embeddings = family != "opt";
    s.batch = 3;
    SCOPED_TRACE(family);
    const std::uint64_t wanted = train(s).hash;
    for (const std::int64_t chunk : {128, 256, 300}) {
      s.chunk_tokens = chunk;
      EXPECT_EQ(train(in_stages(s, alike_devices(4), 2)).hash, wanted) << chunk;
    }
  }
}

TEST(Stages, FrozenTensorsNoClippingAndEvaluationsBetween) {
  for (const std::vector<std::string>& freeze : std::vector<std::vector<std::string>>{
           {}, {"*wte*", "*wpe*"}, {"*ln_*"}, {"*h.0.*", "*wte*", "*wpe*"}, {"*attn*"}}) {
    Setting s = small_setting();
    s.model.n_layer = 2;
    s.freeze = freeze;
    s.grad_clip = 0;
    const std::uint64_t wanted = train(s).hash;
    s.evaluations = 2;
    EXPECT_EQ(train(in_stages(s, alike_devices(3), 2)).hash, wanted) << freeze.size();
  }
}

TEST(Stages, EveryClockDecidesTheSameBits) {
  const std::uint64_t wanted = train(small_setting()).hash;
  Setting s = in_stages(small_setting(), unlike_devices(5), 2);
  const Outcome modelled = train(s);
  s.clock = server::ClockMode::wall;
  const Outcome wall = train(s);
  EXPECT_EQ(wall.hash, wanted);
  EXPECT_EQ(wall.time, modelled.time);
  s.clock = server::ClockMode::off;
  EXPECT_EQ(train(s).hash, wanted);
}

// What train says of time and bytes, simulate says.
TEST(Stages, TakeTheTimeOfTheSimulator) {
  const Setting s = in_stages(small_setting(), unlike_devices(5), 2);
  const Outcome real = train(s);
  const server::TrainerOptions options = options_of(s);
  const model::StepGraph graph = model::build_step(
      options.model, {.kind = model::StepKind::train, .batch = s.batch, .clip = true, .freeze = {}, .loss_rows = 0});
  sched::SimulatedFleet fleet(options.devices, options.server(), options.wire);
  sched::StageScheduler scheduler(fleet, graph, sched::stage_scheduler_options(options));
  Seconds time{0};
  Bytes down{0};
  for (std::int64_t step = 0; step < s.steps; ++step) {
    const sched::StepReport report = scheduler.run();
    time += report.time;
    down += report.bytes_down;
  }
  EXPECT_EQ(real.time, time);
  EXPECT_EQ(real.bytes_down, down);
}

TEST(Stages, DevicesThatComeAndGoLeaveNoTrace) {
  Setting plain = small_setting();
  plain.model.n_layer = 2;
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_stages(plain, unlike_devices(6), 2);
  const Seconds whole = train(s).time;
  std::int64_t lost = 0;
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    s.churn = random_schedule(seed, 6, whole, /*liars=*/false);
    const Outcome outcome = train(s);
    ASSERT_EQ(outcome.hash, wanted) << "schedule " << seed;
    lost += outcome.lost;
  }
  EXPECT_GT(lost, static_cast<std::int64_t>(kSchedules));
}

class StageWireFaults : public ::testing::TestWithParam<MessageFault> {};

TEST_P(StageWireFaults, TheRunEndsWithTheSameBits) {
  expect_same_bits_under(GetParam(), in_stages(small_setting(), unlike_devices(4), 2), train(small_setting()).hash);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StageWireFaults, ::testing::ValuesIn(all_message_faults({0, 20, 60})),
                         [](const auto& of) { return name_of(of.param); });

}  // namespace
}  // namespace cleave::testing_run
