// TensorLifetimes: from when to when the tensors of a step need memory: from the first operation that writes them to
// the last one that touches them.
//
// The tensor store gives and takes memory by it, the memory forecast counts by it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cleave/model/graph.hpp"

namespace cleave::server {

class TensorLifetimes {
 public:
  /// `graph` must outlive it.
  explicit TensorLifetimes(const model::StepGraph& graph);

  /// No operation has run.
  void begin_step() { left_ = accesses_; }

  /// The same, and of all operations only these are run. Gradients, which others read, and `held` are never dropped.
  void begin_part(std::span<const OpId> operations, std::span<const TensorId> held);

  /// Whether a tensor's memory comes and goes: it is neither a parameter, which stays, nor a number, nor the batch.
  [[nodiscard]] bool comes_and_goes(TensorId id) const;

  /// Calls need(id) for every tensor that comes and goes and that `op` writes.
  template <class Need>
  void begin(const model::Operation& op, const Need& need) const {
    for (const model::TensorView& view : op.out) {
      if (view.valid() && comes_and_goes(view.tensor)) need(view.tensor);
    }
  }

  /// Calls drop(id) for every tensor that no operation still to be retired touches.
  template <class Drop>
  void retire(const model::Operation& op, const Drop& drop) {
    for (const TensorId id : touched_[static_cast<std::size_t>(op.id.value)]) {
      if (--left_[static_cast<std::size_t>(id.value)] == 0) drop(id);
    }
  }

 private:
  const model::StepGraph& graph_;
  std::vector<std::vector<TensorId>> touched_;  // by operation: its tensors, each once
  std::vector<std::int64_t> accesses_;          // by tensor: operations that touch it
  std::vector<std::int64_t> left_;              // of those, not retired yet in this step
};

}  // namespace cleave::server
