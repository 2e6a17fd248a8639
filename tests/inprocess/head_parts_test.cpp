// A head that fits no device, in parts along the vocabulary (docs/numerics.md, "The head in parts"): the bits of
// training in tiles, in the time and bytes that simulate says, whatever becomes of devices and whoever lies.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "churn_schedule.hpp"
#include "cleave/model/step_text.hpp"
#include "faulty_run.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kSchedules = 3;
#else
constexpr std::uint64_t kSchedules = 10;
#endif
constexpr DType kWires[] = {DType::f32, DType::bf16, DType::f16};

// Three vocabulary blocks, the last one short, and no whole number of K blocks.
Setting with_vocabulary() {
  Setting s = small_setting();
  s.model.n_layer = 2;
  s.model.vocab_size = 4000;
  s.model.seq_len = s.model.max_pos = 130;
  s.batch = 3;
  return s;
}

model::StepGraph graph_of(const Setting& s) { return model::graph_of_stages({s.model, s.batch, s.freeze, s.wire}); }

std::optional<plan::StagePlan> plan_of(const Setting& s) {
  return plan::find_stages(plan::stage_work_of(graph_of(s), s.wire), s.devices,
                           sched::stage_scheduler_options(options_of(s)).stages);
}

// The same with the most memory a device for which the head is in so many parts.
Setting in_parts(Setting s, std::vector<fleet::DeviceProfile> devices, std::int64_t parts) {
  s.devices = std::move(devices);
  s.device_ranks = 2;
  s.layout = sched::Layout::stages;
  for (double memory = 8e6; memory > 1e5; memory *= 0.97) {
    for (fleet::DeviceProfile& device : s.devices) device.memory = Bytes(static_cast<std::int64_t>(memory));
    const std::optional<plan::StagePlan> plan = plan_of(s);
    if (!plan || plan->head_parts > parts) break;
    if (plan->head_parts == parts) return s;
  }
  ADD_FAILURE() << "no memory brings " << parts << " parts";
  return s;
}

TEST(HeadParts, TheSameBitsAsTiles) {
  for (const DType wire : kWires) {
    Setting plain = with_vocabulary();
    plain.wire = wire;
    const Outcome wanted = train(plain);
    for (const std::int64_t parts : {2, 3}) {
      for (const int ranks : {1, 3}) {
        SCOPED_TRACE(std::to_string(parts) + " parts, " + std::string(name_of(wire)));
        Setting s = in_parts(plain, unlike_devices(10), parts);
        s.device_ranks = ranks;
        const Outcome got = train(s);
        EXPECT_EQ(got.hash, wanted.hash);
        EXPECT_EQ(got.first_loss, wanted.first_loss);
        EXPECT_EQ(got.last_loss, wanted.last_loss);
        EXPECT_EQ(got.rejected, 0);
        EXPECT_EQ(got.redone, 0);
      }
    }
  }
}

TEST(HeadParts, AllFamiliesClocksAndFrozenTensors) {
  for (const std::string family : {"gpt2", "opt", "llama"}) {
    for (const std::vector<std::string>& freeze :
         std::vector<std::vector<std::string>>{{}, {"*wte*", "*wpe*", "*embed*"}, {"*norm*", "*ln_*"}}) {
      Setting plain = with_vocabulary();
      plain.model.family = family;
      plain.model.n_head = 4;
      plain.model.n_kv_head = family == "llama" ? 2 : 4;
      plain.model.tie_embeddings = family != "opt";
      plain.freeze = freeze;
      SCOPED_TRACE(family + " " + std::to_string(freeze.size()));
      const std::uint64_t wanted = train(plain).hash;
      Setting s = in_parts(plain, alike_devices(10), 2);
      EXPECT_EQ(train(s).hash, wanted);
      if (!freeze.empty()) continue;
      s.clock = server::ClockMode::off;
      EXPECT_EQ(train(s).hash, wanted);
    }
  }
}

TEST(HeadParts, TakeTheTimeOfTheSimulatorAndTheBytesThatAreCharged) {
  for (const DType wire : kWires) {
    Setting plain = with_vocabulary();
    plain.wire = wire;
    plain.model.d_model = 64;
    plain.model.d_ff = 256;
    const Setting s = in_parts(plain, unlike_devices(10), 2);
    const Outcome real = train(s);
    const server::TrainerOptions options = options_of(s);
    const model::StepGraph graph = graph_of(s);
    sched::SimulatedFleet fleet(options.devices, options.server(), options.wire);
    sched::StageScheduler scheduler(fleet, graph, sched::stage_scheduler_options(options));
    Outcome simulated;
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const sched::StepReport report = scheduler.run();
      simulated.time += report.time;
      simulated.bytes_down += report.bytes_down;
      simulated.bytes_up += report.bytes_up;
    }
    EXPECT_EQ(scheduler.plan().head_parts, 2);
    EXPECT_EQ(real.time, simulated.time) << name_of(wire);
    EXPECT_EQ(real.bytes_down, simulated.bytes_down);
    EXPECT_EQ(real.bytes_up, simulated.bytes_up);
    const auto share = [](Bytes sent, Bytes charged) {
      return static_cast<double>(sent.value()) / static_cast<double>(charged.value());
    };
    EXPECT_NEAR(share(real.sent, real.bytes_down), 1, 0.01) << name_of(wire);
    EXPECT_NEAR(share(real.received, real.bytes_up), 1, 0.01) << name_of(wire);
  }
}

TEST(HeadParts, DevicesThatComeAndGoLeaveNoTrace) {
  for (const DType wire : {DType::f32, DType::f16}) {
    Setting plain = with_vocabulary();
    plain.wire = wire;
    const std::uint64_t wanted = train(plain).hash;
    Setting s = in_parts(plain, unlike_devices(14), 2);
    const Seconds whole = train(s).time;
    std::int64_t lost = 0;
    for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
      s.churn = random_schedule(seed, 14, whole, /*liars=*/false);
      const Outcome outcome = train(s);
      ASSERT_EQ(outcome.hash, wanted) << "schedule " << seed << " " << name_of(wire);
      lost += outcome.lost;
    }
    EXPECT_GT(lost, static_cast<std::int64_t>(kSchedules));
  }
}

TEST(HeadParts, HonestDevicesPassEveryCheck) {
  using server::VerifyMode;
  for (const VerifyMode mode : {VerifyMode::audit, VerifyMode::quorum}) {
    for (const DType wire : kWires) {
      Setting plain = with_vocabulary();
      plain.wire = wire;
      const std::uint64_t wanted = train(plain).hash;
      Setting s = in_parts(plain, alike_devices(14), 2);
      s.verification = {.mode = mode, .fraction = 1.0, .seed = 11};
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.hash, wanted) << server::name_of(mode) << ' ' << name_of(wire);
      EXPECT_EQ(outcome.rejected, 0);
      EXPECT_EQ(outcome.verification.suspected, 0);
      EXPECT_EQ(outcome.recomputed, 0);
      EXPECT_GT(outcome.verification.checked, 0);
      for (const server::Finding& finding : outcome.verification.wrong)
        ADD_FAILURE() << server::name_of(mode) << ' ' << finding.operation << ' ' << finding.device.value;
    }
  }
}

// Every device that has a part in turn.
TEST(HeadParts, LiarsAreFoundOutAndLeaveNoTrace) {
  const Setting plain = with_vocabulary();
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_parts(plain, alike_devices(14), 2);
  const std::optional<plan::StagePlan> plan = plan_of(s);
  std::set<std::int64_t> liars;
  for (std::size_t stage = plan->stages.size() - 2; stage < plan->stages.size(); ++stage) {
    for (const plan::StageReplica& replica : plan->stages[stage].replicas) liars.insert(replica.device.value);
  }
  ASSERT_GE(liars.size(), 2U);
  s.verification = {.mode = server::VerifyMode::audit, .fraction = 1.0, .seed = 11};
  for (const std::int64_t device : liars) {
    for (const fleet::InjectedFaultKind kind : {fleet::InjectedFaultKind::bit, fleet::InjectedFaultKind::zero}) {
      s.churn = {{Seconds(0), DeviceId(device), fleet::ChurnKind::faulty, 1.0, kind}};
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.hash, wanted) << device;
      EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(device)});
    }
  }
}

class HeadPartsWireFaults : public ::testing::TestWithParam<MessageFault> {};

TEST_P(HeadPartsWireFaults, TheRunEndsWithTheSameBits) {
  const Setting plain = with_vocabulary();
  expect_same_bits_under(GetParam(), in_parts(plain, unlike_devices(10), 2), train(plain).hash);
}

INSTANTIATE_TEST_SUITE_P(Kinds, HeadPartsWireFaults, ::testing::ValuesIn(all_message_faults({40})),
                         [](const auto& of) { return name_of(of.param); });

}  // namespace
}  // namespace cleave::testing_run
