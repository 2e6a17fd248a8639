// The side channel without MPI: ends that close are noticed, strangers are not let in.
#include "liveness.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <thread>

namespace cleave::comm {
namespace {

template <class Condition>
bool within(double seconds, const Condition& condition) {
  const SteadyClock clock;
  for (const Seconds end = clock.now() + Seconds(seconds); clock.now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

// Of one host, or of several.
class LivenessTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OfHosts, LivenessTest, testing::Values(true, false));

// Whether this host's own name is known to it does not matter here.
LivenessAddress address_of(const LivenessHub& hub) {
  LivenessAddress address = hub.address();
  if (address.port != 0) address.host = {"127.0.0.1"};
  return address;
}

TEST_P(LivenessTest, ALinkThatClosesIsGone) {
  LivenessHub hub(3, GetParam());
  auto one = std::make_unique<LivenessLink>(address_of(hub), 1, Seconds(5));
  const LivenessLink two(address_of(hub), 2, Seconds(5));
  ASSERT_TRUE(one->connected());
  const auto both = [&] {
    hub.look();
    return hub.connected(1) && hub.connected(2);
  };
  ASSERT_TRUE(within(10, both));
  EXPECT_FALSE(hub.gone(1));
  one.reset();
  const auto gone = [&] {
    hub.look();
    return hub.gone(1);
  };
  EXPECT_TRUE(within(10, gone));
  EXPECT_FALSE(hub.gone(2));
  EXPECT_FALSE(hub.gone(0));
}

TEST_P(LivenessTest, AHubThatClosesIsGone) {
  auto hub = std::make_unique<LivenessHub>(2, GetParam());
  LivenessLink link(address_of(*hub), 1, Seconds(5));
  hub->look();
  link.look();
  EXPECT_FALSE(link.gone(0));
  hub.reset();
  const auto gone = [&] {
    link.look();
    return link.gone(0);
  };
  EXPECT_TRUE(within(10, gone));
}

TEST_P(LivenessTest, AKilledProcessIsGone) {
  LivenessHub hub(2, GetParam());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const LivenessLink link(address_of(hub), 1, Seconds(5));
    while (true) pause();
  }
  const auto connected = [&] {
    hub.look();
    return hub.connected(1);
  };
  ASSERT_TRUE(within(10, connected));
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  hub.look();
  EXPECT_FALSE(hub.gone(1));  // stopped is not dead
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto gone = [&] {
    hub.look();
    return hub.gone(1);
  };
  EXPECT_TRUE(within(10, gone));
}

TEST_P(LivenessTest, StrangersAreSentAway) {
  LivenessHub hub(2, GetParam());
  LivenessAddress forged = address_of(hub);
  forged.token ^= 1;
  LivenessLink stranger(forged, 1, Seconds(5));
  const LivenessLink out_of_range(address_of(hub), 7, Seconds(5));
  const auto sent_away = [&] {
    hub.look();
    stranger.look();
    return stranger.gone(0);
  };
  EXPECT_TRUE(within(10, sent_away));
  EXPECT_FALSE(hub.connected(1));
  // The seat is free for the one whom it belongs to.
  const LivenessLink true_one(address_of(hub), 1, Seconds(5));
  const auto connected = [&] {
    hub.look();
    return hub.connected(1);
  };
  EXPECT_TRUE(within(10, connected));
}

// All links have connected, and found the hub's bell where there is one.
bool all_know_each_other(LivenessHub& hub, std::initializer_list<LivenessLink*> links) {
  const auto complete = [&] {
    hub.look();
    return hub.complete();
  };
  const bool all = within(10, complete);
  for (LivenessLink* link : links) link->look();
  return all;
}

bool woken(const Liveness& end, int milliseconds) {
  std::array<pollfd, 2> events{{{end.descriptor(), POLLIN, 0}, {end.bell(), POLLIN, 0}}};
  return ::poll(events.data(), events.size(), milliseconds) > 0;
}

// Whether an end is woken by its bell.
bool rings(const Liveness& end, int milliseconds) {
  pollfd event{end.bell(), POLLIN, 0};
  return ::poll(&event, 1, milliseconds) > 0;
}

TEST_P(LivenessTest, AWakeIsReadOnce) {
  LivenessHub hub(3, GetParam());
  LivenessLink one(address_of(hub), 1, Seconds(5)), two(address_of(hub), 2, Seconds(5));
  EXPECT_FALSE(hub.complete());
  ASSERT_TRUE(all_know_each_other(hub, {&one, &two}));
  EXPECT_FALSE(woken(hub, 0));
  EXPECT_FALSE(woken(one, 0));

  for (int i = 0; i < 3; ++i) one.wake(0);
  ASSERT_TRUE(woken(hub, 10000));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // all three are there
  hub.look();
  EXPECT_FALSE(woken(hub, 0));

  hub.wake(2);
  ASSERT_TRUE(woken(two, 10000));
  EXPECT_FALSE(woken(one, 0));
  two.look();
  EXPECT_FALSE(woken(two, 0));
  EXPECT_FALSE(two.gone(0));
  EXPECT_FALSE(hub.gone(1));
}

TEST(Liveness, RanksOfOneHostRingEachOthersBells) {
  LivenessHub hub(3, true);
  LivenessLink one(address_of(hub), 1, Seconds(5)), two(address_of(hub), 2, Seconds(5));
  ASSERT_TRUE(all_know_each_other(hub, {&one, &two}));
  two.wake(0);
  EXPECT_TRUE(rings(hub, 10000));
  hub.look();
  EXPECT_FALSE(woken(hub, 0));
  hub.wake(1);
  EXPECT_TRUE(rings(one, 10000));
  EXPECT_FALSE(woken(two, 0));
  one.look();
  EXPECT_FALSE(woken(one, 0));
}

// Whoever never reads does not stop who wakes it, and reads that it was woken when it does look.
TEST_P(LivenessTest, ASleeperIsWokenForEver) {
  LivenessHub hub(2, GetParam());
  LivenessLink link(address_of(hub), 1, Seconds(5));
  const auto connected = [&] {
    hub.look();
    return hub.connected(1);
  };
  ASSERT_TRUE(within(10, connected));
  for (int i = 0; i < 1'000'000; ++i) hub.wake(1);
  ASSERT_TRUE(woken(link, 10000));
  const auto quiet = [&] {
    link.look();
    return !woken(link, 0);
  };
  EXPECT_TRUE(within(10, quiet));
  EXPECT_FALSE(link.gone(0));
}

TEST_P(LivenessTest, AnEndIsNotAWakeForEver) {
  auto hub = std::make_unique<LivenessHub>(2, GetParam());
  auto link = std::make_unique<LivenessLink>(address_of(*hub), 1, Seconds(5));
  const auto connected = [&] {
    hub->look();
    return hub->connected(1);
  };
  ASSERT_TRUE(within(10, connected));
  link.reset();
  const auto noticed = [&] {
    hub->look();
    return !woken(*hub, 0);
  };
  ASSERT_TRUE(woken(*hub, 10000));
  EXPECT_TRUE(within(10, noticed));
  hub->wake(1);  // to nobody
}

TEST(LivenessLink, NobodyListens) {
  LivenessAddress nowhere;
  LivenessLink link(nowhere, 1, Seconds(1));
  EXPECT_FALSE(link.connected());
  link.look();
  EXPECT_FALSE(link.gone(0));
}

}  // namespace
}  // namespace cleave::comm
