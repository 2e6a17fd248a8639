// Memory of a frame, for predictions of the memory of messages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cleave::comm {

/// A frame of this size or more takes whole pages, which ranks of one host may share. A smaller one takes a block of a
/// pool, whose size is a power of two. The memory of either is kept for later frames of its kind.
inline constexpr std::int64_t kLargeFrame = std::int64_t{64} << 10;
/// Bytes of a page of a large frame.
inline constexpr std::int64_t kFramePage = std::int64_t{4} << 10;

[[nodiscard]] constexpr bool is_large_frame(std::int64_t bytes) { return bytes >= kLargeFrame; }

/// Bytes of memory that a frame of so many bytes takes.
[[nodiscard]] constexpr std::int64_t frame_memory(std::int64_t bytes) {
  if (is_large_frame(bytes)) return (bytes + kFramePage - 1) / kFramePage * kFramePage;
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

/// Number of kinds of frame. A frame may take the memory of an earlier one of its kind: all large frames are one kind,
/// small ones are a kind for each size of block.
inline constexpr std::size_t kFrameKinds = 18;
/// The kind of a frame of so many bytes, in [0, kFrameKinds).
[[nodiscard]] constexpr std::size_t frame_kind(std::int64_t bytes) {
  if (is_large_frame(bytes)) return kFrameKinds - 1;
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(frame_memory(bytes)))) - 1;
}

}  // namespace cleave::comm
