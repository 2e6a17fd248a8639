// A device on the server's host whose results change while the server reads them: another process writes to the memory
// that they are read from, right and wrong numbers in turn, as fast as it can. What was checked is what is kept.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "run.hpp"
#include "virtual_network.hpp"
#include "virtual_rank.hpp"

namespace cleave::simulation {
namespace {

constexpr std::size_t kShared = std::size_t{64} << 20;

/// Memory that a child of this process sees, too, and the child that changes one byte of it again and again.
class Changing final : public comm::FrameMemory {
 public:
  Changing() {
    memory_ =
        static_cast<std::byte*>(::mmap(nullptr, kShared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    place_ = new (memory_) std::atomic<std::uint64_t>(0);
    child_ = ::fork();
    if (child_ == 0) change_for_ever();
  }
  ~Changing() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::munmap(memory_, kShared);
  }

  /// Puts a frame there, whose byte at `offset` changes from now on.
  std::byte* put(const comm::Frame& frame, std::int64_t offset) {
    place_->store(0);
    next_ = (next_ + 4095) / 4096 * 4096;
    if (next_ + static_cast<std::size_t>(frame.size()) > kShared) next_ = 4096;
    std::byte* const there = memory_ + next_;
    std::memcpy(there, frame.data(), static_cast<std::size_t>(frame.size()));
    place_->store(next_ + static_cast<std::size_t>(offset));
    next_ += static_cast<std::size_t>(frame.size());
    return there;
  }
  void give_back(std::byte*, std::int64_t, std::uint32_t) noexcept override {}

 private:
  [[noreturn]] void change_for_ever() {
    while (true) {
      const std::uint64_t at = place_->load();
      if (at == 0) continue;
      auto* const byte = reinterpret_cast<std::atomic<unsigned char>*>(memory_ + at);
      byte->fetch_xor(0x15);
      byte->fetch_xor(0x15);
    }
  }
  std::byte* memory_ = nullptr;
  std::atomic<std::uint64_t>* place_ = nullptr;
  std::size_t next_ = 4096;
  pid_t child_ = -1;
};

TEST(ChangingResult, WhatIsCheckedIsWhatIsKept) {
  testing_run::Setting s = testing_run::small_setting();
  s.steps = 1;
  const std::uint64_t expected = testing_run::train(s).hash;
  s.devices = testing_run::unlike_devices(8);
  s.verification = {.mode = server::VerifyMode::audit, .fraction = 1.0, .seed = 3};
  auto memory = std::make_shared<Changing>();
  std::int64_t blocks = 0;
  for (int round = 0; round < 12; ++round) {
    ManualClock clock;
    VirtualNetwork network(clock, 2);
    VirtualRank honest(/*in_place=*/true);
    network.attach(1, [&](comm::Frame frame) {
      for (comm::Frame& answer : honest.answer(std::move(frame))) {
        const auto header = comm::decode_header(answer.bytes().first(comm::kHeaderBytes), answer.size());
        if (header && header->kind == comm::Kind::result) {
          ++blocks;
          std::byte* const there = memory->put(answer, answer.size() - 1);
          answer = comm::Frame::borrow(there, answer.size(), memory, 0);
        }
        network.deliver(1, std::move(answer));
      }
    });
    network.deliver(1, VirtualRank::hello());
    server::TrainerOptions options = testing_run::options_of(s);
    options.fleet.real_time = &clock;
    server::ParameterStore parameters = testing_run::initial_parameters(s);
    server::Trainer trainer(parameters, options, &network);
    (void)trainer.step(0, testing_run::batch_of(s, 0));  // devices that are seen to lie are left out
    (void)trainer.say_goodbye(Seconds(1));
    ASSERT_EQ(parameters.hash(), expected) << "round " << round;
  }
  EXPECT_GT(blocks, 100);
}

}  // namespace
}  // namespace cleave::simulation
