// Ranks that do not leave are ended by what the transport knows of them, not by what they say: a process that a rank
// names is left alone.
#include "commands/rank_processes.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleave/comm/loopback.hpp"

namespace cleave::app {
namespace {

pid_t start_sleeper() {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  return child;
}

/// A transport that knows the process of one of its ranks.
class Knowing final : public comm::Transport {
 public:
  explicit Knowing(int process) : process_(process) {}
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 3; }
  void send(int, comm::Frame) override {}
  [[nodiscard]] std::optional<comm::Received> poll() override { return std::nullopt; }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds) override { return std::nullopt; }
  void interrupt() override {}
  [[nodiscard]] bool gone(int) const override { return false; }
  [[nodiscard]] comm::PeerProcess process(int rank) const override {
    return rank == 1 ? comm::PeerProcess{.pid = 1, .descriptor = process_} : comm::PeerProcess{};
  }
  void abandon(int) override {}
  bool close(Seconds) override { return true; }
  [[nodiscard]] comm::TransportStats stats() const override { return {}; }

 private:
  int process_;
};

TEST(RankProcesses, EndsTheProcessThatTheTransportKnows) {
  const pid_t rank = start_sleeper(), unrelated = start_sleeper();
  ASSERT_GT(rank, 0);
  ASSERT_GT(unrelated, 0);
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, rank, 0));
  ASSERT_GE(descriptor, 0);
  const RankProcesses processes{Knowing(descriptor)};
  EXPECT_TRUE(processes.end(1));
  int status = 0;
  EXPECT_EQ(waitpid(rank, &status, 0), rank);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_FALSE(processes.end(1));  // it has ended
  EXPECT_FALSE(processes.end(2));  // not known
  EXPECT_FALSE(processes.end(0));
  EXPECT_FALSE(processes.end(7));
  EXPECT_EQ(waitpid(unrelated, &status, WNOHANG), 0);
  kill(unrelated, SIGKILL);
  waitpid(unrelated, &status, 0);
  ::close(descriptor);
}

}  // namespace
}  // namespace cleave::app
