// Training in stages some of which run in tiles, because no device has room for them: the bits of training in tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "churn_schedule.hpp"
#include "cleave/base/sanitizer.hpp"
#include "faulty_run.hpp"
#include "meddling.hpp"
#include "run.hpp"
#include "short_memory.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

using Mode = server::VerifyMode;

#ifdef CLEAVE_ADDRESS_SANITIZER
constexpr std::pair<std::int64_t, int> kMixedFleets[] = {{5, 5}};  // five times as slow, and for memory alone
constexpr std::uint64_t kMixedSchedules = 8, kMixedSchedulesOf16Bits = 3;
#else
constexpr std::pair<std::int64_t, int> kMixedFleets[] = {{3, 1}, {5, 5}};
constexpr std::uint64_t kMixedSchedules = 40, kMixedSchedulesOf16Bits = 15;
#endif

// Devices of about the least memory for which one half of a layer runs in stages, and the other in tiles.
Setting mixed(Setting s, std::vector<fleet::DeviceProfile> devices, int ranks) {
  s = in_stages(std::move(s), std::move(devices), ranks);
  const auto plan_with = [&](double memory) {
    set_memory(s, static_cast<std::int64_t>(memory));
    return plan_of(s);
  };
  double least = 3000;
  while (least < 1e6 && !plan_with(least * 1.3)) least *= 1.3;
  for (double memory = least; memory < 1e6; memory *= 1.03) {
    const std::optional<plan::StagePlan> plan = plan_with(memory);
    if (plan && plan->has_tiles()) return s;
  }
  ADD_FAILURE() << "no memory brings a mixture";
  return s;
}

// Stages in tiles, and whether attention or what comes after it runs so.
struct Tiled {
  std::int64_t stages = 0;
  bool attention = false, mlp = false;
};
Tiled tiled(const Setting& s) {
  Tiled found;
  const plan::StageWork work = work_of(s);
  const std::optional<plan::StagePlan> plan = plan_of(s);
  if (!plan) return found;
  for (const plan::Stage& stage : plan->stages) {
    if (!stage.tiles) continue;
    ++found.stages;
    for (std::int64_t i = stage.first; i < stage.end; ++i) {
      const model::PieceKind kind = work.pieces[static_cast<std::size_t>(i)].kind;
      (kind == model::PieceKind::attention ? found.attention : found.mlp) = true;
    }
  }
  return found;
}

TEST(Mixtures, TheSameBitsAsTiles) {
  const std::string families[] = {"gpt2", "opt", "llama"};
  for (std::size_t f = 0; f < std::size(families); ++f) {
    const std::string& family = families[f];
    for (std::size_t w = 0; w < std::size(kWires); ++w) {
      if (all_or_few(false, true) && f != w) continue;  // each once
      const Wire& wire = kWires[w];
      for (const bool wide : {false, true}) {
        Setting plain = with_wire(deep_setting(), wire);
        plain.model.family = family;
        if (wide) plain.model.d_ff = 8 * plain.model.d_model;
        const std::uint64_t wanted = train(plain).hash;
        for (const auto& [devices, ranks] : kMixedFleets) {
          // Three matrices of 16 bits and the sums of their gradients on three devices: whatever holds one half of a
          // layer holds the other.
          if (family == "llama" && wire != DType::f32 && !wide && devices == 3) continue;
          SCOPED_TRACE(testing::Message() << family << ' ' << name_of(wire) << ' ' << devices << ' ' << wide);
          const Setting s = mixed(plain, unlike_devices(devices), ranks);
          EXPECT_GE(tiled(s).stages, 5);
          EXPECT_EQ(tiled(s).mlp, wide);
          EXPECT_EQ(tiled(s).attention, !wide);
          const Outcome got = train(s);
          EXPECT_EQ(got.hash, wanted);
          EXPECT_EQ(got.rejected, 0) << "devices hold more than they have";
          EXPECT_EQ(got.time, simulate(s).time);
        }
      }
    }
  }
}

TEST(Mixtures, FrozenTensorsEvaluationsAndClocks) {
  const Freezes freezes = {
      {"*wte*", "*wpe*"}, {"*h.0.*", "*h.1.*", "*h.2.*", "*h.3.*", "*wte*", "*wpe*"}, {"*attn*"}, {"*mlp*"}};
  expect_same_bits_with_frozen_tensors(freezes, [](const Setting& plain) {
    const Setting s = mixed(plain, alike_devices(3), 2);
    EXPECT_GE(tiled(s).stages, 3);
    return s;
  });
}

TEST(Mixtures, DevicesThatComeAndGoLeaveNoTrace) {
  for (const Wire& wire : kWires) {
    const Setting plain = with_wire(deep_setting(), wire);
    const std::uint64_t wanted = train(plain).hash;
    SCOPED_TRACE(name_of(wire));
    const Setting s = mixed(plain, unlike_devices(6), 2);
    EXPECT_GE(tiled(s).stages, 5);
    expect_same_bits_while_devices_come_and_go(s, wire == DType::f32 ? kMixedSchedules : kMixedSchedulesOf16Bits,
                                               wanted);
  }
}

TEST(Mixtures, LiarsAreFoundOut) {
  Setting s = mixed(deep_setting(), alike_devices(6), 2);
  s.verification = {.mode = Mode::audit, .fraction = 1.0, .seed = 11};
  EXPECT_GE(tiled(s).stages, 5);
  const std::uint64_t wanted = train(deep_setting()).hash;
  const Outcome honest = train(s);
  EXPECT_EQ(honest.hash, wanted);
  EXPECT_EQ(honest.rejected, 0);
  EXPECT_TRUE(honest.verification.wrong.empty());
  for (const std::int64_t device : {0, 2, 5}) {
    s.churn = {liar(device, 1.0, fleet::InjectedFaultKind::element)};
    const Outcome lied_to = train(s);
    EXPECT_EQ(lied_to.hash, wanted);
    EXPECT_EQ(lied_to.distrusted, std::vector{DeviceId(device)});
  }
}

/// Trains with one answer made huge, the first that is `picked`. Who sent it, and how the run ended.
std::pair<std::optional<DeviceId>, Outcome> train_with_huge(const Setting& honest,
                                                            const std::function<bool(const comm::Header&)>& picked) {
  std::optional<DeviceId> sender;
  std::mutex one_at_a_time;  // of two ranks
  const Setting s = with_deeds(honest, [&](const comm::Header& header) {
    const std::lock_guard lock(one_at_a_time);
    if (sender || !picked(header)) return Deed::pass;
    sender = header.device;
    return Deed::huge;
  });
  const Outcome outcome = train(s);
  return {sender, outcome};
}

// The first answer of a stage, forward or backward, makes what others compute from it overflow, in tiles or in stages:
// its sender is found out, nobody else, and the run goes on.
TEST(Mixtures, AValueThatNobodyCanComputeIsOnlyItsSendersFault) {
  const Setting honest = mixed(deep_setting(), alike_devices(6), 2);
  const std::uint64_t wanted = bits_in_tiles(honest);
  const std::optional<plan::StagePlan> plan = plan_of(honest);
  std::int64_t found = 0;
  for (const comm::StageErrand errand : {comm::StageErrand::forward, comm::StageErrand::backward}) {
    for (std::int32_t stage = 0; stage < std::ssize(plan->stages); ++stage) {
      if (plan->stages[static_cast<std::size_t>(stage)].tiles || stage > all_or_few(100, 5)) continue;
      const auto [sender, outcome] = train_with_huge(honest, [&](const comm::Header& header) {
        return answers(header, errand) && header.stage_task.stage == stage;
      });
      EXPECT_EQ(outcome.hash, wanted) << stage;
      EXPECT_EQ(outcome.distrusted, sender ? std::vector{*sender} : std::vector<DeviceId>{}) << stage;
      found += std::ssize(outcome.distrusted);
    }
  }
  EXPECT_GT(found, all_or_few(5, 1));
}

// A block in tiles that nobody looked at does the same: the step is run again in tiles, and each block looked at.
TEST(Mixtures, SoIsABlockThatNobodyLookedAt) {
  Setting honest = mixed(deep_setting(), alike_devices(6), 1);  // one rank: the same blocks each time
  honest.verification = {.mode = Mode::audit, .fraction = 0.001, .seed = 11};
  const std::uint64_t wanted = bits_in_tiles(honest);
  std::int64_t overflowed = 0;
  for (std::int64_t skipped = 0; skipped < all_or_few(12, 4); ++skipped) {
    std::int64_t left = 5 * skipped;
    const auto [sender, outcome] = train_with_huge(honest, [&](const comm::Header& header) {
      return header.work == comm::Work::gemm && header.output == DType::f32 && left-- == 0;
    });
    ASSERT_TRUE(sender.has_value());
    for (const DeviceId accused : outcome.distrusted) EXPECT_EQ(accused, *sender) << skipped;
    overflowed += outcome.hash == wanted ? 1 : 0;  // or what it led to was finite, and nobody looked
  }
  EXPECT_GT(overflowed, 0);
}

// Pairs in tiles and in stages are drawn by different hands: with a quorum there are no mixtures.
TEST(Mixtures, AreLeftOutOfAQuorum) {
  Setting s = mixed(deep_setting(), alike_devices(6), 2);
  s.verification = {.mode = Mode::quorum, .fraction = 1.0, .seed = 11};
  EXPECT_FALSE(plan_of(s).has_value());
}

}  // namespace
}  // namespace cleave::testing_run
