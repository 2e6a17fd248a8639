// A start that takes too long ends the process with a reason; one that does not, changes nothing.
#include "start_limit.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "cleave/base/error.hpp"

namespace cleave::comm {
namespace {

TEST(StartLimit, EndsAStartThatTakesTooLong) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const StartLimit limit(Seconds(0.25), "one waits for the others");
        while (true) ::pause();
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::environment)),
      "ranks do not meet: one waits for the others for 0.25 s");
}

TEST(StartLimit, IsOverWithTheStart) {
  { const StartLimit limit(Seconds(0.1), "one waits"); }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // still here
}

// A signal that ends what the main thread waits in must not end in the watcher.
TEST(StartLimit, LeavesSignalsToTheOthers) {
  const StartLimit limit(Seconds(100), "one waits");
  struct sigaction action {
  }, before{};
  static pthread_t heard;
  action.sa_handler = [](int) { heard = ::pthread_self(); };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  for (int i = 0; i < 100; ++i) {
    heard = {};
    ASSERT_EQ(::kill(::getpid(), SIGUSR1), 0);
    EXPECT_TRUE(::pthread_equal(heard, ::pthread_self()));
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace cleave::comm
