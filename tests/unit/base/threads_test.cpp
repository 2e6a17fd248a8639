// Threads for the cores that a process may use.
#include "cleave/base/threads.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace cleave {
namespace {

TEST(Threads, ANumberStandsForItself) {
  EXPECT_EQ(threads_for(5), 5);
  EXPECT_EQ(threads_for(100, 4), 100);
}

TEST(Threads, ThereAreNoMoreThanCoresThatMayBeUsed) {
  EXPECT_GE(threads_for(0), 1);
  EXPECT_LE(threads_for(0), 16);
  EXPECT_EQ(threads_for(0, 1), 1);
  int on_one_core = 0;
  std::thread([&] {  // the affinity of this thread alone
    cpu_set_t all, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    on_one_core = threads_for(0);
  })
      .join();
  EXPECT_EQ(on_one_core, 1);
}

}  // namespace
}  // namespace cleave
