// What a report says of one step, and what may have slipped through.
#include "cleave/server/verification.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace cleave::server {
namespace {

TEST(VerificationReport, OfAStepIsWhatCameSinceTheOneBefore) {
  VerificationReport before;
  before.blocks = 10;
  before.checked = 7;
  before.suspected = 5;
  before.cleared = 3;
  before.wrong.push_back({.device = DeviceId(1)});
  before.time = Seconds(2);
  before.device_time = Seconds(20);
  VerificationReport now = before;
  now.blocks += 1;
  now.checked += 2;
  now.suspected += 3;
  now.cleared += 4;
  now.wrong.push_back({.device = DeviceId(2)});
  now.time += Seconds(5);
  now.device_time += Seconds(6);
  const VerificationReport step = difference(now, before);
  EXPECT_EQ(step.blocks, 1);
  EXPECT_EQ(step.checked, 2);
  EXPECT_EQ(step.suspected, 3);
  EXPECT_EQ(step.cleared, 4);
  ASSERT_EQ(step.wrong.size(), 1U);
  EXPECT_EQ(step.wrong[0].device, DeviceId(2));
  EXPECT_EQ(step.time, Seconds(5));
  EXPECT_EQ(step.device_time, Seconds(6));
}

// Only who was found out by a draw might have slipped through it: not a witness whose digest was false, nor who sent
// what is not finite.
TEST(SlipProbability, IsOfThoseThatADrawFound) {
  const Verification terms{.mode = VerifyMode::quorum, .fraction = 0.25};
  VerificationReport report;
  report.wrong.push_back({.device = DeviceId(4), .checked = true, .digest = true});
  report.wrong.push_back({.device = DeviceId(5), .checked = false});
  EXPECT_EQ(slip_probability(terms, report), 0.0);
  report.wrong.push_back({.device = DeviceId(6), .checked = true});
  report.wrong.push_back({.device = DeviceId(6), .checked = true});
  EXPECT_DOUBLE_EQ(slip_probability(terms, report), 0.75);
}

TEST(MissedShare, OfNoBlocksIsAll) {
  EXPECT_EQ(missed_share({.mode = VerifyMode::sample, .fraction = 0.25}, 0), 1.0);
  EXPECT_TRUE(std::isnan(missed_share({.mode = VerifyMode::off}, 0)));
}

}  // namespace
}  // namespace cleave::server
