// ServerKernels: the operations that the server computes itself, each bound to its kernel's arguments.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "cleave/kernels/elementwise.hpp"
#include "cleave/model/graph.hpp"
#include "undo_log.hpp"
#include "workspace.hpp"

namespace cleave::server {

class ServerKernels {
 public:
  /// `work` and `undo` must outlive it.
  ServerKernels(Workspace& work, UndoLog& undo) : work_(work), undo_(undo) {}

  void begin_step() { updating_ = false; }

  /// Runs a server kernel. Requires: its inputs are complete.
  void run(const model::Operation& op);

  /// True once an update of this step has begun: from then on the step must be completed.
  [[nodiscard]] bool updating() const { return updating_; }

 private:
  void bias_gradient(const model::Operation& op);
  void norm_backward(const model::Operation& op);
  void update(const model::Operation& op);
  void round_rows(const kernels::Rows& rows);

  Workspace& work_;
  UndoLog& undo_;
  std::deque<std::vector<float>> unwanted_;  // memory for outputs of kernels that nobody wants
  std::optional<kernels::RopeTable> rope_table_;
  bool updating_ = false;
};

}  // namespace cleave::server
