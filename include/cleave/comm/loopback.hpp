// Loopback: a transport between threads of one process, for tests and for running without mpirun.
//
// A frame is handed over, not copied. Endpoints may outlive the hub and each other.
#pragma once

#include <memory>

#include "cleave/comm/transport.hpp"

namespace cleave::comm {

/// A network of `size` ranks within the process.
class LoopbackHub {
 public:
  explicit LoopbackHub(int size);
  /// The endpoint of one rank. A rank is gone for the others when its endpoint was closed or destroyed.
  /// Requires: called once for each rank.
  [[nodiscard]] std::unique_ptr<Transport> endpoint(int rank);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace cleave::comm
