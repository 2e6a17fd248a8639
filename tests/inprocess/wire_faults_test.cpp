// Messages that are dropped, delayed, doubled, damaged or cut short, in either direction, early or late in a run: the
// run goes on and ends with the same bits.
#include <gtest/gtest.h>

#include "faulty_run.hpp"

namespace cleave::testing_run {
namespace {

class WireFaults : public ::testing::TestWithParam<MessageFault> {};

TEST_P(WireFaults, TheRunEndsWithTheSameBits) {
  Setting s = small_setting();
  const std::uint64_t expected = train(s).hash;
  s.devices = unlike_devices(4);
  expect_same_bits_under(GetParam(), s, expected);
}

TEST_P(WireFaults, TheSameOfOperandsAndResultsInPanels) {
  Setting s = small_setting();
  s.batch = 200;  // 3200 tokens: weight gradients come in runs of K
  const std::uint64_t expected = train(s).hash;
  s.devices = unlike_devices(4);
  s.parts = kSmallParts;
  expect_same_bits_under(GetParam(), s, expected);
}

INSTANTIATE_TEST_SUITE_P(Kinds, WireFaults, ::testing::ValuesIn(all_message_faults({0, 40})),
                         [](const auto& of) { return name_of(of.param); });

}  // namespace
}  // namespace cleave::testing_run
