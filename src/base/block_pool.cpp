// Allocation of blocks, and the book of those that wait for their next use.
#include "cleave/base/block_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace cleave {

namespace {

constexpr std::size_t kAlignment = 64;
// Blocks of kSmallestInHugePages are mappings of their own (main() sees to that), where alignment wastes no memory.

std::size_t alignment_of(std::size_t capacity) { return capacity >= kSmallestInHugePages ? kHugePage : kAlignment; }

}  // namespace

Block::Block(std::size_t capacity) : capacity_(std::max<std::size_t>(capacity, 1)) {
  const std::size_t alignment = alignment_of(capacity_);
  data_ = static_cast<std::byte*>(::operator new (capacity_, std::align_val_t{alignment}));
  // Whole huge pages only, so that no more becomes resident than was asked for. Advice: refusal costs only time.
  if (alignment == kHugePage) (void)::madvise(data_, capacity_ / kHugePage * kHugePage, MADV_HUGEPAGE);
}

Block::~Block() {
  if (data_ != nullptr) ::operator delete (data_, std::align_val_t{alignment_of(capacity_)});
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
  Block block(bytes);
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
