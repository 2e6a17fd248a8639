// Frame: the bytes of one message, header and payload, in one owned buffer.
//
// Encoders fill it, transports carry it, decoders look into it without copying. The buffer starts on a 64-byte boundary
// and is never moved while a message is under way: a pending send or receive owns its frame until it is complete. Large
// buffers are used again for later frames (base/block_pool.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "cleave/base/block_pool.hpp"

namespace cleave::comm {

/// Bytes of the header of every message; plan::kMessageHeader counts the same.
inline constexpr std::int64_t kHeaderBytes = 128;

/// Largest frame that is ever sent or accepted: a length from the wire is held against it before memory is taken. It is
/// 1 GiB of operands (plan::kMaxMessage) and room for their alignment and a schedule. A larger value lets one message
/// take more memory; MPI counts elements in an int, so it must stay below 2 GiB.
inline constexpr std::int64_t kMaxFrameBytes = (std::int64_t{1} << 30) + (std::int64_t{64} << 20);

/// Boundary on which a frame and each of its payload sections start.
inline constexpr std::int64_t kAlignment = 64;

/// See the file comment. Move-only; the bytes of a new frame are not initialised.
class Frame {
 public:
  Frame() = default;
  /// Requires: 0 <= bytes. Errors: std::bad_alloc.
  explicit Frame(std::int64_t bytes);
  Frame(Frame&& other) noexcept : block_(std::move(other.block_)), size_(std::exchange(other.size_, 0)) {}
  Frame& operator=(Frame&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Frame() { release(); }

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::byte* data() { return block_.data(); }
  [[nodiscard]] const std::byte* data() const { return block_.data(); }
  [[nodiscard]] std::span<std::byte> bytes() { return {block_.data(), static_cast<std::size_t>(size_)}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {block_.data(), static_cast<std::size_t>(size_)}; }

  /// A frame with the same bytes, in memory of its own. Errors: std::bad_alloc.
  [[nodiscard]] Frame copy() const;

 private:
  void release();

  Block block_;  // at least size_ bytes
  std::int64_t size_ = 0;
};

}  // namespace cleave::comm
