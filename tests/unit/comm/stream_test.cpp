// Messages over one connection: order, limits, peers that die in the middle of a message or send what is none.
#include "stream.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cleave/base/clock.hpp"
#include "stream_transport.hpp"

namespace cleave::comm {
namespace {

constexpr Seconds kStreamLimit{30};

// Both ends of a TCP connection of this host.
std::pair<Descriptor, Descriptor> tcp_pair() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof where;
  auto* const address = reinterpret_cast<sockaddr*>(&where);
  EXPECT_EQ(::bind(listener.get(), address, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), address, &size), 0);
  Descriptor one(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(one.get(), address, size), 0);
  return {std::move(one), Descriptor(::accept(listener.get(), nullptr, nullptr))};
}

Frame patterned(std::int64_t size, int seed) {
  Frame frame(size);
  for (std::int64_t i = 0; i < size; ++i) frame.data()[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return frame;
}

bool is_patterned(const Frame& frame, std::int64_t size, int seed) {
  const Frame wanted = patterned(size, seed);
  return frame.size() == size && (size == 0 || std::memcmp(frame.data(), wanted.data(), wanted.bytes().size()) == 0);
}

// Moves two ends, as epoll would have it, until the condition holds.
bool move_until(Stream& from, Stream& to, const std::function<bool()>& condition) {
  const SteadyClock clock;
  for (const Seconds end = clock.now() + kStreamLimit; clock.now() < end;) {
    if (condition()) return true;
    for (Stream* stream : {&from, &to}) {
      stream->set_writable();
      stream->set_readable();
      stream->write();
      stream->read();
    }
  }
  return false;
}

struct Ends {
  explicit Ends(std::pair<Descriptor, Descriptor> sockets = tcp_pair())
      : one(std::move(sockets.first)), other(std::move(sockets.second)) {}
  Stream one, other;
};

// One end is a stream, the other what a peer that is not well may send.
struct Forger {
  explicit Forger(std::pair<Descriptor, Descriptor> sockets = tcp_pair())
      : socket(std::move(sockets.first)), stream(std::move(sockets.second)) {}
  void send(const void* data, std::size_t bytes) const {
    EXPECT_EQ(::send(socket.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  bool read_until(const std::function<bool()>& condition) {
    const SteadyClock clock;
    for (const Seconds end = clock.now() + kStreamLimit; clock.now() < end;) {
      stream.set_readable();
      stream.read();
      if (condition()) return true;
    }
    return false;
  }
  Descriptor socket;
  Stream stream;
};

TEST(Stream, MessagesOfManySizesArriveInOrderBothWays) {
  Ends ends;
  const std::vector<std::int64_t> sizes = {0,     1,     15,    16,      17, 16383,   16384,         16385, 0,
                                           65536, 99991, 12345, 1 << 20, 7,  8 << 20, 3 * 1234567LL, 0};
  for (const std::int64_t size : sizes) {
    ends.one.send(patterned(size, 1), StreamKind::frame);
    ends.other.send(patterned(size, 2), StreamKind::notice);
  }
  EXPECT_EQ(ends.one.pending(), std::ssize(sizes));
  ASSERT_TRUE(move_until(ends.one, ends.other, [&] {
    return ends.one.waiting() == std::ssize(sizes) && ends.other.waiting() == std::ssize(sizes);
  }));
  EXPECT_EQ(ends.one.pending_bytes(), 0);
  for (const std::int64_t size : sizes) {
    const Stream::Message there = ends.other.take(), here = ends.one.take();
    EXPECT_TRUE(is_patterned(there.frame, size, 1)) << size;
    EXPECT_EQ(there.kind, StreamKind::frame);
    EXPECT_TRUE(is_patterned(here.frame, size, 2)) << size;
    EXPECT_EQ(here.kind, StreamKind::notice);
  }
  EXPECT_EQ(ends.one.incoming().bytes, 0);
  EXPECT_EQ(ends.one.incoming().messages, 0);
  EXPECT_FALSE(ends.one.ended() || ends.other.ended());
}

// However the bytes are cut on their way.
TEST(Stream, MessagesInPieces) {
  Forger forger;
  std::vector<std::byte> bytes;
  std::mt19937 random(7);
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 60; ++i) {
    sizes.push_back(static_cast<std::int64_t>(random() % (i % 7 == 0 ? 50000 : 60)));
    const StreamHeader header{.bytes = static_cast<std::uint64_t>(sizes.back())};
    const Frame frame = patterned(sizes.back(), i);
    const auto* const head = reinterpret_cast<const std::byte*>(&header);
    bytes.insert(bytes.end(), head, head + sizeof header);
    bytes.insert(bytes.end(), frame.data(), frame.data() + frame.size());
  }
  std::int64_t taken = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min<std::size_t>(bytes.size() - at, 1 + random() % (at % 2 == 0 ? 40 : 30000));
    forger.send(bytes.data() + at, piece);
    at += piece;
    forger.stream.set_readable();
    forger.stream.read();
    for (; forger.stream.waiting() > 0; ++taken) {
      const Stream::Message message = forger.stream.take();
      EXPECT_TRUE(is_patterned(message.frame, sizes[static_cast<std::size_t>(taken)], static_cast<int>(taken)));
    }
  }
  ASSERT_TRUE(forger.read_until([&] { return taken + forger.stream.waiting() == 60; }));
}

TEST(Stream, ManySmallMessagesShareCalls) {
  Ends ends;
  for (int i = 0; i < 200; ++i) ends.one.send(patterned(40, i), StreamKind::frame);
  EXPECT_EQ(ends.one.write(), 200 - 7);  // seven calls of up to 32 messages
  ASSERT_TRUE(move_until(ends.one, ends.other, [&] { return ends.other.waiting() == 200; }));
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(is_patterned(ends.other.take().frame, 40, i));
}

TEST(Stream, APeerThatDiesInTheMiddleOfAMessage) {
  Forger forger;
  const StreamHeader whole{.bytes = 5}, cut{.bytes = 1 << 20};
  forger.send(&whole, sizeof whole);
  forger.send("12345", 5);
  forger.send(&cut, sizeof cut);
  forger.send("123", 3);
  forger.socket.reset();
  ASSERT_TRUE(forger.read_until([&] { return forger.stream.ended(); }));
  ASSERT_EQ(forger.stream.waiting(), 1);  // what came whole is not lost
  EXPECT_EQ(forger.stream.take().frame.size(), 5);
  EXPECT_EQ(forger.stream.incoming().bytes, 0);
  forger.stream.send(patterned(10, 0), StreamKind::frame);
  EXPECT_EQ(forger.stream.write(), 0);
  EXPECT_EQ(forger.stream.pending(), 0);
}

// Neither is an error, nor a wait: what was sent to it is lost.
TEST(Stream, APeerThatDiesInTheMiddleOfWhatItIsSent) {
  for (const bool reset : {false, true}) {
    auto sockets = tcp_pair();
    Stream stream(std::move(sockets.first));
    for (int i = 0; i < 4; ++i) stream.send(patterned(16 << 20, i), StreamKind::frame);
    stream.write();
    EXPECT_GT(stream.pending(), 0);
    if (reset) {
      const linger at_once{1, 0};
      ::setsockopt(sockets.second.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    sockets.second.reset();
    const SteadyClock clock;
    for (const Seconds end = clock.now() + kStreamLimit; !stream.ended() && clock.now() < end;) {
      stream.set_writable();
      stream.set_readable();
      stream.write();
      stream.read();
    }
    EXPECT_TRUE(stream.ended());
    EXPECT_EQ(stream.pending(), 0);
    EXPECT_EQ(stream.pending_bytes(), 0);
    EXPECT_TRUE(stream.flushed());
  }
}

TEST(Stream, WhatIsNoHeaderEndsIt) {
  StreamHeader long_one{.bytes = static_cast<std::uint64_t>(kMaxFrameBytes) + 1};
  StreamHeader endless{.bytes = ~std::uint64_t{0}};
  StreamHeader no_kind{.bytes = 4, .kind = static_cast<StreamKind>(3)};
  StreamHeader no_magic{.bytes = 4, .magic = 0};
  for (const StreamHeader& header : {long_one, endless, no_kind, no_magic}) {
    Forger forger;
    const StreamHeader good{.bytes = 0};
    forger.send(&good, sizeof good);
    forger.send(&header, sizeof header);
    ASSERT_TRUE(forger.read_until([&] { return forger.stream.ended(); }));
    EXPECT_EQ(forger.stream.waiting(), 1);
    EXPECT_EQ(forger.stream.incoming().bytes, 0);
  }
}

TEST(Stream, AMessageLongerThanExpectedIsPassedOver) {
  Ends ends;
  ends.other.expect(100000);
  ends.one.send(patterned(100001, 1), StreamKind::frame);
  ends.one.send(patterned(100000, 2), StreamKind::frame);
  ASSERT_TRUE(move_until(ends.one, ends.other, [&] { return ends.other.waiting() == 1; }));
  EXPECT_TRUE(is_patterned(ends.other.take().frame, 100000, 2));
  EXPECT_EQ(ends.other.oversized(), 1);
}

// Who is not handed over to takes in no more than its budget; the sender keeps the rest, and nothing is lost.
TEST(Stream, ASlowReaderTakesInNoMoreThanItsBudget) {
  constexpr int kCount = 80;
  constexpr std::int64_t kSize = 1 << 20;
  Ends ends;
  ends.other.expect(2 * kSize);
  for (int i = 0; i < kCount; ++i) ends.one.send(patterned(kSize, i), StreamKind::frame);
  const SteadyClock clock;
  int taken = 0;
  for (const Seconds end = clock.now() + kStreamLimit; taken < kCount && clock.now() < end;) {
    for (int i = 0; i < 20; ++i) {
      ends.one.set_writable();
      ends.one.write();
      ends.other.set_readable();
      ends.other.read();
      ASSERT_LE(ends.other.incoming().bytes, 2 * kSize);
    }
    if (ends.other.waiting() == 0) continue;
    EXPECT_TRUE(is_patterned(ends.other.take().frame, kSize, taken++));
  }
  EXPECT_EQ(taken, kCount);
}

TEST(Stream, SmallMessagesHaveABudgetToo) {
  Ends ends;
  for (int i = 0; i < 1000; ++i) ends.one.send(patterned(8, i), StreamKind::frame);
  ASSERT_TRUE(move_until(ends.one, ends.other, [&] { return ends.other.waiting() == kMostMessages; }));
  EXPECT_FALSE(ends.other.can_read());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(move_until(ends.one, ends.other, [&] { return ends.other.waiting() > 0; }));
    EXPECT_TRUE(is_patterned(ends.other.take().frame, 8, i));
  }
}

TEST(Stream, AbandoningEndsWhatHasBegunAndDropsTheRest) {
  Ends ends;
  for (int i = 0; i < 3; ++i) ends.one.send(patterned(32 << 20, i), StreamKind::frame);
  ends.one.write();
  ASSERT_EQ(ends.one.pending(), 3);
  ends.one.abandon();
  ends.one.send(patterned(1, 9), StreamKind::frame);
  EXPECT_EQ(ends.one.pending_bytes(), 0);
  ASSERT_TRUE(move_until(ends.one, ends.other, [&] { return ends.other.waiting() == 1; }));
  EXPECT_TRUE(is_patterned(ends.other.take().frame, 32 << 20, 0));
  EXPECT_EQ(ends.one.pending(), 0);
}

// Rank 0 and two others in one process.
struct Three {
  Three() {
    auto first = tcp_pair(), second = tcp_pair();
    std::vector<Descriptor> of_hub(3), of_first(3), of_second(3);
    of_hub[1] = std::move(first.first);
    of_hub[2] = std::move(second.first);
    of_first[0] = std::move(first.second);
    of_second[0] = std::move(second.second);
    hub = make(0, std::move(of_hub));
    one = make(1, std::move(of_first));
    two = make(2, std::move(of_second));
  }
  static std::unique_ptr<StreamTransport> make(int rank, std::vector<Descriptor> sockets) {
    return std::make_unique<StreamTransport>(rank, std::move(sockets), std::vector<std::unique_ptr<SharedLink>>(3));
  }
  std::unique_ptr<StreamTransport> hub, one, two;
};

TEST(StreamTransport, SaysWhereARanksConnectionComesFrom) {
  const Three three;
  EXPECT_EQ(three.hub->address(1), "127.0.0.1");
  EXPECT_EQ(three.hub->address(0), "") << "there is none to itself";
}

TEST(StreamTransport, ASilentPeerDoesNotHoldUpAnother) {
  Three three;
  for (int i = 0; i < 8; ++i) three.hub->send(1, patterned(8 << 20, 0));  // nobody reads there
  three.hub->send(2, patterned(100, 3));
  three.hub->progress();
  const auto received = three.two->wait(kStreamLimit);
  ASSERT_TRUE(received);
  EXPECT_TRUE(is_patterned(received->frame, 100, 3));
  EXPECT_GT(three.hub->bytes_pending(1), 0);
  EXPECT_EQ(three.hub->bytes_pending(2), 0);
  EXPECT_FALSE(three.hub->close(Seconds(0.05)));
}

TEST(StreamTransport, WhatADeadRankSentIsHandedOverBeforeItIsGone) {
  Three three;
  three.one->send(0, patterned(1000, 1));
  three.one->send(0, patterned(3 << 20, 2));
  const SteadyClock clock;
  for (const Seconds end = clock.now() + kStreamLimit; three.one->stats().sends_pending > 0 && clock.now() < end;) {
    three.one->progress();
    three.hub->progress();
  }
  three.one.reset();
  for (const auto& [size, seed] : {std::pair{1000, 1}, std::pair{3 << 20, 2}}) {
    EXPECT_FALSE(three.hub->gone(1));
    const auto received = three.hub->wait(kStreamLimit);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->source, 1);
    EXPECT_TRUE(is_patterned(received->frame, size, seed));
  }
  for (const Seconds end = clock.now() + kStreamLimit; !three.hub->gone(1) && clock.now() < end;) {
    EXPECT_FALSE(three.hub->wait(Seconds(0.01)));
  }
  EXPECT_TRUE(three.hub->gone(1));
  EXPECT_FALSE(three.hub->gone(2));
  three.hub->send(1, patterned(100, 0));
  three.hub->send(2, patterned(100, 4));
  EXPECT_TRUE(three.hub->close(kStreamLimit));
}

// A sender faster than its reader would otherwise fill the reader's memory, as far as it may.
TEST(StreamTransport, WhatHasComeIsHandedOverBeforeMoreIsTakenIn) {
  constexpr std::int64_t kSize = std::int64_t{2} << 20;
  constexpr int kCount = 32;
  Three three;
  three.hub->expect(1, kCount * kSize);
  for (int i = 0; i < kCount; ++i) three.one->send(0, patterned(kSize, i));
  for (int i = 0; i < kCount; ++i) {
    std::optional<Received> received;
    const SteadyClock clock;
    for (const Seconds end = clock.now() + kStreamLimit; !received && clock.now() < end; received = three.hub->poll()) {
      three.one->progress();
    }
    ASSERT_TRUE(received);
    EXPECT_TRUE(is_patterned(received->frame, kSize, i));
    for (int turn = 0; turn < 8; ++turn) three.one->progress();
  }
  EXPECT_LE(three.hub->stats().most_taken_in, kCount * kSize / 3);
}

TEST(StreamTransport, AWaitEndsWhenItIsInterruptedAndSleepsOtherwise) {
  Three three;
  const SteadyClock clock;
  const Seconds start = clock.now();
  EXPECT_FALSE(three.hub->wait(Seconds(0.1)));
  EXPECT_GE(clock.now() - start, Seconds(0.1));
  three.hub->interrupt();
  EXPECT_FALSE(three.hub->wait(kStreamLimit));
  EXPECT_LT(clock.now() - start, kStreamLimit);
}

}  // namespace
}  // namespace cleave::comm
