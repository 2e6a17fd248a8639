// Memory of frames.
#include "cleave/comm/frame.hpp"

#include <cstring>
#include <mutex>

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

// Frames die on whatever thread last held them, some after main() has returned: the pool lives for ever.
struct SharedPool {
  std::mutex mutex;
  BlockPool blocks{{.least_fill = kLeastFill, .headroom = kHeadroom, .spare = kSpare}};
};

SharedPool& shared_pool() {
  static auto* const pool = new SharedPool;
  return *pool;
}

}  // namespace

Frame::Frame(std::int64_t bytes) : size_(bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (size >= kPooled) {
    SharedPool& pool = shared_pool();
    const std::lock_guard lock(pool.mutex);
    block_ = pool.blocks.take(size);
  } else if (size > 0) {
    block_ = Block(size);
  }
}

void Frame::release() {
  if (block_.capacity() >= kPooled) {
    SharedPool& pool = shared_pool();
    const std::lock_guard lock(pool.mutex);
    pool.blocks.give(std::move(block_));
  }
  block_ = Block();
  size_ = 0;
}

Frame Frame::copy() const {
  Frame other(size_);
  if (size_ > 0) std::memcpy(other.data(), data(), static_cast<std::size_t>(size_));
  return other;
}

}  // namespace cleave::comm
