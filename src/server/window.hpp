// The window of a rank: how much may be under way to it without having been answered, and which rank a device lives on.
//
// The exchange keeps to it, the memory forecast counts with it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cleave/base/ids.hpp"

namespace cleave::server {

/// Unanswered bytes that may be under way to one rank: enough to keep it busy while the next message travels.
inline constexpr std::int64_t kWindowBytes = 64LL << 20;
/// A rank always gets this many tasklets ahead, however large they are.
inline constexpr std::int64_t kTaskletsAhead = 2;

/// Whether one more tasklet may be sent to a rank that has so much without an answer.
[[nodiscard]] constexpr bool window_is_open(std::int64_t tasklets, std::int64_t bytes) {
  return tasklets < kTaskletsAhead || bytes < kWindowBytes;
}

/// Most bytes that can be under way to a rank for which `waiting` bytes are meant, in messages of at most `largest`.
[[nodiscard]] constexpr std::int64_t most_under_way(std::int64_t waiting, std::int64_t largest) {
  return std::min(waiting, std::max(kWindowBytes + largest, kTaskletsAhead * largest));
}

/// The rank, from 1 on, that hosts a device.
[[nodiscard]] constexpr int rank_of(DeviceId device, int device_ranks) {
  return 1 + static_cast<int>(device.value % device_ranks);
}

}  // namespace cleave::server
