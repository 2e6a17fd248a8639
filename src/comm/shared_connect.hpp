// Which ranks share memory: rank 0 and each rank of its host, where both sides can map the other's.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "shared_link.hpp"

namespace cleave::comm {

/// Links of this rank, by rank; null where memory is not shared, everywhere when rank 0 does not allow it.
/// `host` has the ranks of this host in the order of `all`. Collective: all ranks of `all`. Errors: EnvironmentError.
[[nodiscard]] std::vector<std::unique_ptr<SharedLink>> connect_shared_memory(MPI_Comm all, MPI_Comm host, bool allowed);

}  // namespace cleave::comm
