// The section `server` of an input.
#pragma once

#include <string>

#include "cleave/config/reader.hpp"
#include "cleave/fleet/profile.hpp"

namespace cleave::app {

struct ServerInput {
  int threads = 0;           ///< of server kernels, as read; in the input 0 leaves the number to the reader
  std::string gemm_kernels;  ///< "auto" or a family of BLIS kernels
  std::string interface;     ///< "auto", or the network interface that ranks of other hosts connect to
};

/// Faults: power at load below power at rest, kernels of no name.
[[nodiscard]] ServerInput read_server(const config::Section& in, fleet::ServerProfile& profile);

}  // namespace cleave::app
