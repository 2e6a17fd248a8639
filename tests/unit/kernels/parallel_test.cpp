// The thread pool: every chunk once, boundaries that do not depend on the number of threads, errors brought home.
#include "cleave/kernels/parallel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace cleave::kernels {
namespace {

std::vector<std::pair<std::int64_t, std::int64_t>> chunks_of(Parallel& parallel, std::int64_t n, std::int64_t chunk) {
  std::mutex mutex;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  parallel.for_chunks(n, chunk, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    seen.emplace_back(begin, end);
  });
  std::sort(seen.begin(), seen.end());
  return seen;
}

TEST(Parallel, ChunksAreTheSameForAnyNumberOfThreads) {
  Parallel one(1), two(2), five(5);
  for (const std::int64_t n : {0, 1, 7, 8, 9, 1000})
    for (const std::int64_t chunk : {1, 3, 8, 2000}) {
      const auto expected = chunks_of(one, n, chunk);
      std::int64_t at = 0;
      for (const auto& [begin, end] : expected) {
        EXPECT_EQ(begin, at);
        EXPECT_EQ(end, std::min(n, begin + chunk));
        at = end;
      }
      EXPECT_EQ(at, n);
      EXPECT_EQ(chunks_of(two, n, chunk), expected);
      EXPECT_EQ(chunks_of(five, n, chunk), expected);
    }
}

TEST(Parallel, SumsChunksInTheirOrder) {
  const auto term = [](std::int64_t begin, std::int64_t end) {
    return 1.0 / static_cast<double>(begin + 1) + static_cast<double>(end) * 0x1p40;
  };
  for (const std::int64_t n : {0, 1, 7, 5000, 64}) {
    double expected = 0;
    for (std::int64_t begin = 0; begin < n; begin += 7) expected += term(begin, std::min<std::int64_t>(begin + 7, n));
    for (const int threads : {1, 2, 5}) {
      Parallel parallel(threads);
      EXPECT_EQ(parallel.sum_chunks(n, 7, term), expected) << n << " over " << threads;
    }
  }
}

TEST(Parallel, LooksAfterOthersMeanwhile) {
  for (const int threads : {1, 3}) {
    Parallel parallel(threads);
    const std::thread::id caller = std::this_thread::get_id();
    int calls = 0;
    parallel.set_meanwhile([&] {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++calls;
    });
    parallel.for_chunks(60, 1, [&](std::int64_t, std::int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      parallel.for_chunks(3, 1, [](std::int64_t, std::int64_t) {});
    });
    EXPECT_GT(calls, 10);
    parallel.set_meanwhile([] { throw std::runtime_error("lost"); });
    const auto slowly = [](std::int64_t, std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    EXPECT_THROW(parallel.for_chunks(60, 1, slowly), std::runtime_error);
    parallel.set_meanwhile({});
    EXPECT_NO_THROW(parallel.for_chunks(60, 1, slowly));
  }
}

TEST(Parallel, UsesItsThreadsAtTheSameTime) {
  Parallel two(2);
  std::atomic<int> inside{0}, met{0};
  two.for_chunks(2, 1, [&](std::int64_t, std::int64_t) {
    ++inside;
    for (int wait = 0; wait < 2000 && inside < 2; ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (inside == 2) ++met;
  });
  EXPECT_EQ(met, 2);
}

TEST(Parallel, BringsExceptionsHomeAndWorksOn) {
  for (const int threads : {1, 3}) {
    Parallel parallel(threads);
    EXPECT_THROW(parallel.for_chunks(100, 1,
                                     [](std::int64_t begin, std::int64_t) {
                                       if (begin == 50) throw std::runtime_error("fifty");
                                     }),
                 std::runtime_error);
    std::atomic<std::int64_t> sum{0};
    parallel.for_chunks(100, 1, [&](std::int64_t begin, std::int64_t) { sum += begin; });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(Parallel, RunsALoopInsideALoop) {
  Parallel two(2);
  std::atomic<std::int64_t> count{0};
  two.for_chunks(8, 1, [&](std::int64_t, std::int64_t) {
    two.for_chunks(10, 3, [&](std::int64_t begin, std::int64_t end) { count += end - begin; });
  });
  EXPECT_EQ(count, 80);
}

TEST(Parallel, TakesTurnsBetweenCallers) {
  Parallel two(2);
  std::atomic<std::int64_t> count{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        two.for_chunks(10, 1, [&](std::int64_t begin, std::int64_t end) { count += end - begin; });
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(count, 4 * 200 * 10);
}

TEST(Parallel, WaitingThreadsSleep) {
  Parallel four(4);
  four.for_chunks(4, 1, [](std::int64_t, std::int64_t) {});
  const std::clock_t before = std::clock();  // processor time of all threads
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1);
}

}  // namespace
}  // namespace cleave::kernels
