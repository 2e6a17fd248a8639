// TensorStore: binds the tensors of one StepGraph to memory.
//
// Parameters live in the ParameterStore. Activations and gradients get memory when the first operation that writes them
// begins and give it back when the last operation that touches them is retired, so that the peak is what
// model::peak_activation_bytes says of the order in which operations ran. Freed blocks are kept for the next tensor
// of the same size, as far as that does not raise the peak.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cleave/base/block_pool.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/server/parameter_store.hpp"
#include "tensor_lifetimes.hpp"

namespace cleave::server {

class TensorStore {
 public:
  /// All three must outlive the store.
  TensorStore(const model::StepGraph& graph, ParameterStore& parameters, BlockPool& pool);
  ~TensorStore();
  TensorStore(const TensorStore&) = delete;
  TensorStore& operator=(const TensorStore&) = delete;

  /// Gives up every activation, zeroes the scalars, takes the step's tokens and targets (one per row of the batch).
  void begin_step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);

  /// Of this step only these operations will be told to begin and to retire; gradients, and `held`, stay until the step
  /// ends or they are dropped.
  void run_only(std::span<const OpId> operations, std::span<const TensorId> held) {
    lifetimes_.begin_part(operations, held);
  }
  /// Gives memory to a tensor that no operation writes, until the next step begins.
  void need(TensorId id);
  void drop(TensorId id) { release(id); }
  /// Gives memory to what `op` writes.
  void begin(const model::Operation& op);
  /// Takes memory back from what no later operation touches.
  void retire(const model::Operation& op);

  [[nodiscard]] kernels::Rows rows(const model::TensorView& view);
  [[nodiscard]] std::span<const std::int32_t> integers(const model::TensorView& view) const;
  [[nodiscard]] double& scalar(TensorId id);
  [[nodiscard]] Parameter& parameter(TensorId id);
  [[nodiscard]] const model::StepGraph& graph() const { return graph_; }

 private:
  struct Slot {
    Block block;
    float* data = nullptr;
    Parameter* parameter = nullptr;
  };
  Slot& slot(TensorId id) { return slots_[static_cast<std::size_t>(id.value)]; }
  void release(TensorId id);

  const model::StepGraph& graph_;
  BlockPool& pool_;
  TensorLifetimes lifetimes_;
  std::vector<Slot> slots_;
  std::vector<double> scalars_;
  std::span<const std::int32_t> tokens_, targets_;
};

}  // namespace cleave::server
