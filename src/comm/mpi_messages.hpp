// What the transport over MPI has under way: sends, receives, and the account of each rank.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "batch.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/frame.hpp"
#include "incoming.hpp"

namespace cleave::comm {

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

// What is to go to one rank.
struct Outgoing {
  Batch batch;
  Seconds last{-1};  // when anything was last sent there
};

}  // namespace cleave::comm
