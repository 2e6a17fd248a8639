// Training in stages where the server sums in the place of devices that were lost: the bits of training in tiles.
#include <gtest/gtest.h>

#include "cleave/base/error.hpp"
#include "head_in_parts.hpp"
#include "run.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

constexpr int kMoments = all_or_few(9, 3);

// Three devices leave at a tenth of a step, and so on to nine tenths. The others have slow links, so the server is
// sooner.
void expect_same_bits_of_server_sums(Setting s, std::uint64_t wanted) {
  const Seconds whole = train(s).time;
  std::int64_t by_server = 0;
  for (int tenth = 1; tenth < 10; tenth += 9 / kMoments) {
    s.churn.clear();
    for (const std::int64_t victim : {1, 4, 6})
      s.churn.push_back(
          {whole * (0.1 * tenth / static_cast<double>(s.steps)), DeviceId(victim), fleet::ChurnKind::leave, 1.0});
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, wanted) << tenth;
    EXPECT_EQ(outcome.rejected, 0);
    by_server += outcome.server_sums;
  }
  EXPECT_GT(by_server, kMoments / 3) << "the server summed nothing";
}

class ServerSums : public ::testing::TestWithParam<Wire> {};

TEST_P(ServerSums, OfLayersTheSameBits) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    Setting plain = with_wire(small_setting(), GetParam());
    plain.model.family = family;
    plain.model.n_layer = 3;
    plain.model.seq_len = plain.model.max_pos = 130;  // two chunks, one of two tokens
    const std::uint64_t wanted = train(plain).hash;
    expect_same_bits_of_server_sums(in_stages(plain, slower(alike_devices(8), 20), 2), wanted);
  }
}

TEST_P(ServerSums, OfAHeadInPartsTheSameBits) {
  const Setting plain = with_wire(with_vocabulary(), GetParam());
  const std::uint64_t wanted = train(plain).hash;
  expect_same_bits_of_server_sums(in_parts(plain, slower(alike_devices(14), 20), 2), wanted);
}

TEST_P(ServerSums, UnderVerificationTheSameBits) {
  Setting plain = with_wire(small_setting(), GetParam());
  plain.model.n_layer = 2;
  const std::uint64_t wanted = train(plain).hash;
  for (const server::VerifyMode mode : {server::VerifyMode::audit, server::VerifyMode::quorum}) {
    Setting s = in_stages(plain, slower(alike_devices(8), 20), 2);
    s.verification = {.mode = mode, .fraction = 0.5};
    expect_same_bits_of_server_sums(s, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, ServerSums, ::testing::ValuesIn(kSomeWires),
                         [](const auto& of) { return std::string(name_of(of.param)); });

// Everybody leaves when all sequences have passed: the server makes what is left.
TEST(ServerSumsAlone, EndTheStepWhereNobodyIsLeft) {
  Setting s = small_setting();
  s.steps = 1;
  const std::uint64_t wanted = train(s).hash;
  s = in_stages(s, slower(alike_devices(6), 20), 2);
  const Seconds whole = train(s).time;
  std::int64_t by_server = 0;
  for (const double progress : {0.9, 0.95, 0.98}) {
    s.churn.clear();
    for (std::int64_t i = 0; i < 6; ++i)
      s.churn.push_back({whole * progress, DeviceId(i), fleet::ChurnKind::leave, 1.0});
    try {
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.hash, wanted) << progress;
      by_server += outcome.server_sums;
    } catch (const InputError&) {}  // sequences had not passed yet
  }
  EXPECT_GT(by_server, 0) << "the server summed nothing";
}

}  // namespace
}  // namespace cleave::testing_run
