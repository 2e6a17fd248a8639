// What a frame takes in memory: who predicts the memory of messages counts as frames do.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cleave::comm {

/// Frames from this size on have memory of their own, which ranks of one host may share: whole pages. Smaller ones have
/// blocks of a pool, whose sizes are powers of two. Either is kept for later frames of its kind.
inline constexpr std::int64_t kLargeFrame = std::int64_t{64} << 10;
inline constexpr std::int64_t kFramePage = std::int64_t{4} << 10;

[[nodiscard]] constexpr bool is_large_frame(std::int64_t bytes) { return bytes >= kLargeFrame; }

/// Memory of a frame of so many bytes.
[[nodiscard]] constexpr std::int64_t frame_memory(std::int64_t bytes) {
  if (is_large_frame(bytes)) return (bytes + kFramePage - 1) / kFramePage * kFramePage;
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

/// Frames of one kind serve each other's memory: large ones are one kind, small ones a kind for each size of block.
inline constexpr std::size_t kFrameKinds = 18;
[[nodiscard]] constexpr std::size_t frame_kind(std::int64_t bytes) {
  if (is_large_frame(bytes)) return kFrameKinds - 1;
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(frame_memory(bytes)))) - 1;
}

}  // namespace cleave::comm
