// What the transport over MPI has under way: sends, receives, and the account of each rank.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "batch.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/frame.hpp"

namespace cleave::comm {

// What is received of one rank at once, before it is handed over: bytes, where the owner has not said what is to be
// expected of it, and messages, however short. Then reception of that rank waits, and of no other. What it sends
// unasked (small messages, and batches of them) has room in any case.
inline constexpr std::int64_t kMostBytes = kMaxFrameBytes, kUnasked = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostMessages = 256;

struct Send {
  int dest;
  MPI_Request request;
  Frame frame;
};

struct Receive {
  int source;
  MPI_Request request;
  Frame frame;
  int tag;
  bool done;
  bool dropped;  // lost, or too long
};

// What is being received of one rank.
struct Incoming {
  std::int64_t bytes = 0, messages = 0;
  std::int64_t most_bytes = kMostBytes;
  Seconds gone{-1};  // when it was found to be
  [[nodiscard]] bool has_room() const { return bytes < most_bytes && messages < kMostMessages; }
};

// What is to go to one rank.
struct Outgoing {
  Batch batch;
  Seconds last{-1};  // when anything was last sent there
};

}  // namespace cleave::comm
