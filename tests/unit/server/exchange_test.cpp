// What the exchange says of ranks that fall silent and come back, and what it keeps for ranks that do not read.
#include "exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cleave/base/version.hpp"
#include "cleave/comm/handshake.hpp"
#include "simulation/virtual_network.hpp"

namespace cleave::server {
namespace {

using simulation::VirtualNetwork;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Seconds kPatience{0.15};

// Two ranks with a device each, in virtual time. They greet, and are mute unless a test speaks for them.
class ExchangeTest : public ::testing::Test {
 protected:
  ExchangeTest() {
    for (const int rank : {1, 2}) {
      network_.attach(rank, [this, rank](comm::Frame frame) {
        const auto header = comm::decode(frame);
        if (header && header->kind == comm::Kind::welcome) network_.deliver(rank, comm::encode_ready());
      });
      network_.deliver(rank,
                       comm::encode(comm::Hello{.pid = 1, .host = "simulated", .version = std::string(kVersion)}));
    }
    exchange_ = std::make_unique<Exchange>(network_, two_devices(),
                                           FleetTerms{.gemm_kernels = {}, .patience = kPatience, .real_time = &clock_},
                                           Exchange::Packer{}, profile_);
  }

  static sched::StepSpec two_devices() {
    sched::StepSpec spec;
    for (const std::int64_t id : {0, 1}) {
      fleet::DeviceProfile device;
      device.id = DeviceId(id);
      device.memory = Bytes(1 << 20);
      spec.devices.push_back(device);
    }
    return spec;
  }

  ManualClock clock_;
  VirtualNetwork network_{clock_, 3};
  Profile profile_;
  std::unique_ptr<Exchange> exchange_;
};

TEST_F(ExchangeTest, ARankThatSaysNothingIsSilent) {
  EXPECT_FALSE(exchange_->is_gone(DeviceId(0)));
  while (clock_.now() < kPatience * 2) EXPECT_FALSE(exchange_->next(Seconds(0.05)));
  EXPECT_TRUE(exchange_->is_gone(DeviceId(0)));
  EXPECT_THAT(exchange_->take_gone(), ElementsAre(DeviceId(0), DeviceId(1)));
  EXPECT_TRUE(exchange_->is_gone(DeviceId(0)));
  EXPECT_THAT(exchange_->take_returned(), IsEmpty());
}

// The server's host is busy for longer than a rank has patience left; what the rank said meanwhile is found by the very
// look that finds it silent. Its tasklets are let go in between: who waits for one must learn that.
TEST_F(ExchangeTest, ARankThatReturnsAtOnceWasGoneAllTheSame) {
  constexpr Seconds kSpeaks{0.1}, kBusy{0.12};
  network_.deliver(2, comm::encode_ping(1), kSpeaks);
  network_.after(kSpeaks + VirtualNetwork::kLook / 2, [this] {
    clock_.advance(kBusy);
    network_.deliver(1, comm::encode_ping(1), Seconds(0));
  });
  EXPECT_FALSE(exchange_->next(Seconds(1)));

  EXPECT_TRUE(exchange_->is_gone(DeviceId(0)));
  EXPECT_FALSE(exchange_->is_gone(DeviceId(1)));
  EXPECT_THAT(exchange_->take_gone(), ElementsAre(DeviceId(0)));
  EXPECT_THAT(exchange_->take_returned(), ElementsAre(DeviceId(0)));
  EXPECT_FALSE(exchange_->is_gone(DeviceId(0)));
}

// Who has not asked yet who is gone still waits for what comes, and does not spin.
TEST_F(ExchangeTest, WaitsAlthoughARankIsKnownToBeGone) {
  network_.kill(1);
  network_.deliver(2, comm::encode_ping(1), Seconds(0.05));
  EXPECT_FALSE(exchange_->next(Seconds(0.1)));
  ASSERT_TRUE(exchange_->is_gone(DeviceId(0)));
  const Seconds before = clock_.now();
  EXPECT_FALSE(exchange_->next(Seconds(0.1)));
  EXPECT_GE(clock_.now() - before, Seconds(0.1));
}

// Nobody would look whether it dies, or be told that what it has will not be answered.
TEST_F(ExchangeTest, ARankThatSaysFarewellUnaskedIsGone) {
  network_.deliver(1, comm::encode_farewell());
  network_.deliver(1, comm::encode_ping(1), Seconds(0.01));
  EXPECT_FALSE(exchange_->next(Seconds(0.05)));
  EXPECT_TRUE(exchange_->is_gone(DeviceId(0)));
  EXPECT_THAT(exchange_->take_gone(), ElementsAre(DeviceId(0)));
  EXPECT_THAT(exchange_->take_returned(), IsEmpty());
  // So is one that was silent until it said so.
  while (clock_.now() < kPatience * 2) EXPECT_FALSE(exchange_->next(Seconds(0.05)));
  EXPECT_THAT(exchange_->take_gone(), ElementsAre(DeviceId(1)));
  network_.deliver(2, comm::encode_farewell());
  EXPECT_FALSE(exchange_->next(Seconds(0.05)));
  EXPECT_THAT(exchange_->take_returned(), IsEmpty());
  EXPECT_TRUE(exchange_->is_gone(DeviceId(1)));
  EXPECT_THAT(exchange_->say_goodbye(Seconds(1)), IsEmpty());
}

// Bytes of small talk that may lie before a rank, and more messages than have room in them.
constexpr std::int64_t kMostSmallTalk = (std::int64_t{1} << 20) + (1 << 16);
constexpr std::int64_t kMessages = kMostSmallTalk / comm::kHeaderBytes + 1000;

TEST_F(ExchangeTest, WhoAsksAndDoesNotReadIsNotAnsweredWithoutEnd) {
  network_.set_reading(1, false);
  for (std::int64_t i = 0; i < kMessages; ++i) network_.deliver(1, comm::encode_ping(1), Seconds(0));
  while (clock_.now() < Seconds(2)) EXPECT_FALSE(exchange_->next(Seconds(0.1)));
  EXPECT_GT(network_.most_unread(), kMostSmallTalk / 2);
  EXPECT_LT(network_.most_unread(), kMostSmallTalk);
  network_.set_reading(1, true);
  EXPECT_FALSE(exchange_->next(Seconds(0.05)));
  EXPECT_EQ(network_.bytes_pending(1), 0);
}

// The same at the start, where the answer is longer than the question.
TEST(Greeting, WhoAsksAndDoesNotReadIsNotAnsweredWithoutEnd) {
  ManualClock clock;
  VirtualNetwork network(clock, 3);
  Profile profile;
  network.attach(2, [&network](comm::Frame frame) {
    const auto header = comm::decode(frame);
    if (header && header->kind == comm::Kind::welcome) network.deliver(2, comm::encode_ready());
  });
  network.set_reading(1, false);
  const comm::Hello hello{.pid = 1, .host = "simulated", .version = std::string(kVersion)};
  network.deliver(2, comm::encode(hello));
  for (std::int64_t i = 0; i < kMessages; ++i) network.deliver(1, comm::encode(hello), Seconds(0));
  const Exchange exchange(network, {}, {.gemm_kernels = {}, .patience = kPatience, .real_time = &clock},
                          Exchange::Packer{}, profile);
  EXPECT_LT(network.most_unread(), kMostSmallTalk);
  EXPECT_FALSE(exchange.ranks()[1].absent.empty());
  EXPECT_TRUE(exchange.ranks()[2].absent.empty());
}

}  // namespace
}  // namespace cleave::server
