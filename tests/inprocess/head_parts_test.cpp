// A head that fits no device, in parts along the vocabulary (docs/numerics.md, "The head in parts"): the bits of
// training in tiles, in the time and bytes that simulate says.
#include <gtest/gtest.h>

#include "cleave/base/sanitizer.hpp"
#include "head_in_parts.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

#ifdef CLEAVE_ADDRESS_SANITIZER
constexpr std::int64_t kParts[] = {3};  // several times as slow, and for memory alone
constexpr int kRanks[] = {3};
#else
constexpr std::int64_t kParts[] = {2, 3};
constexpr int kRanks[] = {1, 3};
#endif

TEST(HeadParts, TheSameBitsAsTiles) {
  for (const Wire& wire : kSomeWires) {
    Setting plain = with_vocabulary();
    plain.wire = wire;
    const Outcome wanted = train(plain);
    for (const std::int64_t parts : kParts) {
      for (const int ranks : kRanks) {
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
      if (all_or_few(false, true) && !freeze.empty() && family != "llama") continue;
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
      if (!freeze.empty() || all_or_few(false, true)) continue;
      s.clock = server::ClockMode::off;
      EXPECT_EQ(train(s).hash, wanted);
    }
  }
}

TEST(HeadParts, TakeTheTimeOfTheSimulatorAndTheBytesThatAreCharged) {
  for (const Wire& wire : kSomeWires) {
    Setting plain = with_vocabulary();
    plain.wire = wire;
    plain.model.d_model = 64;
    plain.model.d_ff = 256;
    const Setting s = in_parts(plain, unlike_devices(10), 2);
    const Outcome real = train(s);
    const Outcome simulated = simulate(s);
    EXPECT_EQ(simulated.head_parts, 2);
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

TEST(HeadParts, HonestDevicesPassEveryCheck) {
  using server::VerifyMode;
  for (const VerifyMode mode : {VerifyMode::audit, VerifyMode::quorum}) {
    for (const Wire& wire : kSomeWires) {
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

}  // namespace
}  // namespace cleave::testing_run
