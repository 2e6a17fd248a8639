// The book of an arena: free ranges by address, and which chunks have memory.
#include "frame_arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/sanitizer.hpp"
#include "cleave/comm/frame_size.hpp"

#ifdef CLEAVE_ADDRESS_SANITIZER
// As <sanitizer/asan_interface.h> has them.
extern "C" void __asan_poison_memory_region(const volatile void* address, std::size_t size);
extern "C" void __asan_unpoison_memory_region(const volatile void* address, std::size_t size);
#endif

namespace cleave::comm {

namespace {

constexpr std::int64_t kPage = kFramePage, kChunk = static_cast<std::int64_t>(kHugePage);

// MADV_COLLAPSE of Linux 6.1, which the C library of Debian 12 does not name yet.
constexpr int kCollapse = 25;

std::int64_t whole_pages(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Views that outlive their frame show under the address sanitizer.
void forbid([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::int64_t bytes) {
#ifdef CLEAVE_ADDRESS_SANITIZER
  __asan_poison_memory_region(data, static_cast<std::size_t>(bytes));
#endif
}
void allow([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::int64_t bytes) {
#ifdef CLEAVE_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(data, static_cast<std::size_t>(bytes));
#endif
}

}  // namespace

std::shared_ptr<FrameArena> FrameArena::make(std::int64_t bytes, std::int64_t spare, SharedMapping::Writers writers) {
  auto memory = SharedMapping::make((bytes + kChunk - 1) / kChunk * kChunk, writers);
  if (!memory) return nullptr;
  return std::shared_ptr<FrameArena>(new FrameArena(std::move(*memory), spare));
}

FrameArena::FrameArena(SharedMapping memory, std::int64_t spare)
    : memory_(std::move(memory)), spare_(spare), taken_(static_cast<std::size_t>(memory_.bytes() / kChunk), false) {
  free_.emplace(SharedMapping::kFirst, memory_.bytes() - SharedMapping::kFirst);
}

std::byte* FrameArena::take(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t size = whole_pages(bytes);
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= size; });
  if (found == free_.end() || !ensure(found->first, size)) return nullptr;
  const auto [offset, room] = *found;
  free_.erase(found);
  if (room > size) free_.emplace(offset + size, room - size);
  in_use_ += size;
  allow(memory_.data() + offset, bytes);
  return memory_.data() + offset;
}

void FrameArena::give_back(std::byte* data, std::int64_t bytes, std::uint32_t) noexcept {
  const std::lock_guard lock(mutex_);
  forbid(data, bytes);
  std::int64_t offset = data - memory_.data(), size = whole_pages(bytes);
  in_use_ -= size;
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + size) {
    size += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return_spare();
      return;
    }
  }
  free_.emplace(offset, size);
  return_spare();
}

// Sees to it that a range has memory, so that touching it cannot fail.
bool FrameArena::ensure(std::int64_t offset, std::int64_t bytes) {
  for (std::int64_t chunk = offset / kChunk; chunk * kChunk < offset + bytes; ++chunk) {
    const auto index = static_cast<std::size_t>(chunk);
    if (taken_[index]) continue;
    if (::fallocate(memory_.descriptor(), 0, chunk * kChunk, kChunk) != 0) return false;
    // One huge page, for fewer faults here and in every process that reads it: shared memory gets none unasked. Advice:
    // refusal costs only time.
    (void)::madvise(memory_.data() + chunk * kChunk, static_cast<std::size_t>(kChunk), kCollapse);
    taken_[index] = true;
    held_ += kChunk;
  }
  return true;
}

// The highest chunks first: what is in use stays together at the low end.
void FrameArena::return_spare() {
  if (!returns_) return;
  for (auto range = free_.rbegin(); range != free_.rend() && held_ - in_use_ > spare_; ++range) {
    const std::int64_t first = (range->first + kChunk - 1) / kChunk, end = (range->first + range->second) / kChunk;
    for (std::int64_t chunk = end - 1; chunk >= first && held_ - in_use_ > spare_; --chunk) {
      const auto index = static_cast<std::size_t>(chunk);
      if (!taken_[index]) continue;
      if (::fallocate(memory_.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, chunk * kChunk, kChunk) != 0) {
        returns_ = false;  // the kernel takes nothing back of memory that others must not write to
        return;
      }
      taken_[index] = false;
      held_ -= kChunk;
    }
  }
}

Bytes FrameArena::held() const {
  const std::lock_guard lock(mutex_);
  return Bytes(held_);
}

Bytes FrameArena::in_use() const {
  const std::lock_guard lock(mutex_);
  return Bytes(in_use_);
}

}  // namespace cleave::comm
