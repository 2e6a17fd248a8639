// The side channel without MPI: ends that close are noticed, strangers are not let in.
#include "liveness.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sockets.hpp"

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

// Links that answer a challenge do so when they look.
template <class... Link>
void look_at_all(LivenessHub& hub, Link&... links) {
  hub.look();
  (links.look(), ...);
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
  LivenessLink two(address_of(hub), 2, Seconds(5));
  ASSERT_TRUE(one->connected());
  const auto both = [&] {
    look_at_all(hub, *one, two);
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
    LivenessLink link(address_of(hub), 1, Seconds(5));
    while (true) {
      link.look();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
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
  forged.key[0] ^= std::byte{1};
  LivenessLink stranger(forged, 1, Seconds(5));
  LivenessLink out_of_range(address_of(hub), 7, Seconds(5));
  const auto sent_away = [&] {
    look_at_all(hub, stranger, out_of_range);
    return stranger.gone(0) && out_of_range.gone(0);
  };
  EXPECT_TRUE(within(10, sent_away));
  EXPECT_FALSE(hub.connected(1));
  // The seat is free for the one whom it belongs to.
  LivenessLink true_one(address_of(hub), 1, Seconds(5));
  const auto connected = [&] {
    look_at_all(hub, true_one);
    return hub.connected(1);
  };
  EXPECT_TRUE(within(10, connected));
}

// All links have connected, and found their bells where there are any.
bool all_know_each_other(LivenessHub& hub, std::initializer_list<LivenessLink*> links) {
  const auto complete = [&] {
    hub.look();
    for (LivenessLink* link : links) link->look();
    return hub.complete();
  };
  const bool all = within(10, complete);
  for (LivenessLink* link : links) link->look();
  hub.look();
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
  ASSERT_TRUE(all_know_each_other(hub, {&link}));
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
  ASSERT_TRUE(all_know_each_other(*hub, {link.get()}));
  link.reset();
  const auto noticed = [&] {
    hub->look();
    return !woken(*hub, 0);
  };
  ASSERT_TRUE(woken(*hub, 10000));
  EXPECT_TRUE(within(10, noticed));
  hub->wake(1);  // to nobody
}

int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.exists() ? 1 : 0;
  return count;
}

// A connection to where a hub of one host listens.
Descriptor connect_to(const LivenessHub& hub) {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  const LivenessAddress address = hub.address();
  const std::size_t length = ::strnlen(address.host.data(), address.host.size());
  std::memcpy(&where.sun_path[1], address.host.data(), length);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), size) != 0) socket.reset();
  return socket;
}

bool is_closed(const Descriptor& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

void send_greeting(const Descriptor& socket, const LivenessHub& hub, std::int64_t rank, std::span<const int> passed) {
  const LivenessGreeting greeting = greeting_of(hub.address().key, {}, rank);
  iovec part{const_cast<LivenessGreeting*>(&greeting), sizeof greeting};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
  if (!passed.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(passed.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(passed.size_bytes());
    std::memcpy(CMSG_DATA(header), passed.data(), passed.size_bytes());
  }
  ASSERT_EQ(::sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof greeting));
}

// Descriptors that come with a greeting, or with what wakes, are nobody's: none stays open, two no more than one.
TEST(LivenessHub, KeepsNoDescriptorThatIsSentToIt) {
  LivenessHub hub(3, true);
  hub.look();
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const Descriptor reader(pipe_ends[0]), writer(pipe_ends[1]);
  for (const std::size_t count : {1, 2, 4}) {
    const int before = open_descriptors();
    for (int i = 0; i < 20; ++i) {
      const Descriptor stranger = connect_to(hub);
      ASSERT_TRUE(stranger);
      const std::vector<int> passed(count, writer.get());
      send_greeting(stranger, hub, 9, passed);  // there is no such rank
      ASSERT_TRUE(within(10, [&] {
        hub.look();
        return is_closed(stranger);
      }));
    }
    EXPECT_EQ(open_descriptors(), before) << count << " descriptors a message";
  }
}

// A pipe that is full, given as what is to be rung, would stop rank 0 for ever.
TEST(LivenessHub, RingsNothingThatARankSuppliesItself) {
  LivenessHub hub(2, true);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const Descriptor reader(ends[0]), writer(ends[1]);
  const std::array<char, 4096> rubbish{};
  while (::write(writer.get(), rubbish.data(), rubbish.size()) > 0) {}
  ASSERT_EQ(::fcntl(writer.get(), F_SETFL, 0), 0);  // it waits now
  const Descriptor rank = connect_to(hub);
  send_greeting(rank, hub, 1, std::array{writer.get()});
  ASSERT_TRUE(within(10, [&] {
    hub.look();
    return hub.connected(1);
  }));
  ::alarm(20);  // a hub that waits is ended by it
  for (int i = 0; i < 1000; ++i) hub.wake(1);
  ::alarm(0);
}

// What rank 0 gives a rank to ring and to be rung by: whoever has it may fill it and take the non-blocking flag away.
TEST(LivenessHub, WakesARankThatSpoiledItsBells) {
  LivenessHub hub(2, true);
  const Descriptor rank = connect_to(hub);
  send_greeting(rank, hub, 1, {});
  std::array<Descriptor, 2> bells;
  ASSERT_TRUE(within(10, [&] {
    hub.look();
    std::array<std::byte, 64> bytes;
    (void)receive_with_descriptors(rank.get(), bytes, bells);
    return bells[0] && bells[1];
  }));
  const char has_bells = kHasBells;
  ASSERT_EQ(::send(rank.get(), &has_bells, 1, MSG_NOSIGNAL), 1);
  const std::array<char, 4096> rubbish{};
  for (const Descriptor& bell : bells) {
    while (::write(bell.get(), rubbish.data(), rubbish.size()) > 0) {}
    ASSERT_EQ(::fcntl(bell.get(), F_SETFL, O_RDWR), 0);
  }
  ::alarm(20);
  for (int i = 0; i < 1000; ++i) {
    hub.wake(1);
    hub.look();
  }
  // Emptied, with the flag still away: looking waits for nothing either.
  std::array<char, 4096> taken{};
  int left = 0;
  while (::ioctl(bells[1].get(), FIONREAD, &left) == 0 && left > 0) {
    ASSERT_GT(::read(bells[1].get(), taken.data(), taken.size()), 0);
  }
  hub.look();
  ::alarm(0);
}

// Strangers that say nothing keep neither a rank out nor rank 0 awake, however many they are.
TEST(LivenessHub, SilentStrangersMakeRoom) {
  LivenessHub hub(3, true);
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(connect_to(hub));
    ASSERT_TRUE(strangers.back()) << i;
    if (i % 50 == 0) hub.look();
  }
  const auto settled = [&] {
    hub.look();
    pollfd event{hub.descriptor(), POLLIN, 0};
    return ::poll(&event, 1, 0) == 0;
  };
  EXPECT_TRUE(within(10, settled)) << "rank 0 is woken all the time";
  LivenessLink one(address_of(hub), 1, Seconds(5)), two(address_of(hub), 2, Seconds(5));
  EXPECT_TRUE(all_know_each_other(hub, {&one, &two}));
  // Nobody listens any more.
  EXPECT_FALSE(connect_to(hub));
  EXPECT_TRUE(is_closed(strangers.back()));
}

// Over a network strangers have a challenge before them and say nothing; one address keeps no more than its share.
TEST(LivenessHub, SilentStrangersOfANetworkMakeRoom) {
  LivenessHub hub(3, false, "127.0.0.1");
  const auto connect_from = [&](const std::string& address) {
    sockaddr_in own{}, where{};
    own.sin_family = where.sin_family = AF_INET;
    EXPECT_EQ(::inet_pton(AF_INET, address.c_str(), &own.sin_addr), 1);
    where.sin_port = htons(hub.address().port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    return socket;
  };
  // Still there: the challenge, and no end after it.
  const auto kept = [](const std::vector<Descriptor>& strangers) {
    return std::count_if(strangers.begin(), strangers.end(), [](const Descriptor& stranger) {
      LivenessChallenge challenge;
      while (::recv(stranger.get(), challenge.data(), challenge.size(), MSG_DONTWAIT) > 0) {}
      return !is_closed(stranger);
    });
  };
  const int before = open_descriptors();
  std::vector<Descriptor> near, far;
  for (int i = 0; i < 200; ++i) {
    near.push_back(connect_from("127.0.0.1"));
    if (i % 20 == 0) far.push_back(connect_from("127.0.0." + std::to_string(2 + i / 20)));
    hub.look();
  }
  const auto share = static_cast<std::ptrdiff_t>(3 + LivenessHub::kStrangers / 4);
  EXPECT_TRUE(within(10,
                     [&] {
                       hub.look();
                       return kept(near) == share;
                     }))
      << kept(near) << " of one address";
  EXPECT_EQ(kept(far), 10) << "those of one address drove others out";
  EXPECT_EQ(open_descriptors() - before, 210 + share + 10);
  // The ranks come from the crowded address.
  LivenessLink one(address_of(hub), 1, Seconds(5)), two(address_of(hub), 2, Seconds(5));
  EXPECT_TRUE(all_know_each_other(hub, {&one, &two}));
}

// Other users find the socket, too: the abstract namespace has no permissions.
TEST(LivenessHub, SendsOtherUsersAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  LivenessHub hub(2, true);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::setuid(65534) != 0) _exit(2);
    const LivenessLink link(address_of(hub), 1, Seconds(5));  // which knows the key
    _exit(link.connected() ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  for (int i = 0; i < 50; ++i) hub.look();
  EXPECT_FALSE(hub.connected(1));
}

// With no descriptor left, rank 0 leaves newcomers waiting and is not woken by them; then it lets them in.
TEST(LivenessHub, WaitsWhileThereAreNoDescriptors) {
  LivenessHub hub(2, true);
  LivenessLink link(address_of(hub), 1, Seconds(5));
  rlimit whole{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &whole), 0);
  rlimit none = whole;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  hub.look();
  pollfd event{hub.descriptor(), POLLIN, 0};
  const int readable = ::poll(&event, 1, 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &whole), 0);
  EXPECT_EQ(readable, 0) << "rank 0 is woken all the time";
  EXPECT_FALSE(hub.connected(1));
  EXPECT_TRUE(all_know_each_other(hub, {&link}));
}

// Of a network, a stranger learns nothing from what it overhears: each greeting answers a challenge of its own.
TEST(LivenessHub, AGreetingIsGoodForOneConnection) {
  LivenessHub hub(3, false, "127.0.0.1");
  const auto connect = [&] {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(hub.address().port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    return socket;
  };
  const auto challenge_of = [&](const Descriptor& socket) {
    LivenessChallenge challenge{};
    EXPECT_TRUE(within(10, [&] {
      hub.look();
      return ::recv(socket.get(), challenge.data(), challenge.size(), MSG_DONTWAIT) ==
             static_cast<ssize_t>(challenge.size());
    }));
    return challenge;
  };
  const Descriptor first = connect(), second = connect();
  const LivenessChallenge of_first = challenge_of(first), of_second = challenge_of(second);
  EXPECT_NE(of_first, of_second);
  const LivenessGreeting overheard = greeting_of(hub.address().key, of_first, 1);
  ASSERT_EQ(::send(second.get(), &overheard, sizeof overheard, 0), static_cast<ssize_t>(sizeof overheard));
  EXPECT_TRUE(within(10, [&] {
    hub.look();
    return is_closed(second);
  }));
  EXPECT_FALSE(hub.connected(1));
  ASSERT_EQ(::send(first.get(), &overheard, sizeof overheard, 0), static_cast<ssize_t>(sizeof overheard));
  EXPECT_TRUE(within(10, [&] {
    hub.look();
    return hub.connected(1);
  }));
}

TEST(LivenessHub, ListensWhereItIsTold) {
  const LivenessHub hub(2, false, "127.0.0.1");
  EXPECT_STREQ(hub.address().host.data(), "127.0.0.1");
  ASSERT_GE(hub.descriptor(), 0);
  EXPECT_LT(LivenessHub(2, false, "192.0.2.77").descriptor(), 0);  // no address of this host: nowhere, not everywhere
}

// The kernel says which process a rank is.
TEST(LivenessHub, KnowsTheProcessOfARank) {
  LivenessHub hub(2, true);
  EXPECT_LT(hub.process(1).descriptor, 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    LivenessLink link(address_of(hub), 1, Seconds(5));
    while (true) pause();
  }
  EXPECT_TRUE(within(10, [&] {
    hub.look();
    return hub.connected(1);
  }));
  const PeerProcess process = hub.process(1);
  EXPECT_EQ(process.pid, child);
  pollfd ended{process.descriptor, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 0), 0);
  kill(child, SIGKILL);
  EXPECT_EQ(::poll(&ended, 1, 10000), 1);
  waitpid(child, nullptr, 0);
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
