// The transport over real MPI ranks. Every rank runs every test; every wait is bounded, and ranks meet between tests
// with frames of their own, so that a failure on one shows as a failure, not as a hang.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/random.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/comm/mpi.hpp"

namespace cleave::comm {
namespace {

constexpr Seconds kPatience{40};
MpiSession* session = nullptr;
std::unique_ptr<Transport> transport;
const SteadyClock steady;

// Some ranks are ahead of others: frames of a meeting and frames of a test are kept apart.
std::deque<Received> of_tests, of_meetings;

bool is_ready(const Frame& frame) {
  const auto header = decode(frame);
  return header && header->kind == Kind::ready;
}

void sort_in(Received received) { (is_ready(received.frame) ? of_meetings : of_tests).push_back(std::move(received)); }

Received expect_from(std::deque<Received>& queue) {
  const Seconds deadline = steady.now() + kPatience;
  while (queue.empty() && steady.now() < deadline) {
    if (auto received = transport->wait(Seconds(1))) sort_in(std::move(*received));
  }
  if (queue.empty()) {
    ADD_FAILURE() << "rank " << transport->rank() << " waited in vain";
    return {};
  }
  Received first = std::move(queue.front());
  queue.pop_front();
  return first;
}

Received expect_frame() { return expect_from(of_tests); }

// Everyone waits for rank 0, which waits for everyone.
void meet() {
  if (transport->rank() == 0) {
    for (int i = 1; i < transport->size(); ++i) expect_from(of_meetings);
    for (int i = 1; i < transport->size(); ++i) transport->send(i, encode_ready());
  } else {
    transport->send(0, encode_ready());
    expect_from(of_meetings);
  }
}

std::byte pattern(std::int64_t at, int source, std::int64_t size) {
  return static_cast<std::byte>(at * 7 + source * 31 + size);
}

Frame patterned(std::int64_t size) {
  Frame frame(size);
  for (std::int64_t i = 0; i < size; ++i) frame.data()[i] = pattern(i, transport->rank(), size);
  return frame;
}

void expect_pattern(const Received& received, std::int64_t size) {
  ASSERT_EQ(received.frame.size(), size);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < size; ++i) wrong += received.frame.data()[i] != pattern(i, received.source, size);
  EXPECT_EQ(wrong, 0);
}

TEST(MpiTransport, RingOfManySizes) {
  const int next = (transport->rank() + 1) % transport->size();
  const int previous = (transport->rank() + transport->size() - 1) % transport->size();
  const std::vector<std::int64_t> sizes = {0,    1,     127,   128,     129,     4095,          4096,
                                           4097, 65536, 99991, 1 << 20, 8 << 20, 3 * 1234567LL, 64 << 20};
  for (const std::int64_t size : sizes) transport->send(next, patterned(size));
  for (const std::int64_t size : sizes) {
    const Received received = expect_frame();
    EXPECT_EQ(received.source, previous);
    expect_pattern(received, size);
  }
  meet();
}

TEST(MpiTransport, ManyOutstanding) {
  constexpr int kCount = 500;
  for (int i = 0; i < kCount; ++i) {
    for (int dest = 0; dest < transport->size(); ++dest) {
      if (dest != transport->rank()) transport->send(dest, encode_ping(static_cast<std::uint32_t>(i)));
    }
  }
  std::vector<std::uint32_t> next(static_cast<std::size_t>(transport->size()), 0);
  for (int i = 0; i < kCount * (transport->size() - 1); ++i) {
    const Received received = expect_frame();
    ASSERT_GE(received.source, 0);
    EXPECT_EQ(decode(received.frame)->sequence, next[static_cast<std::size_t>(received.source)]++);
  }
  meet();
}

// Small frames share messages, notices of large ones among them, and keep their place between frames of every size.
TEST(MpiTransport, SmallFramesShareMessagesInTheirOrder) {
  constexpr int kCount = 3000;
  const auto size_of_frame = [](int i) {
    return static_cast<std::int64_t>(i % 97 == 0 ? 200'000 : i % 31 == 0 ? 20'000 : 1 + i * 37 % 3000);
  };
  const TransportStats before = transport->stats();
  if (transport->rank() == 0) {
    for (int i = 0; i < kCount; ++i) {
      for (int dest = 1; dest < transport->size(); ++dest) transport->send(dest, patterned(size_of_frame(i)));
    }
    const TransportStats after = transport->stats();
    EXPECT_EQ(after.frames_sent - before.frames_sent, kCount * (transport->size() - 1));
    EXPECT_GT(after.batches_sent, before.batches_sent);
    EXPECT_LT(after.batches_sent - before.batches_sent, kCount * (transport->size() - 1) / 4);
    for (int rank = 1; rank < transport->size(); ++rank) (void)expect_frame();
  } else {
    for (int i = 0; i < kCount; ++i) expect_pattern(expect_frame(), size_of_frame(i));
    transport->send(0, patterned(1));
  }
}

TEST(MpiTransport, SendToItself) {
  transport->send(transport->rank(), patterned(1 << 20));
  expect_pattern(expect_frame(), 1 << 20);
  meet();
}

TEST(MpiTransport, LargeFramesBothWaysAtOnce) {
  constexpr std::int64_t kSize = 16 << 20;
  for (int dest = 0; dest < transport->size(); ++dest) {
    if (dest != transport->rank()) transport->send(dest, patterned(kSize));
  }
  for (int i = 1; i < transport->size(); ++i) expect_pattern(expect_frame(), kSize);
  meet();
}

// Rank 0 sleeps outside MPI, the others wait inside the transport.
TEST(MpiTransport, WaitingDoesNotBurnACore) {
  meet();
  if (transport->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    for (int dest = 1; dest < transport->size(); ++dest) transport->send(dest, encode_ping(1));
  } else {
    const auto cpu_seconds = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
             1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    const double cpu = cpu_seconds();
    const Seconds start = steady.now();
    EXPECT_EQ(decode(expect_frame().frame)->kind, Kind::ping);
    const Seconds waited = steady.now() - start;
    EXPECT_LT((cpu_seconds() - cpu) / waited.value(), 0.10);
    RecordProperty("cpu_percent", static_cast<int>(100 * (cpu_seconds() - cpu) / waited.value()));
  }
  meet();
}

TEST(MpiTransport, InterruptEndsAWait) {
  const Seconds start = steady.now();
  std::thread other([] { transport->interrupt(); });
  while (auto received = transport->wait(kPatience)) sort_in(std::move(*received));  // from ranks that are ahead
  other.join();
  EXPECT_LT(steady.now() - start, kPatience / 2);
  meet();
}

TEST(MpiTransport, AbandonedRanksGetNothing) {
  if (transport->size() < 3) GTEST_SKIP() << "needs three ranks";
  auto second = make_mpi_transport(*session);  // collective
  if (second->rank() == 1) {
    second->abandon(2);
    second->send(2, encode_ready());
    EXPECT_EQ(second->stats().sends_dropped, 1);
  }
  if (second->rank() == 2) { EXPECT_FALSE(second->wait(Seconds(0.2))); }
  EXPECT_TRUE(second->close(kPatience));
  meet();
}

TEST(MpiTransport, CloseFlushes) {
  auto second = make_mpi_transport(*session);  // collective
  constexpr std::int64_t kSize = 8 << 20;
  if (second->rank() == 0) {
    for (int dest = 1; dest < second->size(); ++dest) second->send(dest, patterned(kSize));
    EXPECT_TRUE(second->close(kPatience));
  } else {
    const auto received = second->wait(kPatience);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->frame.size(), kSize);
  }
  meet();
}

TEST(MpiTransport, CloseGivesUpInTime) {
  auto second = make_mpi_transport(*session, {.shared_memory = false});  // collective
  if (second->rank() == 0 && second->size() > 1) {
    second->send(1, patterned(64 << 20));  // rank 1 does not look until the meeting is over
    const Seconds start = steady.now();
    EXPECT_FALSE(second->close(Seconds(0.2)));
    EXPECT_LT(steady.now() - start, kPatience / 2);
  }
  meet();
  if (second->rank() == 1) {
    EXPECT_TRUE(second->wait(kPatience));  // so that MPI ends in peace
  }
  meet();
}

// Who is busy, and takes nothing in, gets rid of what it sent and of what it has to receive before.
TEST(MpiTransport, ProgressMovesWhatIsUnderWay) {
  auto second = make_mpi_transport(*session, {.shared_memory = false});  // collective
  constexpr std::int64_t kSize = 16 << 20;
  const int last = second->size() - 1;
  if (second->rank() == 0) {
    second->send(last, patterned(kSize));
    const Seconds start = steady.now();
    while (second->stats().sends_pending > 0 && steady.now() - start < kPatience) second->progress();
    EXPECT_EQ(second->stats().sends_pending, 0);
    EXPECT_EQ(second->stats().frames_received, 0);
    const std::optional<Received> answer = second->wait(kPatience);
    ASSERT_TRUE(answer);
    expect_pattern(*answer, kSize);
  } else if (second->rank() == last) {
    const std::optional<Received> received = second->wait(kPatience);
    ASSERT_TRUE(received);
    expect_pattern(*received, kSize);
    second->send(0, patterned(kSize));
    EXPECT_TRUE(second->close(kPatience));
  }
  meet();
}

// A farewell must not wait for somebody who keeps a frame, and what he keeps stays as it is.
TEST(MpiTransport, CloseDoesNotWaitForReaders) {
  auto second = make_mpi_transport(*session);  // collective
  constexpr std::int64_t kSize = 4 << 20;
  std::optional<Received> kept;
  if (second->rank() == 0) {
    for (int dest = 1; dest < second->size(); ++dest) second->send(dest, patterned(kSize));
    EXPECT_EQ(second->stats().frames_shared, second->size() - 1);
    EXPECT_TRUE(second->close(kPatience));
    second.reset();
    for (int i = 0; i < 20; ++i) (void)patterned(kSize - i);  // would take the place of a frame that was let go
  } else {
    kept = second->wait(kPatience);
    ASSERT_TRUE(kept);
  }
  meet();
  if (kept) expect_pattern(*kept, kSize);
  meet();
}

// What rank 0 keeps in shared memory is read by the others where it lies; nothing else is.
TEST(MpiTransport, MemoryIsReadInPlace) {
  constexpr std::size_t kSize = 100'000;
  if (transport->rank() == 0) {
    std::pmr::vector<std::byte> kept(kSize, std::byte{42}, &shared_memory());
    const std::vector<std::byte> own(kSize);
    for (int dest = 1; dest < transport->size(); ++dest) {
      const auto offset = transport->reached(dest, kept.data());
      if (!offset) {
        ADD_FAILURE() << "nothing is shared";
        continue;
      }
      EXPECT_FALSE(transport->reached(dest, own.data()));
      transport->send(dest, encode_ping(static_cast<std::uint32_t>(*offset / 64)));
    }
    meet();
    return;
  }
  const Received received = expect_frame();
  const auto header = decode(received.frame);
  ASSERT_TRUE(header);
  const std::span<const std::byte> reach = received.frame.reach();
  const std::size_t offset = header->sequence * std::size_t{64};
  ASSERT_LE(offset + kSize, reach.size());
  const auto there = reach.subspan(offset, kSize);
  EXPECT_TRUE(std::all_of(there.begin(), there.end(), [](std::byte byte) { return byte == std::byte{42}; }));
  meet();
}

TEST(MpiTransport, SharedFramesAreReleasedInAnyOrder) {
  constexpr int kCount = 200;
  const auto size_of_frame = [](int i) { return static_cast<std::int64_t>(64 * 1024 + i * 1234); };
  const std::int64_t shared = transport->stats().frames_shared;
  if (transport->rank() == 0) {
    for (int i = 0; i < kCount; ++i) {
      for (int dest = 1; dest < transport->size(); ++dest) {
        transport->send(dest, patterned(size_of_frame(i)));
        transport->send(dest, encode_ping(static_cast<std::uint32_t>(i)));  // small ones keep their place between
      }
    }
    EXPECT_GT(transport->stats().frames_shared, shared);
    for (int i = 0; i < kCount * (transport->size() - 1); ++i) {
      const Received received = expect_frame();
      ASSERT_GE(received.frame.size(), size_of_frame(0));
      expect_pattern(received, received.frame.size());
    }
  } else {
    std::vector<Received> kept(7);
    for (int i = 0; i < kCount; ++i) {
      Received received = expect_frame();
      expect_pattern(received, size_of_frame(i));
      EXPECT_EQ(decode(expect_frame().frame)->sequence, static_cast<std::uint32_t>(i));
      std::swap(kept[static_cast<std::size_t>(i * 3) % kept.size()], received);
      transport->send(0, patterned(size_of_frame(i)));
    }
    for (int i = kCount - 7; i < kCount; ++i) {
      const Received& last = kept[static_cast<std::size_t>(i * 3) % kept.size()];
      expect_pattern(last, size_of_frame(i));
    }
  }
  meet();
}

// A frame that was received can be passed on, though it lies in its sender's memory.
TEST(MpiTransport, ReceivedFramesArePassedOn) {
  constexpr std::int64_t kSize = 1 << 20;
  if (transport->rank() == 0) {
    for (int dest = 1; dest < transport->size(); ++dest) transport->send(dest, patterned(kSize));
    for (int i = 1; i < transport->size(); ++i) {
      Received received = expect_frame();
      received.source = 0;
      expect_pattern(received, kSize);
    }
  } else {
    transport->send(0, expect_frame().frame);
  }
  meet();
}

// One rank sends without end, and more than it was asked for: it fills neither the memory of rank 0 nor the room of
// the others, and what is in order arrives in its order.
TEST(MpiTransport, ARankTakesNoMoreRoomThanIsExpectedOfIt) {
  constexpr std::int64_t kExpected = 4 << 20, kLarge = 1 << 20, kSmall = 10'000;
  constexpr int kLargeOnes = 32, kSmallOnes = 1000;
  const std::unique_ptr<Transport> own = make_mpi_transport(*session, {.shared_memory = false});
  if (own->rank() == 0) own->expect(1, kExpected);
  meet();
  if (own->rank() == 1) {
    own->send(0, patterned(2 * kExpected));
    for (int i = 0; i < kLargeOnes; ++i) own->send(0, patterned(kLarge));
    for (int i = 0; i < kSmallOnes; ++i) own->send(0, patterned(kSmall));
  } else if (own->rank() > 1) {
    own->send(0, patterned(kLarge));
  }
  if (own->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    int large = 0, small = 0, others = 0;
    const Seconds deadline = steady.now() + kPatience;
    while ((small < kSmallOnes || others < own->size() - 2) && steady.now() < deadline) {
      const auto received = own->wait(Seconds(1));
      if (!received) continue;
      if (received->source > 1) {
        ++others;
        continue;
      }
      EXPECT_TRUE(received->frame.size() == kLarge ? small == 0 : received->frame.size() == kSmall);
      (received->frame.size() == kLarge ? large : small) += 1;
    }
    EXPECT_EQ(large, kLargeOnes);
    EXPECT_EQ(small, kSmallOnes);
    EXPECT_EQ(others, own->size() - 2);
    const TransportStats stats = own->stats();
    EXPECT_EQ(stats.oversized, 1);
    EXPECT_LT(stats.most_taken_in, kExpected + kLarge);
    EXPECT_LE(stats.most_messages, 256);
  }
  EXPECT_TRUE(own->close(kPatience));
  meet();
}

}  // namespace
}  // namespace cleave::comm

int main(int argc, char** argv) {
  using namespace cleave::comm;
  MpiSession mpi(argc, argv);
  session = &mpi;
  transport = make_mpi_transport(mpi);
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  // A rank that failed may be out of step with the others: end them all rather than wait.
  if (result != 0) MpiSession::abort_all(1);
  transport->close(cleave::Seconds(10));
  transport.reset();
  mpi.finalize();
  return 0;
}
