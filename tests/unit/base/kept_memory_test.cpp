// Containers find the memory of those before them.
#include "cleave/base/kept_memory.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <list>
#include <new>
#include <set>
#include <thread>
#include <utility>

#include "cleave/base/sanitizer.hpp"

namespace cleave {
namespace {

TEST(KeptVector, GetsTheMemoryOfOneBefore) {
  const KeptVector<double> other(1000, 1.0);
  std::set<const double*> places;
  for (int i = 0; i < 2000; ++i) places.insert(KeptVector<double>(1000, 2.0).data());
  EXPECT_LE(places.size(), 100U);  // of a few that the pool had at once
  EXPECT_FALSE(places.contains(other.data()));
  EXPECT_EQ(other.back(), 1.0);
}

TEST(KeptVector, MayDieOnAnotherThread) {
  KeptVector<std::int64_t> vector(5000, 7);
  std::thread([moved = std::move(vector)]() mutable {
    EXPECT_EQ(moved.back(), 7);
    moved.resize(20000, 8);
    const KeptVector<std::int64_t> taken = std::move(moved);
    EXPECT_EQ(taken.back(), 8);
  }).join();
  EXPECT_EQ(KeptVector<std::int64_t>(5000, 9).front(), 9);
}

TEST(KeptMap, ComesAndGoes) {
  for (int turn = 0; turn < 3; ++turn) {
    KeptMap<std::int64_t, KeptVector<int>> map;
    for (int i = 0; i < 100; ++i) map[i].assign(static_cast<std::size_t>(i), i);
    for (int i = 0; i < 100; i += 2) map.erase(i);
    EXPECT_EQ(map.size(), 50U);
    EXPECT_EQ(map.at(99).size(), 99U);
  }
}

// Counts what it is asked for.
class Counting final : public std::pmr::memory_resource {
 public:
  int taken = 0;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++taken;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(data, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST(NodePool, TakesNothingMoreWhileItsContainersAreNoLarger) {
  Counting heap;
  NodePool pool({}, &heap);
  std::pmr::list<std::int64_t> list(&pool);
  for (std::int64_t i = 0; i < 100; ++i) list.push_back(i);
  const int taken = heap.taken;
  EXPECT_GT(taken, 0);
  for (std::int64_t i = 0; i < 1000; ++i) {
    list.pop_front();
    list.push_back(i);
  }
  EXPECT_EQ(heap.taken, taken);
}

// The list of a pool's chunks is such a block: a std::bad_alloc there would be lost.
TEST(MemoryForPoolsDeathTest, WantOfASmallBlockEndsTheProgram) {
#if defined(CLEAVE_ADDRESS_SANITIZER) || defined(CLEAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "sanitizers end the program themselves where memory is limited";
#endif
  const auto ask = [] {
    std::set_new_handler([] { throw std::bad_alloc(); });
    std::set_terminate([] { std::_Exit(31); });
    rlimit little{.rlim_cur = 1, .rlim_max = 1};
    ::setrlimit(RLIMIT_AS, &little);
    for (;;) (void)memory_for_pools().allocate(kSmallBlock, 8);  // what is free already goes first
  };
  EXPECT_EXIT(ask(), ::testing::ExitedWithCode(31), "");
}

TEST(MemoryForPools, WantOfALargeBlockIsSaid) {
#if defined(CLEAVE_ADDRESS_SANITIZER) || defined(CLEAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "sanitizers end the program where a block is larger than any";
#endif
  EXPECT_THROW((void)memory_for_pools().allocate(std::size_t{1} << 60, 8), std::bad_alloc);
}

}  // namespace
}  // namespace cleave
