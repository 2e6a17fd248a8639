// A device that knows nothing of this code trains beside one that does, to the same bits: device.py was written from
// docs/wire_format.md and docs/numerics.md alone. A bridge carries its frames between a socket and the loopback.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cleave/base/version.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

const std::string kFolder = std::string(CLEAVE_SOURCE_DIR) + "/tests/independent";

bool has_python() { return std::system("python3 -c 'import ctypes' > /dev/null 2>&1") == 0; }

pid_t start_device(int socket) {
  const std::string script = kFolder + "/device.py", descriptor = std::to_string(socket);
  const pid_t child = ::fork();
  if (child == 0) {
    ::fcntl(socket, F_SETFD, 0);
    ::execlp("python3", "python3", script.c_str(), descriptor.c_str(), kVersion, nullptr);
    ::_exit(127);
  }
  return child;
}

// Frames of one rank, each with its length before it, between the loopback and a socket, until either side ends.
void carry(comm::Transport& rank, int socket, const std::atomic<bool>& stop) {
  std::vector<std::byte> came;
  while (!stop) {
    if (const auto received = rank.wait(Seconds(1e-3))) {
      const comm::Frame frame = comm::seal_payload(received->frame.copy());
      const auto bytes = static_cast<std::uint64_t>(frame.size());
      if (::send(socket, &bytes, sizeof bytes, MSG_NOSIGNAL) < 0) return;
      for (std::int64_t sent = 0; sent < frame.size();) {
        const ssize_t part =
            ::send(socket, frame.data() + sent, static_cast<std::size_t>(frame.size() - sent), MSG_NOSIGNAL);
        if (part < 0) return;
        sent += part;
      }
    }
    std::array<std::byte, 65536> part;
    const ssize_t bytes = ::recv(socket, part.data(), part.size(), MSG_DONTWAIT);
    if (bytes == 0) return;
    if (bytes > 0) came.insert(came.end(), part.begin(), part.begin() + bytes);
    std::uint64_t length = 0;
    while (came.size() >= sizeof length) {
      std::memcpy(&length, came.data(), sizeof length);
      if (came.size() < sizeof length + length) break;
      comm::Frame frame(static_cast<std::int64_t>(length));
      std::memcpy(frame.data(), came.data() + sizeof length, length);
      came.erase(came.begin(), came.begin() + static_cast<std::ptrdiff_t>(sizeof length + length));
      rank.send(0, std::move(frame));
    }
  }
}

TEST(IndependentDevice, ReadsTheExamplesOfThePage) {
  if (!has_python()) GTEST_SKIP() << "there is no python3 with ctypes";
  const std::string command =
      "python3 '" + kFolder + "/examples_test.py' '" + CLEAVE_SOURCE_DIR + "/docs/wire_format.md'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(IndependentDevice, TrainsToTheSameBits) {
  if (!has_python()) GTEST_SKIP() << "there is no python3 with ctypes";
  if (kernels::selected_gemm_kernels() == kernels::GemmKernels::generic) {
    GTEST_SKIP() << "the generic kernels have no fused multiply-add, and the device has nothing else";
  }
  Setting s;
  s.model.n_layer = 1;
  s.batch = 1;
  s.steps = 2;
  const std::uint64_t expected = train(s).hash;
  s.devices = unlike_devices(2);
  s.device_ranks = 2;
  s.devices[1].memory = Bytes(6 << 10);  // blocks of products fit, attention does not: it knows none
  s.verification = {.mode = server::VerifyMode::all, .seed = 4};

  comm::LoopbackHub hub(3);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0), bridge = hub.endpoint(2);
  std::thread host(
      [endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(1))] { (void)device::run_device_host(*endpoint); });
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const pid_t python = start_device(ends[1]);
  ASSERT_GT(python, 0);
  ::close(ends[1]);
  std::atomic<bool> stop{false};
  std::thread carrier([&] { carry(*bridge, ends[0], stop); });

  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options_of(s), server.get());
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const server::StepResult result = trainer.step(step, batch_of(s, step));
      EXPECT_EQ(result.report.rejected, 0);
      EXPECT_EQ(result.report.lost, 0);
    }
    EXPECT_TRUE(trainer.distrusted().empty());
    EXPECT_TRUE(trainer.say_goodbye(Seconds(20)).empty());
  }
  int status = -1;
  EXPECT_EQ(::waitpid(python, &status, 0), python);
  EXPECT_EQ(status, 0) << "it computed nothing, or met what it does not know";
  stop = true;
  carrier.join();
  host.join();
  ::close(ends[0]);
  EXPECT_EQ(parameters.hash(), expected);
}

}  // namespace
}  // namespace cleave::testing_run
