// Training in rounds of stages, on devices that cannot hold all stages at once: the bits of training in tiles.
#include <gtest/gtest.h>

#include <algorithm>

#include "churn_schedule.hpp"
#include "cleave/base/sanitizer.hpp"
#include "faulty_run.hpp"
#include "run.hpp"
#include "short_memory.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

using Mode = server::VerifyMode;

#ifdef CLEAVE_ADDRESS_SANITIZER
constexpr std::pair<std::int64_t, int> kFleets[] = {{3, 2}};  // several times as slow, and for memory alone
#else
constexpr std::pair<std::int64_t, int> kFleets[] = {{2, 1}, {3, 2}, {5, 5}};
#endif

std::int64_t rounds_of(const Setting& s) { return plan_of(s)->rounds(); }

TEST(Rounds, TheSameBitsAsTiles) {
  std::int64_t most = 0;
  for (const std::string family : {"gpt2", "opt", "llama"}) {
    for (const Wire& wire : kSomeWires) {
      Setting plain = with_wire(deep_setting(), wire);
      plain.model.family = family;
      const std::uint64_t wanted = train(plain).hash;
      for (const auto& [devices, ranks] : kFleets) {
        SCOPED_TRACE(testing::Message() << family << ' ' << name_of(wire) << ' ' << devices);
        const Setting s = in_rounds(plain, unlike_devices(devices), ranks);
        const std::int64_t rounds = rounds_of(s);
        EXPECT_GT(rounds, 1);
        most = std::max(most, rounds);
        const Outcome got = train(s);
        EXPECT_EQ(got.hash, wanted);
        EXPECT_EQ(got.rejected, 0) << "devices hold more than they have";
        EXPECT_EQ(got.time, simulate(s).time);
      }
    }
  }
  EXPECT_GE(most, 3);
}

TEST(Rounds, FrozenTensorsEvaluationsAndClocks) {
  const Freezes freezes = {{"*wte*", "*wpe*"}, {"*h.0.*", "*h.1.*", "*h.2.*", "*h.3.*", "*wte*", "*wpe*"}, {"*attn*"}};
  expect_same_bits_with_frozen_tensors(freezes,
                                       [](const Setting& plain) { return in_rounds(plain, alike_devices(3), 2); });
}

TEST(Rounds, DevicesThatComeAndGoLeaveNoTrace) {
  for (const Wire& wire : kSomeWires) {
    const Setting plain = with_wire(deep_setting(), wire);
    const std::uint64_t wanted = train(plain).hash;
    SCOPED_TRACE(name_of(wire));
    const Setting s = in_rounds(plain, unlike_devices(6), 2, 1.3);
    EXPECT_GT(rounds_of(s), 1);
    expect_same_bits_while_devices_come_and_go(s, wire == DType::f32 ? 40 : all_or_few(15, 6), wanted);
  }
}

// Visits and sums recomputed by second devices, and checked by the server.
TEST(Rounds, AreVerified) {
  for (const Mode mode : {Mode::quorum, Mode::audit}) {
    Setting s = in_rounds(deep_setting(), alike_devices(6), 2, 1.5);
    s.verification = {.mode = mode, .fraction = 1.0, .seed = 11};
    EXPECT_GT(rounds_of(s), 1);
    const std::uint64_t wanted = train(deep_setting()).hash;
    const Outcome honest = train(s);
    EXPECT_EQ(honest.hash, wanted) << server::name_of(mode);
    EXPECT_EQ(honest.rejected, 0);
    EXPECT_TRUE(honest.distrusted.empty());
    EXPECT_TRUE(honest.verification.wrong.empty());
    s.churn = {liar(2, 1.0, fleet::InjectedFaultKind::element)};
    const Outcome lied_to = train(s);
    EXPECT_EQ(lied_to.hash, wanted) << server::name_of(mode);
    EXPECT_EQ(lied_to.distrusted, std::vector{DeviceId(2)});
  }
}

}  // namespace
}  // namespace cleave::testing_run
