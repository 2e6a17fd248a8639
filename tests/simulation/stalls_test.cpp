// Ranks that keep the server waiting: by repeating what they have said, by answering later blocks and never the first,
// by talking without a pause, by one part at the last moment after the other, by never doing anything right. Every
// step ends, in a bounded time, with the same bits.
#include <gtest/gtest.h>

#include <deque>
#include <stdexcept>

#include "run.hpp"
#include "virtual_network.hpp"
#include "virtual_rank.hpp"

namespace cleave::simulation {
namespace {

using testing_run::Setting;

enum class Stall { repeats_a_part, withholds_one, talks, drips, damages };

std::string name_of(const ::testing::TestParamInfo<Stall>& info) {
  static constexpr const char* kNames[] = {"repeats_a_part", "withholds_one", "talks", "drips", "damages"};
  return kNames[static_cast<int>(info.param)];
}

constexpr Seconds kPatience{10};
// Of the one that talks, since each word takes real time.
constexpr Seconds kShortPatience{0.2};
constexpr std::int64_t kMostTalk = 5'000'000;
// Virtual seconds: with nobody else there, each of some thirty operations that follow each other waits once for an
// answer, for three patiences and what parts may add.
constexpr double kLongestStep = 30 * 4 * 30;

/// An honest rank but for one way to waste time.
class Staller {
 public:
  Staller(VirtualNetwork& network, int rank, Stall stall) : network_(network), rank_(rank), stall_(stall) {
    network.attach(rank, [this](comm::Frame frame) { take(std::move(frame)); });
    network.deliver(rank, VirtualRank::hello());
  }

 private:
  void take(comm::Frame frame) {
    std::vector<comm::Frame> answers = honest_.answer(std::move(frame));
    for (comm::Frame& answer : answers) {
      const auto header = comm::decode_header(answer.bytes().first(comm::kHeaderBytes), answer.size());
      if (!header || header->kind != comm::Kind::result) {
        network_.deliver(rank_, std::move(answer));
        continue;
      }
      waste(*header, std::move(answer));
    }
  }

  void waste(const comm::Header& header, comm::Frame answer) {
    switch (stall_) {
      case Stall::repeats_a_part:
        if (header.part.whole()) break;
        if (header.part.first > 0) return;  // never comes
        again_ = answer.copy();
        if (!std::exchange(repeats_, true)) say_again();
        break;
      case Stall::withholds_one:
        if (!header.part.whole() || count_++ % 16 == 0) return;
        break;
      case Stall::talks:
        if (!std::exchange(talks_, true)) talk();
        return;
      case Stall::drips:
        if (header.part.whole()) break;
        // As late as it may be, again and again; from the first part on, each waits for the one before.
        drips_ = std::max(drips_, network_.now()) + kPatience * 2.5;
        return network_.deliver(rank_, std::move(answer), drips_ - network_.now());
      case Stall::damages: answer.data()[answer.size() - 1] ^= std::byte{1}; break;
    }
    network_.deliver(rank_, std::move(answer));
  }

  void say_again() {
    network_.deliver(rank_, again_.copy());
    network_.after(Seconds(0.5), [this] { say_again(); });
  }
  // As fast as the server reads.
  void talk() {
    network_.deliver(rank_, comm::encode_pong(7), Seconds(0));
    if (++said_ > kMostTalk) throw std::runtime_error("the server listens for ever");
    network_.after(VirtualNetwork::kLook, [this] { talk(); });
  }

  VirtualNetwork& network_;
  int rank_;
  Stall stall_;
  VirtualRank honest_;
  comm::Frame again_;
  bool repeats_ = false, talks_ = false;
  std::int64_t count_ = 0, said_ = 0;
  Seconds drips_{0};
};

struct Case {
  std::uint64_t hash = 0;
  Seconds longest;  // virtual time of a step
};

Case train_with(const Setting& s, Stall stall, int stallers) {
  ManualClock clock;
  VirtualNetwork network(clock, 1 + s.device_ranks);
  std::deque<Staller> ranks;
  std::deque<VirtualRank> honest(static_cast<std::size_t>(s.device_ranks));
  for (int rank = 1; rank <= s.device_ranks; ++rank) {
    if (rank <= stallers) {
      ranks.emplace_back(network, rank, stall);
      continue;
    }
    network.attach(rank, [&network, &h = honest[static_cast<std::size_t>(rank - 1)], rank](comm::Frame frame) {
      for (comm::Frame& answer : h.answer(std::move(frame))) network.deliver(rank, std::move(answer));
    });
    network.deliver(rank, VirtualRank::hello());
  }
  server::TrainerOptions options = testing_run::options_of(s);
  options.fleet.patience = stall == Stall::talks ? kShortPatience : kPatience;
  options.fleet.real_time = &clock;
  server::ParameterStore parameters = testing_run::initial_parameters(s);
  Case result;
  server::Trainer trainer(parameters, options, &network);
  for (std::int64_t step = 0; step < s.steps; ++step) {
    const Seconds begun = clock.now();
    (void)trainer.step(step, testing_run::batch_of(s, step));
    result.longest = std::max(result.longest, clock.now() - begun);
  }
  (void)trainer.say_goodbye(Seconds(10));
  result.hash = parameters.hash();
  return result;
}

class Stalls : public ::testing::TestWithParam<Stall> {};

TEST_P(Stalls, EveryStepEndsWithTheSameBits) {
  Setting s = testing_run::small_setting();
  const std::uint64_t expected = testing_run::train(s).hash;
  s.devices = testing_run::unlike_devices(4);
  s.device_ranks = 2;
  s.parts = testing_run::kSmallParts;
  for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
    s.clock = clock;
    for (const int stallers : {1, 2}) {
      const Case ended = train_with(s, GetParam(), stallers);
      EXPECT_EQ(ended.hash, expected);
      EXPECT_LT(ended.longest.value(), kLongestStep);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Stalls,
                         ::testing::Values(Stall::repeats_a_part, Stall::withholds_one, Stall::talks, Stall::drips,
                                           Stall::damages),
                         name_of);

}  // namespace
}  // namespace cleave::simulation
