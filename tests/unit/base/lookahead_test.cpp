// Jobs that are carried out ahead of who takes their results: the results are those of one thread.
#include "cleave/base/lookahead.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

namespace cleave {
namespace {

constexpr std::size_t kJobs = 200;

// A search like a planner's: a job counts up to its own number's cost or to the least cost so far, whichever is less;
// jobs that promise too much are left out. Returns what was found, and how much was counted on the way.
struct Search {
  std::size_t best = kJobs;
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), counted = 0, left_out = 0;
  bool operator==(const Search&) const = default;
};

std::int64_t cost_of(std::size_t number) {
  return 1000 + static_cast<std::int64_t>((number * 7919 + 13) % 997) * 20 - 50 * static_cast<std::int64_t>(number);
}

Search search_with(int threads) {
  Search search;
  Lookahead<std::int64_t> costs(threads, [&](std::size_t number, const std::atomic<bool>& stop) {
    std::int64_t counted = 0;
    while (counted < cost_of(number) && counted < search.least && !stop.load()) ++counted;
    return counted;
  });
  const auto wanted = [&](std::size_t number) { return cost_of(number) / 2 < search.least || number % 3 == 0; };
  for (std::size_t i = 0; i < kJobs; ++i) {
    if (!wanted(i)) {
      ++search.left_out;
      continue;
    }
    const std::int64_t cost = costs.take(i, kJobs, wanted);
    search.counted += cost;
    if (cost >= search.least) continue;
    costs.drop();
    search.least = cost;
    search.best = i;
  }
  return search;
}

TEST(Lookahead, ResultsAreThoseOfOneThread) {
  const Search alone = search_with(1);
  EXPECT_LT(alone.least, 1000);
  EXPECT_GT(alone.left_out, 10);
  for (const int threads : {2, 3, 8}) {
    for (int again = 0; again < 20; ++again) EXPECT_EQ(search_with(threads), alone) << threads << " threads";
  }
}

TEST(Lookahead, TheNextJobsAreUnderWay) {
  std::latch both(2);
  Lookahead<int> jobs(2, [&](std::size_t number, const std::atomic<bool>&) {
    if (number < 2) both.arrive_and_wait();  // would wait for ever if one came after the other
    return static_cast<int>(number);
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(jobs.take(static_cast<std::size_t>(i), 5), i);
}

TEST(Lookahead, OneThreadBeginsNothingThatIsNotTaken) {
  std::vector<std::size_t> begun;
  const std::thread::id here = std::this_thread::get_id();
  Lookahead<int> jobs(1, [&](std::size_t number, const std::atomic<bool>&) {
    begun.push_back(number);
    EXPECT_EQ(std::this_thread::get_id(), here);
    return 0;
  });
  for (const std::size_t i : {0U, 3U, 4U}) EXPECT_EQ(jobs.take(i, 9), 0);
  EXPECT_EQ(begun, (std::vector<std::size_t>{0, 3, 4}));
}

TEST(Lookahead, DropStopsWhatIsUnderWayAndWaitsForIt) {
  std::atomic<int> value{1};
  std::atomic<int> at_work{0};
  Lookahead<int> jobs(3, [&](std::size_t number, const std::atomic<bool>& stop) {
    ++at_work;
    const int mine = value.load();
    while (number > 0 && mine == 1 && !stop.load()) std::this_thread::yield();
    --at_work;
    return mine;
  });
  EXPECT_EQ(jobs.take(0, 9), 1);
  jobs.drop();
  EXPECT_EQ(at_work.load(), 0);
  value = 2;
  for (std::size_t i = 1; i < 9; ++i) EXPECT_EQ(jobs.take(i, 9), 2) << "of before the drop";
}

TEST(Lookahead, WhatIsAskedForAgainIsCarriedOutAnewAndWhatIsPassedOverIsNotWaitedFor) {
  for (const int threads : {1, 2}) {
    std::atomic<int> done{0};
    Lookahead<int> jobs(threads, [&](std::size_t number, const std::atomic<bool>& stop) {
      while (number == 1 && !stop.load()) std::this_thread::yield();  // it would never end
      return ++done;
    });
    (void)jobs.take(0, 2);
    const int first = jobs.take(2, 3);
    EXPECT_GT(jobs.take(2, 3), first);
    const int third = jobs.take(3, 4);
    EXPECT_GT(third, first + 1);
  }
}

TEST(Lookahead, AnErrorComesWithTheResultThatIsTaken) {
  for (const int threads : {1, 2}) {
    Lookahead<int> jobs(threads, [](std::size_t number, const std::atomic<bool>&) {
      if (number % 2 == 1) throw std::runtime_error("odd");
      return static_cast<int>(number);
    });
    EXPECT_EQ(jobs.take(0, 9), 0);
    EXPECT_EQ(jobs.take(2, 9), 2);
    EXPECT_THROW((void)jobs.take(3, 9), std::runtime_error);
    EXPECT_EQ(jobs.take(4, 9), 4);
  }
}

}  // namespace
}  // namespace cleave
