// The star against times that follow from its rules by hand: streams, what stays, reservations, priorities, churn.
#include "cleave/timing/star.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "cleave/base/random.hpp"

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

// At a thousandth of its rates the device is sent the panel until 1000, and computes it until 2000.
TEST(Star, WhatIsUnderWayCountsAsFarAsItHasGone) {
  Star star({device(100, 1000, 1000)}, wide());
  star.slow(0, 0.001);
  Stream s = stream(1, 1000, 100, 0);
  star.submit(0, s);
  star.move_to(Seconds(1500));
  EXPECT_DOUBLE_EQ(star.usage(0).down.value(), 1000);
  EXPECT_DOUBLE_EQ(star.usage(0).compute.value(), 500);
  (void)star.leave(0);
  EXPECT_DOUBLE_EQ(star.usage(0).compute.value(), 500);
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

// Three messages of a second each: a device whose message waits for the port has its link taken until that is through.
TEST(Star, WhoWaitsForThePortIsTakenUntilItsTurnIsOver) {
  fleet::ServerProfile server = wide();
  server.nic_out = BytesPerSecond(1000);
  Star star({device(100, 1000, 1000), device(100, 1000, 1000), device(100, 1000, 1000)}, server);
  std::vector<Stream> streams{stream(0, 1000, 0, 1000), stream(1, 1000, 0, 1000), stream(2, 1000, 0, 1000)};
  for (std::size_t d = 0; d < 3; ++d) star.submit(d, streams[d]);
  for (std::size_t d = 0; d < 3; ++d)
    EXPECT_DOUBLE_EQ(star.state_ahead_of(d, {}).down_busy.value(), 1 + static_cast<double>(d)) << d;
  EXPECT_EQ(star.next_answer(Seconds(1.5)), nullptr);
  EXPECT_DOUBLE_EQ(star.state_ahead_of(1, {}).down_busy.value(), 0.5);
  EXPECT_DOUBLE_EQ(star.state_ahead_of(2, {}).down_busy.value(), 1.5);
}

// Ahead of a priority is what is under way, and what is as urgent or more so.
TEST(Star, WhatIsAsUrgentIsAhead) {
  Star star({device(100, 1000, 1000)}, wide());
  Stream first = stream(1, 1000, 0, 1000), second = stream(2, 2000, 0, 1000), third = stream(3, 4000, 0, 1000);
  second.priority = {1, 5};
  third.priority = {1, 6};
  for (Stream* const s : {&first, &second, &third}) star.submit(0, *s);
  EXPECT_DOUBLE_EQ(star.state_ahead_of(0, {1, 4}).down_busy.value(), 1);
  EXPECT_DOUBLE_EQ(star.state_ahead_of(0, {1, 5}).down_busy.value(), 1 + 2);
  EXPECT_DOUBLE_EQ(star.state_ahead_of(0, {1, 6}).down_busy.value(), 1 + 2 + 4);
}

// As in WhatStaysComesJustBeforeWhoUsesIt, but only the turns differ.
TEST(Star, WhatStaysTakesTheTurnOfWhoUsesIt) {
  Star star({device(100, 1000, 1000)}, wide());
  Stream early = stream(1, 1000, 0, 1000), weights = stream(2, 3000, 0, 0), other = stream(3, 1000, 0, 1000),
         user = stream(4, 1000, 0, 1000);
  weights.stays = true;
  weights.priority = {1, 9};
  other.priority = {1, 7};
  user.priority = {1, 5};
  user.uses = 2;
  for (Stream* const s : {&early, &weights, &other, &user}) star.submit(0, *s);
  EXPECT_EQ(star.next_answer(), &early);
  EXPECT_EQ(star.next_answer(), &user);
  EXPECT_DOUBLE_EQ(star.now().value(), 1 + 3 + 1 + 1);
  EXPECT_EQ(star.next_answer(), &other);
}

// Given up before all of it has come, it frees its memory when the rest is there.
TEST(Star, WhatIsGivenUpOnTheWayFreesItsMemoryWhenItIsThere) {
  Star star({device(100, 1000, 1000, 0, 100)}, wide());
  Stream weights;
  weights.id = 1;
  weights.panels = PanelSequence::runs(2, 2, {1000 - kMessageHeader.value(), 0, 0});
  weights.bytes_down = Bytes(2000);
  weights.resident = Bytes(60);
  weights.stays = true;
  Stream next = stream(2, 1000, 0, 1000, 60);
  star.submit(0, weights);
  star.submit(0, next);
  star.move_to(Seconds(0.5));
  EXPECT_EQ(star.release(0, 1), nullptr);
  EXPECT_TRUE(star.take_ended().empty());
  EXPECT_EQ(star.next_answer(), &next);
  EXPECT_DOUBLE_EQ(star.now().value(), 2 + 1 + 1);
  EXPECT_EQ(star.take_ended(), std::vector<Stream*>{&weights});
  EXPECT_TRUE(star.take_ended().empty()) << "once";
  // Given up once more it frees nothing: beside one that fills the memory there is no room for another.
  EXPECT_EQ(star.release(0, 1), nullptr);
  Stream third = stream(3, 1000, 0, 1000, 100), fourth = stream(4, 1000, 0, 1000, 50);
  star.submit(0, third);
  star.submit(0, fourth);
  EXPECT_EQ(star.next_answer(), &third);
  EXPECT_EQ(star.next_answer(), &fourth);
  EXPECT_DOUBLE_EQ(star.now().value(), 4 + 2 + 2);
  EXPECT_TRUE(star.leave(0).empty()) << "what has ended is not lost";
}

// While the second waits for room, the third, which would find some, waits too; the first is in memory and goes on.
TEST(Star, NobodyOvertakesAStreamThatWaitsForRoom) {
  Star star({device(100, 1000, 1000, 0, 100)}, wide());
  Stream first;
  first.id = 1;
  first.panels = PanelSequence::runs(3, 3, {1000 - kMessageHeader.value(), 1000 - kMessageHeader.value(), 0});
  first.bytes_down = first.bytes_up = Bytes(3000);
  first.resident = Bytes(60);
  first.priority = {9, 0};
  Stream second = stream(2, 1000, 0, 1000, 60), third = stream(3, 1000, 0, 1000, 30);
  second.priority = {1, 0};
  third.priority = {5, 0};
  for (Stream* const s : {&first, &second, &third}) star.submit(0, *s);
  EXPECT_EQ(star.next_answer(), &first);
  EXPECT_DOUBLE_EQ(star.now().value(), 3 + 1);
  EXPECT_EQ(star.next_answer(), &second);
  EXPECT_DOUBLE_EQ(star.now().value(), 4 + 1 + 1);
  EXPECT_EQ(star.next_answer(), &third);
  EXPECT_DOUBLE_EQ(star.now().value(), 4 + 2 + 1);
}

// The second has no room beside the first and what is reserved; it comes as soon as that is given back, while the first
// still goes up.
TEST(Star, AReservationThatIsGivenBackLetsTheNextStreamIn) {
  Star star({device(100, 1000, 1000, 0, 100)}, wide());
  star.reserve(0, Bytes(50));
  Stream first = stream(1, 1000, 0, 10000, 40), second = stream(2, 1000, 0, 1000, 40);
  star.submit(0, first);
  star.submit(0, second);
  EXPECT_EQ(star.next_answer(Seconds(5)), nullptr);
  star.reserve(0, Bytes(-50));
  EXPECT_EQ(star.next_answer(), &first);
  EXPECT_DOUBLE_EQ(star.now().value(), 11);
  EXPECT_EQ(star.next_answer(), &second);
  EXPECT_DOUBLE_EQ(star.now().value(), 12);  // down from 5 to 6, up when the link is free
}

// Neither what was reserved nor what its processor had begun is left of a device that leaves and comes back.
TEST(Star, WhoComesBackIsAsNew) {
  Star star({device(100, 1000, 1000, 0, 100)}, wide());
  star.reserve(0, Bytes(50));
  Stream lost = stream(1, 1000, 10000, 1000, 40);
  star.submit(0, lost);
  EXPECT_EQ(star.next_answer(Seconds(2)), nullptr);
  star.leave(0);
  star.join(0);
  Stream first = stream(2, 1000, 0, 1000, 40), second = stream(3, 1000, 0, 1000, 40);
  star.submit(0, first);
  star.submit(0, second);
  EXPECT_EQ(star.next_answer(), &first);
  EXPECT_DOUBLE_EQ(star.now().value(), 2 + 2);
  EXPECT_EQ(star.next_answer(), &second);
  EXPECT_DOUBLE_EQ(star.now().value(), 2 + 3);
}

// Nor are messages that it would have got, or sent, if it had stayed: what comes after them does not wait for them.
TEST(Star, WhoComesBackDoesNotWaitForMessagesThatAreLost) {
  for (const bool up : {false, true}) {
    Star star({device(100, 1000, 1000)}, wide());
    Stream lost = up ? stream(1, 1000, 0, 20'000) : stream(1, 20'000, 0, 1000), next = stream(2, 1000, 0, 1000);
    star.submit(0, lost);
    EXPECT_EQ(star.next_answer(Seconds(3)), nullptr);
    star.leave(0);
    star.join(0);
    star.submit(0, next);
    EXPECT_EQ(star.next_answer(), &next);
    EXPECT_DOUBLE_EQ(star.now().value(), 3 + 2) << up;
  }
}

// A caller may use the memory of a stream that was lost for the next one: when the lost one would have been computed
// says nothing of that.
TEST(Star, AStreamKnowsNothingOfTheOneBeforeItInItsPlace) {
  for (const bool background : {false, true}) {
    Star star({device(100, 1000, 1000)}, wide());
    Stream place = stream(1, 1000, 5000, 1000);
    star.submit(0, place);
    EXPECT_EQ(star.next_answer(Seconds(2)), nullptr);
    star.leave(0);
    star.join(0);
    const Stream next = stream(2, 1000, 100, 1000);
    place.id = next.id;
    place.panels = next.panels;
    place.flops = next.flops;
    place.background = background;
    star.submit(0, place);
    EXPECT_EQ(star.next_answer(), &place);
    EXPECT_DOUBLE_EQ(star.now().value(), 2 + 3) << background;
  }
}

// Messages of one device arrive in the order in which they were sent, however much they jitter.
TEST(Star, JitterChangesNoOrder) {
  fleet::DeviceProfile shaky = device(100, 1000, 1000);
  shaky.jitter = Seconds(50);
  Star star({shaky}, wide(), 3);
  std::vector<Stream> streams;
  for (std::int64_t id = 0; id < 20; ++id) streams.push_back(stream(id, 1000, 0, 1000));
  for (Stream& s : streams) star.submit(0, s);
  for (Stream& s : streams) EXPECT_EQ(star.next_answer(), &s);
}

// When the processor begins with each stream.
struct Starts final : ResourceObserver {
  std::map<std::int64_t, Seconds> of;
  void used(const Stream& stream, Resource resource, Seconds start, Seconds /*end*/, Bytes /*bytes*/) override {
    if (resource == Resource::compute) of[stream.id] = start;
  }
};

// The processor would rather have the later one, but that is not there before the earlier.
TEST(Star, NothingOvertakesABackgroundPanelOnTheWay) {
  fleet::DeviceProfile shaky = device(100, 1000, 1000);
  shaky.jitter = Seconds(50);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto starts_of = [&](bool both) {
      Starts starts;
      Star star({shaky}, wide(), seed);
      star.watch(&starts);
      Stream background = stream(1, 1000, 100, 1000), ordinary = stream(2, 1000, 100, 1000);
      background.background = true;
      star.submit(0, background);
      if (both) star.submit(0, ordinary);
      while (star.next_answer() != nullptr) {}
      return starts.of;
    };
    const Seconds arrives = starts_of(false).at(1);  // where it is alone, it is computed as it arrives
    EXPECT_GE(starts_of(true).at(2), arrives) << seed;
  }
}

// The first message's latency is the first draw of the purpose that jitter has for itself.
TEST(Star, JitterIsDrawnForItself) {
  fleet::DeviceProfile shaky = device(100, 1000, 1000, 0.25);
  shaky.jitter = Seconds(50);
  Star star({shaky}, wide(), 7);
  Stream s = stream(1, 1000, 0, 1000);
  star.submit(0, s);
  ASSERT_EQ(star.next_answer(), &s);
  const Random draws(7, Purpose::jitter);
  EXPECT_DOUBLE_EQ(star.now().value(), 2 + 2 * 0.25 + 50 * (draws.uniform(0) + draws.uniform(1)));
}

}  // namespace
}  // namespace cleave::timing
