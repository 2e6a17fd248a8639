// Blocks come back for requests of their size, and what is held never exceeds the peak in use.
#include "cleave/base/block_pool.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace cleave {
namespace {

TEST(BlockPool, RecyclesBySize) {
  BlockPool pool;
  Block block = pool.take(4096);
  const std::byte* const where = block.data();
  pool.give(std::move(block));
  EXPECT_EQ(pool.take(4096).data(), where);
  EXPECT_EQ(pool.held(), Bytes(4096));
}

TEST(BlockPool, NearSizesWhereAllowed) {
  BlockPool pool({.least_fill = 0.75});
  Block block = pool.take(1000);
  pool.give(std::move(block));
  Block small = pool.take(700);  // too small for it, and with it beyond what was ever in use
  EXPECT_EQ(pool.held(), Bytes(700));
  pool.give(std::move(small));

  block = pool.take(1000);
  const std::byte* const again = block.data();
  pool.give(std::move(block));
  block = pool.take(750);
  EXPECT_EQ(block.data(), again);
  EXPECT_EQ(block.capacity(), 1000U);
  EXPECT_EQ(pool.peak(), Bytes(1000));
}

TEST(BlockPool, BlocksOfOtherSizesGiveWay) {
  BlockPool pool;
  for (std::size_t size = 1000; size <= 20000; size += 1000) pool.give(pool.take(size));
  EXPECT_EQ(pool.peak(), Bytes(20000));
  EXPECT_LE(pool.held(), pool.peak());
}

TEST(BlockPool, HoldsNoMoreThanWasInUseAtOnce) {
  for (const double least_fill : {1.0, 0.5}) {
    BlockPool pool({.least_fill = least_fill});
    std::vector<Block> blocks;
    for (std::size_t round = 0; round < 50; ++round) {
      const std::size_t size = 64 * (1 + round * 37 % 29);
      for (int i = 0; i < 5; ++i) blocks.push_back(pool.take(size));
      EXPECT_LE(pool.held(), pool.peak());
      for (Block& block : blocks) pool.give(std::move(block));
      blocks.clear();
    }
    EXPECT_EQ(pool.peak(), Bytes(5 * 64 * 29));
  }
}

TEST(BlockPool, KeepsNoMoreSpareThanAllowed) {
  BlockPool pool({.spare = 1000});
  std::vector<Block> blocks;
  for (const std::size_t size : {400UL, 500UL, 300UL, 2000UL}) blocks.push_back(pool.take(size));
  for (Block& block : blocks) pool.give(std::move(block));
  EXPECT_EQ(pool.held(), Bytes(700));  // 500 gave way to 300, and 2000 is never kept
}

TEST(BlockPool, AlignsBlocksAndAllowsEmptyOnes) {
  BlockPool pool;
  for (const std::size_t size : {0UL, 1UL, 63UL, 65UL}) {
    const Block block = pool.take(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 64, 0U);
  }
}

TEST(BlockPool, LargeBlocksAreWhole) {
  BlockPool pool;
  for (const std::size_t size : {(4UL << 20) - 1, 4UL << 20, (7UL << 20) + 13}) {
    Block block = pool.take(size);
    std::memset(block.data(), 1, size);
    Block other = std::move(block);
    EXPECT_TRUE(block.empty());  // NOLINT(bugprone-use-after-move): what is left of a moved block is what is tested
    EXPECT_EQ(other.data()[size - 1], std::byte{1});
    pool.give(std::move(other));
  }
}

}  // namespace
}  // namespace cleave
