// ServerKernels: the operations that the server computes itself, each bound to its kernel's arguments.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "cleave/kernels/elementwise.hpp"
#include "cleave/model/graph.hpp"
#include "workspace.hpp"

namespace cleave::server {

class ServerKernels {
 public:
  /// `work` must outlive it.
  explicit ServerKernels(Workspace& work) : work_(work) {}

  void begin_step() { updating_ = false; }

  /// Runs a server kernel. Requires: its inputs are complete.
  void run(const model::Operation& op);

  /// True once an update of this step has begun: from then on the step must be completed.
  [[nodiscard]] bool updating() const { return updating_; }

 private:
  void update(const model::Operation& op);

  Workspace& work_;
  std::deque<std::vector<float>> unwanted_;  // memory for outputs of kernels that nobody wants
  std::optional<kernels::RopeTable> rope_table_;
  bool updating_ = false;
};

}  // namespace cleave::server
