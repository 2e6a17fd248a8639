// The star against times that follow from its rules by hand: streams, what stays, reservations, priorities, churn.
#include "cleave/timing/star.hpp"

#include <gtest/gtest.h>

namespace cleave::timing {
namespace {

fleet::DeviceProfile device(double compute, double down, double up, double latency = 0,
                            std::int64_t memory = 1'000'000) {
  fleet::DeviceProfile profile;
  profile.id = DeviceId(0);
  profile.compute = FlopsPerSecond(compute);
  profile.memory = Bytes(memory);
  profile.downlink = BytesPerSecond(down);
  profile.uplink = BytesPerSecond(up);
  profile.latency = Seconds(latency);
  return profile;
}

fleet::ServerProfile wide() {
  return {fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(1), BytesPerSecond(1)};
}

// One panel whose messages are so many bytes with their headers; no message at 0.
Stream stream(std::int64_t id, std::int64_t down, double flops, std::int64_t up, std::int64_t resident = 0) {
  const auto payload = [](std::int64_t bytes) { return bytes > 0 ? bytes - kMessageHeader.value() : 0; };
  Stream s;
  s.id = id;
  s.panels = PanelSequence::runs(1, 1, {payload(down), payload(up), flops});
  s.bytes_down = Bytes(down);
  s.bytes_up = Bytes(up);
  s.flops = Flops(flops);
  s.resident = Bytes(resident);
  return s;
}

TEST(Star, OneStreamAndItsMeasures) {
  Star star({device(100, 1000, 500, 0.25)}, wide());
  Stream s = stream(1, 2000, 300, 1000, 7);
  star.submit(0, s);
  ASSERT_EQ(star.next_answer(), &s);
  EXPECT_DOUBLE_EQ(star.now().value(), 2 + 0.25 + 3 + 2 + 0.25);
  EXPECT_DOUBLE_EQ(s.measured.down.value(), 2);
  EXPECT_DOUBLE_EQ(s.measured.compute.value(), 3);
  EXPECT_DOUBLE_EQ(s.measured.up.value(), 2);
  EXPECT_EQ(star.usage(0).streams, 1);
  EXPECT_EQ(star.usage(0).memory_peak, Bytes(7));
  EXPECT_EQ(star.next_answer(), nullptr);
}

TEST(Star, NoAnswerBeforeItsTime) {
  Star star({device(100, 1000, 500)}, wide());
  Stream s = stream(1, 2000, 300, 1000);
  star.submit(0, s);
  EXPECT_EQ(star.next_answer(Seconds(6.5)), nullptr);
  EXPECT_EQ(star.now(), Seconds(6.5));
  EXPECT_EQ(star.next_answer(Seconds(7.5)), &s);
  EXPECT_DOUBLE_EQ(star.now().value(), 7);
}

TEST(Star, AReservationMakesAStreamWaitUntilItIsFreed) {
  Star star({device(100, 1000, 1000, 0, 100)}, wide());
  star.reserve(0, Bytes(50));
  Stream first = stream(1, 1000, 0, 1000, 40), second = stream(2, 1000, 0, 1000, 40);
  star.submit(0, first);
  star.submit(0, second);
  // With 50 of 100 bytes reserved only one of them is taken in at a time.
  EXPECT_EQ(star.next_answer(), &first);
  EXPECT_DOUBLE_EQ(star.now().value(), 2);
  EXPECT_EQ(star.next_answer(), &second);
  EXPECT_DOUBLE_EQ(star.now().value(), 4);
  star.reserve(0, Bytes(-50));
  Stream third = stream(3, 1000, 0, 1000, 40), fourth = stream(4, 1000, 0, 1000, 40);
  star.submit(0, third);
  star.submit(0, fourth);
  EXPECT_EQ(star.next_answer(), &third);
  EXPECT_EQ(star.next_answer(), &fourth);
  EXPECT_DOUBLE_EQ(star.now().value(), 7);  // the second comes down while the first goes up
}

// Of two panels of a background stream the first is down at 1 and computed until 3; the other stream's one is down at
// 2.5, and goes before the second, which was down at 2.
TEST(Star, TheProcessorTakesBackgroundPanelsWhenNothingElseWaits) {
  Star star({device(100, 1000, 1000)}, wide());
  Stream background;
  background.id = 1;
  background.panels = PanelSequence::runs(2, 2, {1000 - kMessageHeader.value(), 0, 200});
  background.bytes_down = Bytes(2000);
  background.bytes_up = kMessageHeader + Bytes(1);
  background.flops = Flops(400);
  background.panels.answer_with(1);
  background.background = true;
  Stream ordinary = stream(2, 500, 150, 1000);
  ordinary.priority = {1, 0};
  star.submit(0, background);
  star.submit(0, ordinary);
  EXPECT_EQ(star.next_answer(), &ordinary);
  EXPECT_DOUBLE_EQ(star.now().value(), 3 + 1.5 + 1);
  EXPECT_EQ(star.next_answer(), &background);
  EXPECT_GT(star.now().value(), 4.5 + 2);
  EXPECT_LT(star.now().value(), 4.5 + 2 + 0.2);
  EXPECT_DOUBLE_EQ(star.usage(0).compute.value(), 2 + 1.5 + 2);
  EXPECT_EQ(star.next_answer(), nullptr);
}

// With nobody to wait for, a background stream is computed like any other.
TEST(Star, ABackgroundStreamAloneIsAsQuick) {
  Star star({device(100, 1000, 500, 0.25)}, wide());
  Stream s = stream(1, 2000, 300, 1000, 7);
  s.background = true;
  star.submit(0, s);
  ASSERT_EQ(star.next_answer(), &s);
  EXPECT_DOUBLE_EQ(star.now().value(), 2 + 0.25 + 3 + 2 + 0.25);
}

TEST(Star, WhatStaysComesJustBeforeWhoUsesIt) {
  Star star({device(100, 1000, 1000)}, wide());
  Stream early = stream(1, 1000, 0, 1000), weights = stream(2, 3000, 0, 0), other = stream(3, 1000, 0, 1000),
         user = stream(4, 1000, 0, 1000);
  weights.stays = true;
  weights.priority = {9, 0};
  other.priority = {5, 0};
  user.uses = 2;
  star.submit(0, early);
  star.submit(0, weights);
  star.submit(0, other);
  star.submit(0, user);
  EXPECT_EQ(star.next_answer(), &early);
  EXPECT_DOUBLE_EQ(star.now().value(), 2);
  EXPECT_EQ(star.next_answer(), &user);
  EXPECT_DOUBLE_EQ(star.now().value(), 1 + 3 + 1 + 1);
  EXPECT_EQ(star.next_answer(), &other);
  EXPECT_EQ(star.next_answer(), nullptr);  // no answer comes of what stays
  EXPECT_TRUE(weights.arrived);
  EXPECT_EQ(star.release(0, 2), &weights);
  EXPECT_EQ(star.release(0, 2), nullptr);
}

TEST(Star, ThePortServesTheLongestTailFirst) {
  fleet::ServerProfile server = wide();
  server.nic_out = BytesPerSecond(1000);
  Star star({device(100, 1000, 1000), device(100, 1000, 100), device(100, 1000, 500)}, server);
  std::vector<Stream> streams{stream(0, 1000, 0, 1000), stream(1, 1000, 0, 1000), stream(2, 1000, 0, 1000)};
  for (std::size_t d = 0; d < 3; ++d) star.submit(d, streams[d]);
  // The first has the port; of those that wait the second takes longest from there on.
  EXPECT_EQ(star.next_answer(), &streams[0]);
  EXPECT_DOUBLE_EQ(star.now().value(), 2);
  EXPECT_EQ(star.next_answer(), &streams[2]);
  EXPECT_DOUBLE_EQ(star.now().value(), 3 + 2);
  EXPECT_EQ(star.next_answer(), &streams[1]);
  EXPECT_DOUBLE_EQ(star.now().value(), 2 + 10);
}

TEST(Star, ADeviceThatLeavesLosesWhatItHolds) {
  Star star({device(100, 1000, 1000)}, wide());
  Stream s = stream(1, 1000, 0, 1000), next = stream(2, 1000, 0, 1000);
  star.submit(0, s);
  star.submit(0, next);
  star.move_to(Seconds(0.5));
  EXPECT_EQ(star.leave(0), (std::vector<Stream*>{&s, &next}));
  EXPECT_FALSE(star.present(0));
  EXPECT_EQ(star.next_answer(), nullptr);
  star.join(0);
  Stream again = stream(3, 1000, 0, 1000);
  star.submit(0, again);
  EXPECT_EQ(star.next_answer(), &again);
  EXPECT_DOUBLE_EQ(star.now().value(), 2.5);
}

TEST(Star, OccupiedResourcesAreFreeOnlyThen) {
  Star star({device(100, 1000, 1000)}, wide());
  star.occupy(0, Seconds(1), Seconds(5), Seconds(6));
  Stream s = stream(1, 1000, 100, 1000);
  star.submit(0, s);
  EXPECT_EQ(star.next_answer(), &s);
  EXPECT_DOUBLE_EQ(star.now().value(), 6 + 1 + 1 - 1);  // down until 2, computed from 5 to 6, up from 6 to 7
}

}  // namespace
}  // namespace cleave::timing
