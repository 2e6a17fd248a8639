// What the exchange says of ranks that fall silent and come back, and what it keeps for ranks that do not read.
#include "exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  ExchangeTest() : ExchangeTest(Exchange::Packer{}) {}
  explicit ExchangeTest(Exchange::Packer packer) {
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
                                           std::move(packer), profile_);
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
  static constexpr Seconds kSpeaks{0.1}, kBusy{0.12};
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

// Whoever talks without a pause keeps nobody from what else there is to do.
TEST_F(ExchangeTest, ListensNoLongerThanItIsTold) {
  const Seconds begun = clock_.now(), end = begun + Seconds(5);
  const std::function<void()> talk = [&] {
    network_.deliver(1, comm::encode_pong(1), Seconds(0));
    if (clock_.now() < end) network_.after(VirtualNetwork::kLook / 2, talk);
  };
  talk();
  EXPECT_FALSE(exchange_->next(Seconds(0.1)));
  EXPECT_LT(clock_.now() - begun, Seconds(0.2));
}

// Small products are asked for; tests answer for the ranks.
class AskedExchangeTest : public ExchangeTest {
 protected:
  Exchange::Packer packer() {
    return {.pack = [](const sched::Tasklet& tasklet, int /*rank*/,
                       const comm::MessagePart& part) { return zeros(comm::begin_task(header_of(tasklet, part))); },
            .first_part =
                [this](const sched::Tasklet& /*tasklet*/, Bytes room) {
                  room_ = room;
                  return in_rows_ ? comm::MessagePart{.of = comm::PartOf::rows, .first = 0, .count = 1}
                                  : comm::MessagePart{};
                }};
  }
  AskedExchangeTest() : ExchangeTest(packer()) {}

  static comm::Header header_of(const sched::Tasklet& tasklet, const comm::MessagePart& part = {}) {
    comm::Header header;
    header.kind = comm::Kind::task;
    header.tasklet = tasklet.id;
    header.device = tasklet.piece.device;
    header.op = OpId(0);
    header.work = comm::Work::gemm;
    header.gemm = {kRows, 2, 4, 1, 0};
    header.part = part;
    header.panels = 1;
    return header;
  }
  template <class Draft>
  static comm::Frame zeros(Draft draft) {
    std::fill(draft.frame.data() + comm::kHeaderBytes, draft.frame.data() + draft.frame.size(), std::byte{0});
    return comm::seal(std::move(draft));
  }
  // To a device on rank 1 or 2.
  sched::Tasklet submit(std::int64_t id, int rank, bool background = false) {
    sched::Tasklet tasklet;
    tasklet.background = background;
    tasklet.id = TaskletId(id);
    tasklet.op = OpId(0);
    tasklet.piece.device = DeviceId(rank - 1);
    exchange_->submit(tasklet);
    return tasklet;
  }
  sched::Tasklet ask(std::int64_t id, int rank) {
    sched::Tasklet tasklet = submit(id, rank);
    EXPECT_FALSE(exchange_->next(Seconds(0.01)));
    return tasklet;
  }
  static comm::Frame result_of(const sched::Tasklet& tasklet, const comm::MessagePart& part = {}) {
    return zeros(comm::begin_result(comm::result_header(header_of(tasklet, part))));
  }
  static comm::Frame refusal_of(const sched::Tasklet& tasklet, comm::Reason reason) {
    return comm::encode_refused(tasklet.id, tasklet.piece.device, reason, "no");
  }
  // What comes of a message of a rank.
  std::optional<Answer> told(int rank, comm::Frame frame) {
    network_.deliver(rank, std::move(frame));
    return exchange_->next(Seconds(0.01));
  }

  static constexpr std::int64_t kRows = 12;
  bool in_rows_ = false;  // tasklets are sent and answered row by row
  Bytes room_;            // that there was for the last tasklet
};

TEST_F(AskedExchangeTest, OnlyTheRankThatWasAskedAnswers) {
  const sched::Tasklet tasklet = ask(7, 1);
  EXPECT_FALSE(told(2, result_of(tasklet)));
  EXPECT_FALSE(told(2, refusal_of(tasklet, comm::Reason::memory)));
  EXPECT_FALSE(told(2, refusal_of(tasklet, comm::Reason::malformed)));
  const std::optional<Answer> answer = told(1, result_of(tasklet));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, Answer::Kind::result);
  EXPECT_EQ(answer->tasklet.id, tasklet.id);
  EXPECT_FALSE(told(1, result_of(tasklet))) << "once";
}

TEST_F(AskedExchangeTest, WhatIsForgottenIsAnsweredLateByTheRankThatWasAsked) {
  const sched::Tasklet tasklet = ask(7, 1);
  EXPECT_TRUE(exchange_->forget(tasklet.id));
  EXPECT_FALSE(told(2, result_of(tasklet)));
  const std::optional<Answer> answer = told(1, result_of(tasklet));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, Answer::Kind::late);
  EXPECT_FALSE(told(1, result_of(tasklet)));
}

// A device is not blamed for what was lost or damaged on the way.
TEST_F(AskedExchangeTest, WhatWasLostOnTheWayIsNoRefusal) {
  const auto kind_after = [&](std::int64_t id, auto frame_of) {
    const sched::Tasklet tasklet = ask(id, 1);
    const std::optional<Answer> answer = told(1, frame_of(tasklet));
    EXPECT_TRUE(answer);
    EXPECT_EQ(answer->tasklet.id, tasklet.id);
    return answer->kind;
  };
  const auto refused = [&](std::int64_t id, comm::Reason reason) {
    return kind_after(id, [&](const sched::Tasklet& tasklet) { return refusal_of(tasklet, reason); });
  };
  EXPECT_EQ(refused(1, comm::Reason::memory), Answer::Kind::refused);
  EXPECT_EQ(refused(2, comm::Reason::non_finite), Answer::Kind::refused);
  EXPECT_EQ(refused(3, comm::Reason::absent), Answer::Kind::lost);
  EXPECT_EQ(refused(4, comm::Reason::malformed), Answer::Kind::lost);
  const auto damaged = [](const sched::Tasklet& tasklet) {
    comm::Frame frame = result_of(tasklet);
    frame.data()[frame.size() - 1] ^= std::byte{1};
    return frame;
  };
  EXPECT_EQ(kind_after(5, damaged), Answer::Kind::lost);
  // A name that was damaged, too, is that of nobody: the oldest is the likeliest.
  const sched::Tasklet oldest = ask(6, 1), newest = ask(7, 1);
  sched::Tasklet nobody = newest;
  nobody.id = TaskletId(1000);
  const std::optional<Answer> answer = told(1, refusal_of(nobody, comm::Reason::malformed));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->tasklet.id, oldest.id);
}

// While the server was busy itself nobody can have been heard.
TEST_F(AskedExchangeTest, WhatTheServerDidNotHearWhileItWasBusyIsNoSilence) {
  const sched::Tasklet tasklet = ask(1, 1);
  for (int times = 0; times < 3; ++times) {
    clock_.advance(kPatience * 100);
    EXPECT_FALSE(exchange_->next(Seconds(0.01)));
    EXPECT_FALSE(exchange_->is_gone(DeviceId(0)));
  }
  const std::optional<Answer> answer = told(1, result_of(tasklet));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, Answer::Kind::result);
}

// Two tasklets are given up by one look; before the second is told, its device leaves.
TEST_F(AskedExchangeTest, WhatWasGivenUpOfADeviceThatLeftIsNotTold) {
  (void)submit(1, 1);
  (void)ask(2, 2);
  std::optional<Answer> answer;
  for (const Seconds until = clock_.now() + kPatience * 10; !answer && clock_.now() < until;) {
    network_.deliver(2, comm::encode_ping(1));
    answer = told(1, comm::encode_ping(1));
  }
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, Answer::Kind::lost);
  exchange_->forget_all(DeviceId(1 - answer->tasklet.piece.device.value));
  EXPECT_FALSE(exchange_->next(Seconds(0.01)));
}

// What a device keeps takes room from what it is sent, until it gives it up, or has left with it.
TEST_F(AskedExchangeTest, WhoLeavesHasAllItsRoomAgain) {
  const auto keep = [&](std::int64_t id) {
    sched::Tasklet kept;
    kept.id = kept.columns = TaskletId(id);
    kept.op = OpId(0);
    kept.piece.device = DeviceId(0);
    kept.piece.resident = Bytes(1000);
    exchange_->submit(kept);
  };
  const auto room = [&](std::int64_t id) {
    (void)ask(id, 1);
    return room_.value();
  };
  const std::int64_t all = room(1);
  keep(2);
  keep(3);
  EXPECT_EQ(room(4), all - 2000);
  exchange_->release(TaskletId(2), DeviceId(0));
  EXPECT_EQ(room(5), all - 1000);
  exchange_->forget_all(DeviceId(0));
  EXPECT_EQ(room(6), all);
  exchange_->release(TaskletId(3), DeviceId(0));
  EXPECT_EQ(room(7), all) << "given up a second time";
}

// What is for a rank that takes nothing in is not sent, so it is under way to nobody and never overdue: whoever talks
// all the same would be waited for without end.
TEST_F(AskedExchangeTest, WhoTalksAndReadsNothingIsSilentInTheEnd) {
  constexpr std::int64_t kTooMuch = 3 * comm::kMaxFrameBytes;
  const auto talk = [&](Seconds until, const auto& condition) {
    for (std::uint32_t ping = 0; clock_.now() < until && !condition(); ++ping) {
      network_.deliver(2, comm::encode_ping(ping));
      EXPECT_FALSE(told(1, comm::encode_ping(ping)));
    }
  };
  const auto is_gone = [&] { return exchange_->is_gone(DeviceId(0)); };
  network_.set_reading(1, false);
  network_.set_unread(1, kTooMuch);
  (void)submit(1, 1);
  talk(clock_.now() + kPatience * 20, is_gone);
  EXPECT_FALSE(is_gone()) << "it had no time to take in what it was sent";
  // As long as it takes in something it has time.
  network_.set_unread(1, kTooMuch - 1);
  talk(clock_.now() + Seconds(200), is_gone);
  EXPECT_FALSE(is_gone());
  talk(clock_.now() + Seconds(100), is_gone);
  ASSERT_TRUE(is_gone());
  EXPECT_THAT(exchange_->take_gone(), ElementsAre(DeviceId(0)));
  EXPECT_FALSE(told(1, comm::encode_ping(0)));
  EXPECT_THAT(exchange_->take_returned(), IsEmpty()) << "it talks, and reads no more than before";
  EXPECT_FALSE(exchange_->is_gone(DeviceId(1)));
  network_.set_unread(1, 0);
  network_.set_reading(1, true);
  EXPECT_FALSE(told(1, comm::encode_ping(0)));
  EXPECT_THAT(exchange_->take_returned(), ElementsAre(DeviceId(0)));
}

// Each row comes just in time, which gives the tasklet more time, but not without end.
TEST_F(AskedExchangeTest, ProgressExtendsTheTimeOfATaskletAFewTimes) {
  in_rows_ = true;
  const sched::Tasklet tasklet = ask(1, 1);
  std::int64_t rows = 0;
  std::optional<Answer> answer;
  while (!answer && rows < kRows) {
    for (const Seconds until = clock_.now() + kPatience * 2.5; !answer && clock_.now() < until;)
      answer = told(1, comm::encode_ping(1));
    if (!answer) answer = told(1, result_of(tasklet, {.of = comm::PartOf::rows, .first = rows++, .count = 1}));
  }
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, Answer::Kind::lost);
  EXPECT_GE(rows, 3);
  EXPECT_LT(rows, kRows);
}

// A device puts off for other work what is to be done beside it: only when nothing else is left can that be late.
TEST_F(AskedExchangeTest, WhatGivesWayIsNotLateWhileThereIsOtherWork) {
  const sched::Tasklet beside = submit(1, 1, /*background=*/true);
  const auto wait = [&](Seconds time) {
    std::optional<Answer> answer;
    for (const Seconds until = clock_.now() + time; !answer && clock_.now() < until;)
      answer = told(1, comm::encode_ping(1));
    return answer;
  };
  std::int64_t last = 1;
  for (const Seconds until = clock_.now() + kPatience * 30; clock_.now() < until;) {
    const sched::Tasklet other = submit(++last, 1);
    ASSERT_FALSE(wait(kPatience * 2)) << last;
    const std::optional<Answer> answer = told(1, result_of(other));
    ASSERT_TRUE(answer && answer->tasklet.id == other.id && answer->kind == Answer::Kind::result);
  }
  ASSERT_FALSE(wait(kPatience * 2));
  const std::optional<Answer> answer = wait(kPatience * 5);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, Answer::Kind::lost);
  EXPECT_EQ(answer->tasklet.id, beside.id);
}

// The transport takes in from a rank what it was asked for, in parts with headers of their own at most, and no more.
TEST_F(AskedExchangeTest, ARankMaySendWhatItWasAskedAndNoMore) {
  const std::int64_t nothing = network_.expected(1);
  EXPECT_GT(nothing, 0);  // small talk
  const sched::Tasklet first = ask(1, 1);
  const std::int64_t one = network_.expected(1) - nothing;
  EXPECT_EQ(one, 2 * result_of(first).size());
  EXPECT_EQ(network_.expected(2), nothing);
  const sched::Tasklet second = ask(2, 1), third = ask(3, 1);
  EXPECT_EQ(network_.expected(1), nothing + 3 * one);
  ASSERT_TRUE(told(1, result_of(first)));
  EXPECT_EQ(network_.expected(1), nothing + 2 * one);
  // The answer to what is forgotten may come, and does, or never will.
  EXPECT_TRUE(exchange_->forget(second.id));
  EXPECT_TRUE(exchange_->forget(third.id));
  EXPECT_EQ(network_.expected(1), nothing + 2 * one);
  ASSERT_TRUE(told(1, result_of(second)));
  EXPECT_EQ(network_.expected(1), nothing + one);
  const Seconds until = clock_.now() + kPatience * 20;
  for (std::uint32_t ping = 0; clock_.now() < until; ++ping) EXPECT_FALSE(told(1, comm::encode_ping(ping)));
  EXPECT_EQ(network_.expected(1), nothing);
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

TEST(Greeting, ARankOfAnotherVersionIsLeftOut) {
  ManualClock clock;
  VirtualNetwork network(clock, 3);
  Profile profile;
  std::string told;
  for (const int rank : {1, 2}) {
    network.attach(rank, [&network, &told, rank](comm::Frame frame) {
      const auto header = comm::decode(frame);
      if (header && header->kind == comm::Kind::welcome) network.deliver(rank, comm::encode_ready());
      if (header && header->kind == comm::Kind::refusal) told = comm::text_of(frame);
    });
    network.deliver(rank, comm::encode(comm::Hello{
                              .pid = 1, .host = "simulated", .version = rank == 1 ? "0.0.0" : std::string(kVersion)}));
  }
  const Exchange exchange(network, {}, {.gemm_kernels = {}, .patience = kPatience, .real_time = &clock},
                          Exchange::Packer{}, profile);
  EXPECT_THAT(exchange.ranks()[1].absent, ::testing::HasSubstr("it runs cleave 0.0.0"));
  EXPECT_TRUE(exchange.ranks()[2].absent.empty());
  while (clock.now() < Seconds(1)) (void)network.wait(Seconds(0.1));
  EXPECT_EQ(told, exchange.ranks()[1].absent);
}

}  // namespace
}  // namespace cleave::server
