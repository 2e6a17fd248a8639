// What a transport takes in of one rank before it is handed over, and its limits.
#pragma once

#include <cstdint>

#include "cleave/comm/frame.hpp"

namespace cleave::comm {

// What is received of one rank at once, before it is handed over: bytes, where the owner has not said what is to be
// expected of it, and messages, however short. Then reception of that rank waits, and of no other. What it sends
// unasked (small messages, and batches of them) has room in any case.
inline constexpr std::int64_t kMostBytes = kMaxFrameBytes, kUnasked = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostMessages = 256;

// What is being received of one rank.
struct Incoming {
  std::int64_t bytes = 0, messages = 0;
  std::int64_t most_bytes = kMostBytes;
  [[nodiscard]] bool has_room() const { return bytes < most_bytes && messages < kMostMessages; }
};

}  // namespace cleave::comm
