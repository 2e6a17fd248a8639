// Memory of frames.
#include "cleave/comm/frame.hpp"

#include <cstring>
#include <mutex>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/sanitizer.hpp"
#include "cleave/comm/frame_size.hpp"
#include "frame_arena.hpp"

namespace cleave::comm {

namespace {

// Memory of frames is used again: that of those from this size on block by block, where the next one fills it well
// enough and no more than so much is spare; smaller ones share theirs. Under the address sanitizer it comes from the
// heap each time, so that views are seen that outlive their frame. Those from this size on may be shared, whatever the
// sanitizer.
constexpr auto kLarge = static_cast<std::size_t>(kLargeFrame);
#ifdef CLEAVE_ADDRESS_SANITIZER
constexpr bool kUsedAgain = false;
#else
constexpr bool kUsedAgain = true;
#endif
constexpr std::size_t kSpare = std::size_t{128} << 20;
constexpr double kLeastFill = 0.75, kHeadroom = 2.0;

// What shared memory of this process may take; addresses are taken for all of it, memory only where it is used.
constexpr std::int64_t kArena = std::int64_t{64} << 30;

// The block of a frame of so many bytes goes to a later frame.
bool is_kept_whole(std::size_t bytes) { return kUsedAgain && bytes >= kLarge; }

// Of lengths that are no multiple of the boundary, the C++ library's pools do not keep to it.
std::size_t whole_lines(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Frames die on whatever thread last held them, some after main() has returned: the pool lives for ever.
struct SharedPool {
  std::mutex mutex;
  NodePool small{std::pmr::pool_options{.max_blocks_per_chunk = 0, .largest_required_pool_block = kLarge},
                 &large_memory()};
  BlockPool blocks{{.least_fill = kLeastFill, .headroom = kHeadroom, .spare = kSpare}};
  std::shared_ptr<FrameArena> arena;  // null: large frames are not shared

  std::shared_ptr<FrameArena> arena_now() {
    const std::lock_guard lock(mutex);
    return arena;
  }
};

SharedPool& shared_pool() {
  static auto* const pool = new SharedPool;
  return *pool;
}

// The arena, or the heap; for what is small the pool.
class SharedMemory final : public std::pmr::memory_resource {
  static bool is_pooled(std::size_t bytes) { return kUsedAgain && bytes < kLarge; }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (is_pooled(bytes)) {
      SharedPool& pool = shared_pool();
      const std::lock_guard lock(pool.mutex);
      return pool.small.allocate(whole_lines(bytes), alignment);
    }
    if (bytes >= kLarge) {
      const std::shared_ptr<FrameArena> arena = shared_pool().arena_now();
      if (std::byte* const data = arena ? arena->take(static_cast<std::int64_t>(bytes)) : nullptr) return data;
    }
    return large_memory().allocate(bytes, alignment);
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) override {
    if (is_pooled(bytes)) {
      SharedPool& pool = shared_pool();
      const std::lock_guard lock(pool.mutex);
      return pool.small.deallocate(data, whole_lines(bytes), alignment);
    }
    auto* const first = static_cast<std::byte*>(data);
    const std::shared_ptr<FrameArena> arena = shared_pool().arena_now();
    if (arena && arena->holds(first)) return arena->give_back(first, static_cast<std::int64_t>(bytes), 0);
    large_memory().deallocate(data, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

std::pmr::memory_resource& shared_memory() {
  static auto* const memory = new SharedMemory;
  return *memory;
}

std::shared_ptr<FrameArena> share_large_frames() {
  SharedPool& pool = shared_pool();
  const std::lock_guard lock(pool.mutex);
  if (!pool.arena)
    pool.arena = FrameArena::make(kArena, static_cast<std::int64_t>(kSpare), SharedMapping::Writers::maker);
  return pool.arena;
}

Frame::Frame(std::int64_t bytes) : size_(bytes) {
  if (bytes >= static_cast<std::int64_t>(kLarge)) {
    if (std::shared_ptr<FrameArena> arena = shared_pool().arena_now()) {
      data_ = arena->take(bytes);
      if (data_ != nullptr) {
        memory_ = std::move(arena);
        return;
      }
    }
  }
  const auto size = static_cast<std::size_t>(bytes);
  if (is_kept_whole(size)) {
    SharedPool& pool = shared_pool();
    const std::lock_guard lock(pool.mutex);
    block_ = pool.blocks.take(size);
  } else if (size > 0) {
    block_ = Block(size, shared_memory());
  }
  data_ = block_.data();
}

Frame Frame::borrow(const std::byte* data, std::int64_t bytes, std::shared_ptr<FrameMemory> memory,
                    std::uint32_t ticket) {
  Frame frame;
  frame.data_ = const_cast<std::byte*>(data);
  frame.size_ = bytes;
  frame.memory_ = std::move(memory);
  frame.ticket_ = ticket;
  frame.borrowed_ = true;
  return frame;
}

void Frame::release() {
  if (memory_) {
    memory_->give_back(data_, size_, ticket_);
  } else if (is_kept_whole(block_.capacity())) {
    SharedPool& pool = shared_pool();
    const std::lock_guard lock(pool.mutex);
    pool.blocks.give(std::move(block_));
  }
}

Frame Frame::copy() const {
  Frame other(size_);
  if (size_ > 0) std::memcpy(other.data(), data(), static_cast<std::size_t>(size_));
  return other;
}

}  // namespace cleave::comm
