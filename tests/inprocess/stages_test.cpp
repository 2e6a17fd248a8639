// Training in stages with real numbers, over device ranks in this process: the bits of training in tiles, whatever the
// devices, the layout and the clock. What becomes of devices and messages: stage_faults_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "churn_schedule.hpp"
#include "cleave/model/step_text.hpp"
#include "head_in_parts.hpp"
#include "run.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

TEST(Stages, TheSameBitsAsTilesForAnyDevicesAndRanks) {
  for (const Wire& wire : kSomeWires) {
    const Setting plain = with_wire(small_setting(), wire);
    const Outcome wanted = train(plain);
    for (const auto& [devices, ranks] : std::vector<std::pair<std::int64_t, int>>{{2, 1}, {3, 2}, {5, 5}, {9, 3}}) {
      SCOPED_TRACE(devices);
      const Outcome got = train(in_stages(plain, unlike_devices(devices), ranks));
      EXPECT_EQ(got.hash, wanted.hash) << name_of(wire);
      EXPECT_EQ(got.first_loss, wanted.first_loss);
      EXPECT_EQ(got.last_loss, wanted.last_loss);
    }
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
    for (const Wire& wire : kSomeWires) {
      s.wire = wire;
      s.chunk_tokens = 0;
      const std::uint64_t wanted = train(s).hash;
      for (const std::int64_t chunk : {128, 256, 300}) {
        s.chunk_tokens = chunk;
        const Outcome got = train(in_stages(s, alike_devices(4), 2));
        EXPECT_EQ(got.hash, wanted) << chunk << " " << name_of(wire);
        EXPECT_EQ(got.sooner_than_bound, 0) << chunk << " " << name_of(wire);
      }
    }
  }
}

// As where training recovers from a gradient of some hundreds. Norms of operands say then that gradients could be
// larger than they are.
TEST(Stages, TheSameBitsWithLargeGradients) {
  Setting plain = small_setting();
  plain.model.family = "llama";
  plain.model.d_model = 32;
  plain.model.n_layer = 2;
  plain.grad_clip = 0;
  for (const float scale : {10.0F, 20.0F, 30.0F}) {
    plain.initial_scale = scale;
    const Outcome wanted = train(plain);
    for (const std::int64_t count : {1, 2, 5}) {
      Setting s = in_stages(plain, alike_devices(count), 1);
      for (const server::VerifyMode mode : {server::VerifyMode::off, server::VerifyMode::audit}) {
        s.verification = {.mode = mode, .fraction = 1};
        const Outcome got = train(s);
        EXPECT_EQ(got.hash, wanted.hash) << scale << ", " << count << " devices";
        EXPECT_TRUE(got.distrusted.empty()) << scale << ", " << count << " devices";
      }
    }
  }
}

// Whatever latencies are drawn: a device's answers come in the order in which it sent them, and nobody honest is
// accused.
TEST(Stages, JitterLeavesNoTrace) {
  for (const Wire& wire : kSomeWires) {
    Setting plain = with_wire(small_setting(), wire);
    plain.model.n_layer = 2;
    plain.model.seq_len = plain.model.max_pos = 390;  // four chunks
    const std::uint64_t wanted = train(plain).hash;
    for (const server::VerifyMode mode :
         {server::VerifyMode::off, server::VerifyMode::audit, server::VerifyMode::quorum})
      for (const std::int64_t count : {2, 5}) {
        Setting s = in_stages(plain, alike_devices(count), 2);
        for (fleet::DeviceProfile& device : s.devices) device.jitter = Seconds(0.05);
        s.verification = {.mode = mode, .fraction = 1};
        const Outcome outcome = train(s);
        EXPECT_EQ(outcome.hash, wanted) << name_of(wire) << ", " << count << " devices";
        EXPECT_TRUE(outcome.distrusted.empty()) << name_of(wire) << ", " << count << " devices";
      }
  }
}

// A stage that is far quicker than the one below it returns a chunk before the next one has come: what a backward pass
// begins with is sent when all of it is there. (With fp32 these devices keep it; with 16 bits they do not.)
TEST(Stages, AQuickStageAboveASlowOne) {
  Setting plain = small_setting();
  plain.model.n_layer = 3;
  plain.model.d_model = 32;
  plain.model.seq_len = plain.model.max_pos = 384;
  plain.batch = 3;
  plain.chunk_tokens = 128;
  constexpr std::int64_t kSlow = all_or_few(4, 1);
  std::int64_t several = 0;
  for (const Wire& wire : kSomeWires) {
    plain.wire = wire;
    const std::uint64_t wanted = train(plain).hash;
    for (const double factor : {3.0, 20.0}) {
      for (std::int64_t slow = 0; slow < kSlow; ++slow) {
        Setting s = in_stages(plain, alike_devices(4), 2);
        fleet::DeviceProfile& device = s.devices[static_cast<std::size_t>(slow)];
        device.uplink = device.uplink / factor;
        device.compute = device.compute / factor;
        const plan::StageWork work =
            plan::stage_work_of(model::graph_of_stages({s.model, s.batch, {}, wire, wire.boundary}), wire);
        for (const plan::StagePlan& layout :
             plan::stage_candidates(work, s.devices, sched::stage_scheduler_options(options_of(s)).stages, 6)) {
          if (layout.stages.size() < 3) continue;
          ++several;
          s.stage_plan = layout;
          s.churn.clear();
          const Outcome calm = train(s);
          EXPECT_EQ(calm.hash, wanted) << name_of(wire) << ", device " << slow << " slower by " << factor;
          s.churn = random_schedule(static_cast<std::uint64_t>(several), 4, calm.time, /*liars=*/false);
          EXPECT_EQ(train(s).hash, wanted) << name_of(wire) << ", schedule " << several;
        }
      }
    }
  }
  EXPECT_GE(several, 3 * kSlow);
}

// Memories so short that stages are of ever fewer pieces, down to half layers, and owners' slices of uneven width.
TEST(Stages, ForcedCuts) {
  Setting s = small_setting();
  s.model.n_layer = 2;
  s.model.d_ff = 96;
  for (const Wire& wire : kSomeWires) {
    s.wire = wire;
    const std::uint64_t wanted = train(s).hash;
    const plan::StageWork work =
        plan::stage_work_of(model::graph_of_stages({s.model, s.batch, {}, wire, wire.boundary}), wire);
    std::set<std::pair<std::size_t, std::int64_t>> cuts;  // numbers of stages and of rounds
    std::size_t most_replicas = 0;
    for (const plan::OwnerPlaces owners : {plan::OwnerPlaces::automatic, plan::OwnerPlaces::apart}) {
      for (double memory = 160e3; memory > 1e3; memory *= 0.95) {
        Setting staged = in_stages(s, unlike_devices(11), 2);
        staged.owners = owners;
        set_memory(staged, static_cast<std::int64_t>(memory));
        const auto plan = plan::find_stages(work, staged.devices, {.server = {}, .owners = owners});
        if (!plan) break;
        cuts.emplace(plan->stages.size(), plan->rounds());
        for (const plan::Stage& stage : plan->stages) most_replicas = std::max(most_replicas, stage.replicas.size());
        const Outcome got = train(staged);
        EXPECT_EQ(got.hash, wanted) << name_of(wire) << " " << memory;
        EXPECT_EQ(got.rejected, 0) << memory;
      }
    }
    EXPECT_GE(cuts.size(), 2U);
    EXPECT_GE(cuts.rbegin()->first, 4U) << "of two layers and the head: some stage is half a layer";
    EXPECT_GE(most_replicas, 4U);
  }
}

TEST(Stages, FrozenTensorsNoClippingAndEvaluationsBetween) {
  for (const std::vector<std::string>& freeze : std::vector<std::vector<std::string>>{
           {}, {"*wte*", "*wpe*"}, {"*ln_*"}, {"*h.0.*", "*wte*", "*wpe*"}, {"*attn*"}}) {
    Setting s = small_setting();
    s.model.n_layer = 2;
    s.freeze = freeze;
    s.grad_clip = 0;
    for (const Wire& wire : kSomeWires) {
      s.wire = wire;
      s.evaluations = 0;
      const std::uint64_t wanted = train(s).hash;
      s.evaluations = 2;
      EXPECT_EQ(train(in_stages(s, alike_devices(3), 2)).hash, wanted) << freeze.size() << " " << name_of(wire);
    }
  }
}

TEST(Stages, EveryClockDecidesTheSameBits) {
  for (const Wire& wire : kSomeWires) {
    const Setting plain = with_wire(small_setting(), wire);
    const std::uint64_t wanted = train(plain).hash;
    Setting s = in_stages(plain, unlike_devices(5), 2);
    const Outcome modelled = train(s);
    s.clock = server::ClockMode::wall;
    const Outcome wall = train(s);
    EXPECT_EQ(wall.hash, wanted);
    EXPECT_EQ(wall.time, modelled.time);
    s.clock = server::ClockMode::off;
    s.threads = 3;
    EXPECT_EQ(train(s).hash, wanted);
  }
}

// What train says of time, bytes and energy, simulate says.
TEST(Stages, TakeTheTimeAndEnergyOfTheSimulator) {
  for (const Wire& wire : kSomeWires) {
    Setting s = with_wire(in_stages(small_setting(), unlike_devices(5), 2), wire);
    for (fleet::DeviceProfile& device : s.devices) {
      device.power_compute = Watts(3.0 + static_cast<double>(device.id.value));
      device.power_radio = Watts(0.7);
      device.power_idle = Watts(0.1);
    }
    const Outcome real = train(s);
    const Outcome simulated = simulate(s);
    EXPECT_EQ(real.time, simulated.time) << name_of(wire);
    EXPECT_EQ(real.bytes_down, simulated.bytes_down);
    EXPECT_EQ(real.bytes_up, simulated.bytes_up);
    EXPECT_EQ(real.energy, simulated.energy);
    EXPECT_GT(real.energy.value(), 0);
  }
}

// What really travels is what is charged, but for headers, of which a message of several panels has one.
TEST(Stages, TravelInTheBytesThatAreCharged) {
  for (const Wire& wire : kSomeWires) {
    Setting s = with_wire(in_stages(small_setting(), unlike_devices(5), 2), wire);
    s.model.n_layer = 2;
    s.model.d_model = 128;
    s.model.d_ff = 512;
    s.model.vocab_size = 300;
    s.model.seq_len = s.model.max_pos = 256;
    // So little that no device holds the model. Else there are groups of owners, whose partial sums take twice the
    // bytes where a gradient is large: nobody is charged for that (docs/numerics.md, "Sums over tokens in stages").
    set_memory(s, 1'000'000 * size_of(wire));
    const auto plan = plan_of(s);
    ASSERT_TRUE(plan);
    EXPECT_EQ(std::ranges::max(plan->groups), 1);
    EXPECT_GE(plan->stages.size(), 3U);
    const Outcome run = train(s);
    const auto share = [](Bytes real, Bytes charged) {
      return static_cast<double>(real.value()) / static_cast<double>(charged.value());
    };
    EXPECT_NEAR(share(run.sent, run.bytes_down), 1, 0.01) << name_of(wire);
    EXPECT_NEAR(share(run.received, run.bytes_up), 1, 0.01) << name_of(wire);
  }
}

// Killed after any step, another process goes on from the parameters that are left.
TEST(Stages, AResumedRunEndsAsAWholeOne) {
  for (const Wire& wire : kSomeWires) {
    Setting s = with_wire(small_setting(), wire);
    s.steps = 4;
    const std::uint64_t wanted = train(s).hash;
    const Setting staged = in_stages(s, unlike_devices(4), 2);
    for (std::int64_t killed = 1; killed < s.steps; ++killed) {
      server::ParameterStore parameters = initial_parameters(s);
      (void)train(staged, parameters, 0, killed);
      EXPECT_EQ(train(killed % 2 == 0 ? s : staged, parameters, killed, s.steps).hash, wanted) << name_of(wire);
    }
  }
}

// Under the wall clock the same devices are late; under none nobody is, since no time is known.
TEST(Stages, WhoIsLateDoesNotDependOnTheClock) {
  Setting plain = small_setting();
  plain.batch = 8;
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_stages(plain, slower(alike_devices(8), 20), 2);
  // In the middle of a step: at its end there would be nothing that others could do.
  s.churn = {{.at = train(s).time * 0.1, .device = DeviceId(3), .kind = fleet::ChurnKind::slow, .factor = 0.02}};
  const Outcome modelled = train(s);
  EXPECT_EQ(modelled.hash, wanted);
  EXPECT_GT(modelled.late, 0);
  s.clock = server::ClockMode::wall;
  const Outcome wall = train(s);
  EXPECT_EQ(wall.hash, wanted);
  EXPECT_EQ(wall.time, modelled.time);
  EXPECT_EQ(wall.late, modelled.late);
  s.clock = server::ClockMode::off;
  const Outcome off = train(s);
  EXPECT_EQ(off.hash, wanted);
  EXPECT_EQ(off.late, 0);
}

}  // namespace
}  // namespace cleave::testing_run
