// Blocks of memory that are used again: tensors and messages come and go in the same sizes step after step, and memory
// that is fresh from the kernel costs a page fault, and its zeroing, for every few KiB.
#pragma once

#include <cstddef>
#include <map>
#include <memory_resource>
#include <utility>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/units.hpp"

namespace cleave {

/// Bytes of a huge page; and the smallest block that asks for huge pages. A smaller block would leave too much of its
/// last page idle.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20, kSmallestInHugePages = 2 * kHugePage;

/// The heap for large blocks. A block of kSmallestInHugePages bytes or more is aligned to a huge page and asks for huge
/// pages; any other block is aligned to 64 bytes. Thread-safe; it lives as long as the process.
[[nodiscard]] std::pmr::memory_resource& large_memory();

/// Memory that is aligned to 64 bytes and not initialised. Move-only.
class Block {
 public:
  Block() = default;
  /// Takes max(capacity, 1) bytes. Requires: `from` outlives the block. Errors: std::bad_alloc.
  explicit Block(std::size_t capacity, std::pmr::memory_resource& from = large_memory());
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Block();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  [[nodiscard]] bool empty() const { return data_ == nullptr; }

 private:
  void swap(Block& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(from_, other.from_);
  }

  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::pmr::memory_resource* from_ = nullptr;
};

/// What a BlockPool may keep. Sizes are capacities of blocks, in bytes.
struct BlockPoolLimits {
  /// A spare block serves a request only if the request fills at least this share of it.
  double least_fill = 1.0;
  /// Bound of in use + spare, as a multiple of the peak of in use; checked when a new block is allocated.
  double headroom = 1.0;
  /// Bound of spare.
  std::size_t spare = static_cast<std::size_t>(-1);
};

/// A pool of blocks. take() prefers a spare block, one that came back, to a new one. When in use + spare would pass the
/// limits, spare blocks are freed, the largest first. Not thread-safe.
class BlockPool {
 public:
  /// Requires: `from` outlives the pool and its blocks.
  explicit BlockPool(BlockPoolLimits limits = {}, std::pmr::memory_resource& from = large_memory())
      : limits_(limits), from_(from) {}

  /// A block of at least `bytes`. Errors: std::bad_alloc.
  [[nodiscard]] Block take(std::size_t bytes);
  /// Returns a block to the pool. Requires: it came from take() of this pool, or is empty.
  void give(Block block);

  /// The most bytes that were in use at once.
  [[nodiscard]] Bytes peak() const { return Bytes(static_cast<std::int64_t>(peak_)); }
  /// Bytes in use and spare, together.
  [[nodiscard]] Bytes held() const { return Bytes(static_cast<std::int64_t>(in_use_ + spare_)); }

 private:
  [[nodiscard]] std::size_t most_held() const;
  void drop_largest();

  BlockPoolLimits limits_;
  std::pmr::memory_resource& from_;
  NodePool nodes_;
  std::pmr::multimap<std::size_t, Block> free_{&nodes_};  // by capacity
  std::size_t in_use_ = 0, spare_ = 0, peak_ = 0;
};

/// A block that goes back to its pool by itself. Move-only.
class PooledBlock {
 public:
  PooledBlock() = default;
  /// A block of at least `bytes`: from `pool`, which must outlive it, or from large_memory() where `pool` is null.
  /// Errors: std::bad_alloc.
  PooledBlock(BlockPool* pool, std::size_t bytes) : pool_(pool), block_(pool ? pool->take(bytes) : Block(bytes)) {}
  PooledBlock(PooledBlock&& other) noexcept { swap(other); }
  PooledBlock& operator=(PooledBlock&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PooledBlock() {
    if (pool_ != nullptr && !block_.empty()) pool_->give(std::move(block_));
  }

  [[nodiscard]] std::byte* data() const { return block_.data(); }
  [[nodiscard]] std::size_t capacity() const { return block_.capacity(); }
  [[nodiscard]] bool empty() const { return block_.empty(); }

 private:
  void swap(PooledBlock& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(block_, other.block_);
  }

  BlockPool* pool_ = nullptr;
  Block block_;
};

}  // namespace cleave
