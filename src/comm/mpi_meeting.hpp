// How ranks find rank 0 when a transport is made: the only part of it that is collective.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "cleave/comm/mpi.hpp"
#include "descriptor.hpp"
#include "liveness.hpp"
#include "shared_link.hpp"

namespace cleave::comm {

/// What a rank then has.
struct Meeting {
  MPI_Comm comm = MPI_COMM_NULL;  ///< on one host a duplicate of MPI_COMM_WORLD
  int rank = 0, size = 1;
  Liveness* liveness = nullptr;     ///< on one host; lasts as long as the process
  std::vector<Descriptor> sockets;  ///< over several hosts, by rank: connections for frames; otherwise empty
  std::vector<std::unique_ptr<SharedLink>> links;  ///< by rank; null where memory is not shared
};

/// Errors: EnvironmentError, on every rank where one cannot reach rank 0. Collective: all ranks.
/// The process ends where that takes longer than the session's start_limit().
[[nodiscard]] Meeting meet(const MpiSession& session, const MpiTransportOptions& options);

}  // namespace cleave::comm
