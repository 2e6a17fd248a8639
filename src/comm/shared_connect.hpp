// Which ranks share memory: rank 0 and each rank of its host, where both sides can map the other's.
#pragma once

#include <memory>
#include <vector>

#include "shared_link.hpp"

namespace cleave::comm {

/// Links of this rank, by rank; null where memory is not shared, everywhere when rank 0 does not allow it.
/// `here` says of each rank whether it is on the host of this one. Collective: all ranks. Errors: EnvironmentError.
[[nodiscard]] std::vector<std::unique_ptr<SharedLink>> connect_shared_memory(int rank, const std::vector<bool>& here,
                                                                             bool allowed);

}  // namespace cleave::comm
