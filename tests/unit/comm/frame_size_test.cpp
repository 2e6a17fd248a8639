// What a frame is said to take in memory is what the pool and the arena give it.
#include "cleave/comm/frame_size.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cleave/base/kept_memory.hpp"

namespace cleave::comm {
namespace {

constexpr std::int64_t kKi = 1024;

TEST(FrameSize, SmallFramesTakeTheNextPowerOfTwoLargeOnesWholePages) {
  EXPECT_EQ(frame_memory(40 * kKi), 64 * kKi);
  EXPECT_EQ(frame_memory(32 * kKi), 32 * kKi);
  EXPECT_EQ(frame_memory(32 * kKi + 1), 64 * kKi);
  EXPECT_EQ(frame_memory(64 * kKi), 64 * kKi);
  EXPECT_EQ(frame_memory(64 * kKi + 1), 68 * kKi);
  EXPECT_FALSE(is_large_frame(64 * kKi - 1));
  EXPECT_TRUE(is_large_frame(64 * kKi));
}

TEST(FrameSize, FramesOfOneKindHaveBlocksOfOneSize) {
  EXPECT_EQ(frame_kind(33 * kKi), frame_kind(60 * kKi));
  EXPECT_NE(frame_kind(32 * kKi), frame_kind(33 * kKi));
  EXPECT_NE(frame_kind(60 * kKi), frame_kind(64 * kKi));
  EXPECT_EQ(frame_kind(64 * kKi), frame_kind(std::int64_t{1} << 40));
  for (std::int64_t bytes = 1; bytes < 2 * kLargeFrame; bytes += 37) {
    ASSERT_LT(frame_kind(bytes), kFrameKinds);
    ASSERT_GE(frame_memory(bytes), bytes);
  }
}

// The rule is the C++ library's, whose pools small frames use.
TEST(FrameSize, ThePoolPutsBlocksSoFarApart) {
  for (const std::int64_t bytes : {5 * kKi, 17 * kKi, 40 * kKi}) {
    NodePool pool(std::pmr::pool_options{.max_blocks_per_chunk = 0,
                                         .largest_required_pool_block = static_cast<std::size_t>(kLargeFrame)},
                  &memory_for_pools());
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 64; ++i) {
      blocks.push_back(static_cast<std::byte*>(pool.allocate(static_cast<std::size_t>(bytes), 64)));
    }
    std::sort(blocks.begin(), blocks.end());
    std::ptrdiff_t apart = blocks[1] - blocks[0];
    for (std::size_t i = 1; i < blocks.size(); ++i) apart = std::min(apart, blocks[i] - blocks[i - 1]);
    EXPECT_EQ(apart, frame_memory(bytes)) << bytes;
  }
}

}  // namespace
}  // namespace cleave::comm
