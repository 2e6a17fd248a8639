// Allocation of blocks, and the book of those that wait for their next use.
#include "cleave/base/block_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace cleave {

namespace {

constexpr std::size_t kAlignment = 64;

class LargeMemory final : public std::pmr::memory_resource {
  // Blocks of kSmallestInHugePages are mappings of their own (main() sees to that), where alignment wastes no memory.
  static std::size_t alignment_of(std::size_t bytes) { return bytes >= kSmallestInHugePages ? kHugePage : kAlignment; }

  void* do_allocate(std::size_t bytes, std::size_t) override {
    const std::size_t alignment = alignment_of(bytes);
    if (bytes <= kSmallBlock) return memory_for_pools().allocate(bytes, alignment);
    void* const data = ::operator new (bytes, std::align_val_t{alignment});
    // Whole huge pages only, so that no more becomes resident than was asked for. Advice: refusal costs only time.
    if (alignment == kHugePage) (void)::madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    return data;
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t) override {
    ::operator delete (data, std::align_val_t{alignment_of(bytes)});
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

// Blocks die on any thread, some after main() has returned: it lives for ever.
std::pmr::memory_resource& large_memory() {
  static auto* const memory = new LargeMemory;
  return *memory;
}

Block::Block(std::size_t capacity, std::pmr::memory_resource& from)
    : capacity_(std::max<std::size_t>(capacity, 1)), from_(&from) {
  data_ = static_cast<std::byte*>(from.allocate(capacity_, kAlignment));
}

Block::~Block() {
  if (data_ != nullptr) from_->deallocate(data_, capacity_, kAlignment);
}

Block BlockPool::take(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  const auto found = free_.lower_bound(bytes);
  if (found != free_.end() && static_cast<double>(bytes) >= limits_.least_fill * static_cast<double>(found->first)) {
    Block block = std::move(found->second);
    free_.erase(found);
    spare_ -= block.capacity();
    in_use_ += block.capacity();
    peak_ = std::max(peak_, in_use_);
    return block;
  }
  peak_ = std::max(peak_, in_use_ + bytes);
  while (!free_.empty() && in_use_ + bytes + spare_ > most_held()) drop_largest();
  Block block(bytes, from_);
  in_use_ += bytes;
  return block;
}

void BlockPool::give(Block block) {
  if (block.empty()) return;
  const std::size_t capacity = block.capacity();
  in_use_ -= capacity;
  if (capacity > limits_.spare) return;
  while (spare_ + capacity > limits_.spare) drop_largest();
  spare_ += capacity;
  free_.emplace(capacity, std::move(block));
}

std::size_t BlockPool::most_held() const {
  return static_cast<std::size_t>(limits_.headroom * static_cast<double>(peak_));
}

void BlockPool::drop_largest() {
  const auto largest = std::prev(free_.end());
  spare_ -= largest->first;
  free_.erase(largest);
}

}  // namespace cleave
