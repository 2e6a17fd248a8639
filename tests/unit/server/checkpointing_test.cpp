// A checkpoint for which there are no descriptors now waits for some, and says so when none come.
#include "cleave/server/checkpointing.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "cleave/base/error.hpp"
#include "support/one_layer.hpp"

namespace cleave::server {
namespace {

namespace fs = std::filesystem;

const model::ModelConfig kModel = testing_support::one_layer();

ParameterStore parameters() { return testing_support::one_layer_parameters(); }

/// Every descriptor that this process may have, but for so many.
class AllDescriptors {
 public:
  explicit AllDescriptors(int left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit fewer = before_;
    fewer.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &fewer);
    for (int descriptor = 0; (descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;)
      taken_.push_back(descriptor);
    for (; left > 0 && !taken_.empty(); --left) give_back();
  }
  ~AllDescriptors() {
    while (!taken_.empty()) give_back();
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  AllDescriptors(const AllDescriptors&) = delete;
  AllDescriptors& operator=(const AllDescriptors&) = delete;
  [[nodiscard]] std::size_t count() const { return taken_.size(); }
  void give_back() {
    ::close(taken_.back());
    taken_.pop_back();
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST(SaveCheckpoint, WaitsForDescriptors) {
  const fs::path folder = fs::path(testing::TempDir()) / ("cleave-checkpointing-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const ParameterStore store = parameters();
  // The sanitizers take a descriptor to look at a type that they have not seen: they are shown the types of a failure.
  EXPECT_THROW(save_checkpoint("/proc/nowhere/file.h5", store, kModel, {.step = 1, .seed = 3, .tokenizer = {}}),
               EnvironmentError);
  for (const int left : {0, 1, 2}) {
    const fs::path file = folder / ("waits-" + std::to_string(left) + ".h5");
    // The thread begins before the descriptors are gone: the sanitizers need one whenever they look at new memory.
    std::atomic<AllDescriptors*> taken = nullptr;
    std::thread other([&] {
      taken.wait(nullptr);
      AllDescriptors& all = *taken;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      while (all.count() > 0) all.give_back();
    });
    AllDescriptors all(left);
    EXPECT_GT(all.count(), 20U);
    taken = &all;
    taken.notify_one();
    EXPECT_NO_THROW(save_checkpoint(file, store, kModel, {.step = 1, .seed = 3, .tokenizer = {}}));
    other.join();
    ParameterStore again = parameters();
    EXPECT_EQ(load_checkpoint(file, again, kModel).step, 1);
  }
  fs::remove_all(folder);
}

TEST(SaveCheckpoint, OtherFailuresAreToldAtOnce) {
  const ParameterStore store = parameters();
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(save_checkpoint("/proc/nowhere/file.h5", store, kModel, {.step = 1, .seed = 3, .tokenizer = {}}),
               EnvironmentError);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(2));
}

}  // namespace
}  // namespace cleave::server
