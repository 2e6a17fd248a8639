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

/// Bytes of a huge page, and from how many bytes on a block asks for them: of smaller ones too much would lie idle.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20, kSmallestInHugePages = 2 * kHugePage;

/// The heap for what is large: memory of kSmallestInHugePages and more starts on a boundary of, and asks for, huge
/// pages; any other on a boundary of 64 bytes. Any thread may use it, as long as the process lives.
[[nodiscard]] std::pmr::memory_resource& large_memory();

/// Memory that is aligned to 64 bytes and not initialised. Move-only.
class Block {
 public:
  Block() = default;
  /// `from` must outlive the block. Errors: std::bad_alloc.
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

/// What a pool may keep.
struct BlockPoolLimits {
  /// A block is used again for requests of at least this share of its capacity.
  double least_fill = 1.0;
  /// What is held, over the most that was in use at once.
  double headroom = 1.0;
  /// Bytes kept beside what is in use, at most.
  std::size_t spare = static_cast<std::size_t>(-1);
};

/// Gives out blocks, preferring those that came back. What it holds, in use or spare, never exceeds the most that was
/// in use at once (capacities counted); spare blocks of other sizes give way, the largest first. One thread at a time.
class BlockPool {
 public:
  /// `from` must outlive the pool and its blocks.
  explicit BlockPool(BlockPoolLimits limits = {}, std::pmr::memory_resource& from = large_memory())
      : limits_(limits), from_(from) {}

  /// A block of at least `bytes`. Errors: std::bad_alloc.
  [[nodiscard]] Block take(std::size_t bytes);
  /// Takes a block back that take() gave.
  void give(Block block);

  /// Most bytes that were in use at once.
  [[nodiscard]] Bytes peak() const { return Bytes(static_cast<std::int64_t>(peak_)); }
  /// In use and spare.
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
  /// Of a pool, which must outlive it, or, without one, of large_memory(). Errors: std::bad_alloc.
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
