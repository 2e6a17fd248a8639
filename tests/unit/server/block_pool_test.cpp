// Memory of activations: blocks come back for tensors of their size, and what is held never exceeds the peak in use.
#include <gtest/gtest.h>

#include <vector>

#include "../../../src/server/tensor_store.hpp"

namespace cleave::server {
namespace {

TEST(BlockPool, RecyclesBySize) {
  BlockPool pool;
  BlockPool::Block block = pool.take(4096);
  const std::byte* const where = block.get();
  pool.give(std::move(block), 4096);
  EXPECT_EQ(pool.take(4096).get(), where);
  EXPECT_EQ(pool.held(), Bytes(4096));
}

TEST(BlockPool, BlocksOfOtherSizesGiveWay) {
  BlockPool pool;
  for (std::size_t size = 1000; size <= 20000; size += 1000) pool.give(pool.take(size), size);
  EXPECT_EQ(pool.peak(), Bytes(20000));
  EXPECT_LE(pool.held(), pool.peak());
}

TEST(BlockPool, HoldsNoMoreThanWasInUseAtOnce) {
  BlockPool pool;
  std::vector<BlockPool::Block> blocks;
  for (std::size_t round = 0; round < 50; ++round) {
    const std::size_t size = 64 * (1 + round * 37 % 29);
    for (int i = 0; i < 5; ++i) blocks.push_back(pool.take(size));
    EXPECT_LE(pool.held(), pool.peak());
    for (BlockPool::Block& block : blocks) pool.give(std::move(block), size);
    blocks.clear();
  }
  EXPECT_EQ(pool.peak(), Bytes(5 * 64 * 29));
}

TEST(BlockPool, AlignsBlocksAndAllowsEmptyOnes) {
  BlockPool pool;
  for (const std::size_t size : {0UL, 1UL, 63UL, 65UL}) {
    const BlockPool::Block block = pool.take(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % 64, 0U);
  }
}

}  // namespace
}  // namespace cleave::server
