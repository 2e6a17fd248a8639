// The in-process transport, and the faults that can be put before it.
#include "cleave/comm/loopback.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "cleave/base/clock.hpp"
#include "cleave/comm/message.hpp"
#include "support/faulty_transport.hpp"

namespace cleave::comm {
namespace {

constexpr Seconds kLoopbackLimit{20};

TEST(Loopback, KeepsOrderAndOwnership) {
  LoopbackHub hub(3);
  auto a = hub.endpoint(0), b = hub.endpoint(1), c = hub.endpoint(2);
  for (std::uint32_t i = 0; i < 100; ++i) a->send(1, encode_ping(i));
  c->send(1, encode_ready());
  for (std::uint32_t i = 0; i < 100; ++i) {
    auto received = b->wait(kLoopbackLimit);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->source, 0);
    EXPECT_EQ(decode(received->frame)->sequence, i);
  }
  EXPECT_EQ(b->poll()->source, 2);
  EXPECT_FALSE(b->poll());
  EXPECT_EQ(a->stats().frames_sent, 100);
  EXPECT_EQ(b->stats().frames_received, 101);
}

TEST(Loopback, WakesAWaitingThread) {
  LoopbackHub hub(2);
  auto a = hub.endpoint(0), b = hub.endpoint(1);
  std::thread peer([&] {
    for (std::uint32_t i = 0; i < 1000; ++i) {
      auto received = b->wait(kLoopbackLimit);
      ASSERT_TRUE(received);
      b->send(0, std::move(received->frame));
    }
  });
  for (std::uint32_t i = 0; i < 1000; ++i) {
    a->send(1, encode_ping(i));
    auto back = a->wait(kLoopbackLimit);
    ASSERT_TRUE(back);
    EXPECT_EQ(decode(back->frame)->sequence, i);
  }
  peer.join();
}

TEST(Loopback, InterruptEndsAWait) {
  LoopbackHub hub(1);
  auto a = hub.endpoint(0);
  const SteadyClock clock;
  const Seconds start = clock.now();
  std::thread other([&] { a->interrupt(); });
  EXPECT_FALSE(a->wait(kLoopbackLimit));
  other.join();
  EXPECT_LT(clock.now() - start, kLoopbackLimit / 2);
}

TEST(Loopback, TheEndOfOneWakesWhoWaits) {
  LoopbackHub hub(2);
  auto a = hub.endpoint(0), b = hub.endpoint(1);
  SteadyClock clock;
  std::thread leaves([&] {
    clock.sleep_until(clock.now() + Seconds(0.05));
    a.reset();
  });
  const Seconds begun = clock.now();
  EXPECT_FALSE(b->wait(kLoopbackLimit));
  EXPECT_LT((clock.now() - begun).value(), kLoopbackLimit.value() / 2);
  leaves.join();
  EXPECT_TRUE(b->gone(0));
}

TEST(Loopback, WaitEndsInTime) {
  LoopbackHub hub(1);
  auto a = hub.endpoint(0);
  const SteadyClock clock;
  const Seconds start = clock.now();
  EXPECT_FALSE(a->wait(Seconds(0.02)));
  EXPECT_GE(clock.now() - start, Seconds(0.02));
}

TEST(Loopback, GoneAndAbandoned) {
  LoopbackHub hub(2);
  auto a = hub.endpoint(0), b = hub.endpoint(1);
  EXPECT_FALSE(a->gone(1));
  b.reset();
  EXPECT_TRUE(a->gone(1));
  a->send(1, encode_ready());  // to nobody: no error
  a->abandon(1);
  a->send(1, encode_ready());
  EXPECT_EQ(a->stats().sends_dropped, 1);
}

struct Lab {
  explicit Lab(FaultRule rule, std::uint64_t seed = 1) : hub(2), b(hub.endpoint(1)) {
    auto wrapped = std::make_unique<FaultyTransport>(hub.endpoint(0), std::vector<FaultRule>{rule}, seed);
    faulty = wrapped.get();
    a = std::move(wrapped);
  }
  LoopbackHub hub;
  std::unique_ptr<Transport> a, b;
  FaultyTransport* faulty = nullptr;
};

TEST(Faulty, Drop) {
  Lab lab({.direction = Direction::sending, .kind = Kind::ping, .fault = FaultKind::drop, .skip = 1, .count = 2});
  for (std::uint32_t i = 0; i < 5; ++i) lab.a->send(1, encode_ping(i));
  lab.a->send(1, encode_ready());
  std::vector<std::uint32_t> came;
  while (auto received = lab.b->poll()) came.push_back(decode(received->frame)->sequence);
  EXPECT_EQ(came, (std::vector<std::uint32_t>{0, 3, 4, 0}));
  EXPECT_EQ(lab.faulty->caused().at(0), 2);
}

TEST(Faulty, TwiceCorruptTruncate) {
  Lab twice({.direction = Direction::receiving, .kind = Kind::pong, .fault = FaultKind::twice});
  twice.b->send(0, encode_pong(4));
  EXPECT_TRUE(twice.a->wait(kLoopbackLimit));
  EXPECT_TRUE(twice.a->wait(kLoopbackLimit));
  EXPECT_FALSE(twice.a->poll());

  for (const FaultKind kind : {FaultKind::corrupt, FaultKind::truncate}) {
    for (const Direction direction : {Direction::sending, Direction::receiving}) {
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        Lab lab({.direction = direction, .kind = Kind::refusal, .fault = kind}, seed);
        Transport& from = direction == Direction::sending ? *lab.a : *lab.b;
        Transport& to = direction == Direction::sending ? *lab.b : *lab.a;
        from.send(1 - from.rank(), encode_refusal("a text of some length"));
        auto received = to.wait(kLoopbackLimit);
        ASSERT_TRUE(received);
        EXPECT_FALSE(decode(received->frame));
      }
    }
  }
}

TEST(Faulty, Delay) {
  Lab lab({.direction = Direction::receiving,
           .kind = Kind::ping,
           .fault = FaultKind::delay,
           .count = 1,
           .delay = Seconds(0.03)});
  const SteadyClock clock;
  const Seconds start = clock.now();
  lab.b->send(0, encode_ping(1));
  lab.b->send(0, encode_ping(2));
  EXPECT_EQ(decode(lab.a->wait(kLoopbackLimit)->frame)->sequence, 2U);
  EXPECT_EQ(decode(lab.a->wait(kLoopbackLimit)->frame)->sequence, 1U);
  EXPECT_GE(clock.now() - start, Seconds(0.03));
}

TEST(Faulty, SameSeedSameFaults) {
  const auto run = [](std::uint64_t seed) {
    Lab lab({.direction = Direction::sending, .kind = Kind::ping, .fault = FaultKind::drop, .probability = 0.5}, seed);
    for (std::uint32_t i = 0; i < 100; ++i) lab.a->send(1, encode_ping(i));
    std::vector<std::uint32_t> came;
    while (auto received = lab.b->poll()) came.push_back(decode(received->frame)->sequence);
    return came;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace cleave::comm
