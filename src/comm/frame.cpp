// Memory of frames.
#include "cleave/comm/frame.hpp"

#include <cstring>
#include <mutex>

#include "frame_arena.hpp"

namespace cleave::comm {

namespace {

// Frames smaller than this come from the heap, which is quick enough with them. For the others a block is used again
// that it fills well enough; so much is kept at most. Under the address sanitizer none is, so that it sees views that
// outlive their frame.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kPooled = static_cast<std::size_t>(-1);
#else
constexpr std::size_t kPooled = std::size_t{64} << 10;
#endif
constexpr std::size_t kSpare = std::size_t{128} << 20;
constexpr double kLeastFill = 0.75, kHeadroom = 2.0;

// Large frames may be shared from this size on, whatever the sanitizer.
constexpr std::int64_t kShared = std::int64_t{64} << 10;
// What shared memory of this process may take; addresses are taken for all of it, memory only where it is used.
constexpr std::int64_t kArena = std::int64_t{64} << 30;

// Frames die on whatever thread last held them, some after main() has returned: the pool lives for ever.
struct SharedPool {
  std::mutex mutex;
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

// The arena, or the heap.
class SharedMemory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (static_cast<std::int64_t>(bytes) >= kShared) {
      const std::shared_ptr<FrameArena> arena = shared_pool().arena_now();
      if (std::byte* const data = arena ? arena->take(static_cast<std::int64_t>(bytes)) : nullptr) return data;
    }
    return large_memory().allocate(bytes, alignment);
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) override {
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
  if (!pool.arena) pool.arena = FrameArena::make(kArena, static_cast<std::int64_t>(kSpare));
  return pool.arena;
}

Frame::Frame(std::int64_t bytes) : size_(bytes) {
  if (bytes >= kShared) {
    if (std::shared_ptr<FrameArena> arena = shared_pool().arena_now()) {
      data_ = arena->take(bytes);
      if (data_ != nullptr) {
        memory_ = std::move(arena);
        return;
      }
    }
  }
  const auto size = static_cast<std::size_t>(bytes);
  if (size >= kPooled) {
    SharedPool& pool = shared_pool();
    const std::lock_guard lock(pool.mutex);
    block_ = pool.blocks.take(size);
  } else if (size > 0) {
    block_ = Block(size);
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
  } else if (block_.capacity() >= kPooled) {
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
