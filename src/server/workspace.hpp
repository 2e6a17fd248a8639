// Workspace: the numbers of the step that is under way: tensors bound to the graph, operands of its operations as
// matrices, and what is known of operations in progress.
//
// Gather, scatter, server kernels, block computer and verifier work on it; the executor owns it. It decides nothing and
// moves nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/server/parameter_store.hpp"
#include "cleave/server/profile.hpp"
#include "cleave/server/session.hpp"
#include "tensor_store.hpp"

namespace cleave::server {

/// Numbers of one operation in progress.
struct InProgress {
  KeptVector<std::int16_t> row_exponents, column_exponents;  ///< empty when k has one block
  bool in_units = false;  ///< sums count fixed units (kernels/token_sums.hpp), exponents are those of the unit
  Block sums;             ///< partial sums of the whole result, from the pool; empty until the first block arrives
  kernels::TokenSumMatrix unit_sums;  ///< in place of them where sums count units and the wire has 16 bits
  KeptVector<GemmBox> finish;         ///< boxes of partial sums that begin at k = 0: together the part to finish

  /// Whether sums of this type may be any integer: those over tokens in 64 bits (kernels/token_sums.hpp). Where
  /// training diverges they are beyond what other partial sums can be, and so may be those of a liar.
  [[nodiscard]] bool may_be_any(DType type) const { return in_units && type == DType::i64; }
};

/// Tokens that a product's block sums over; of no sequence where its header says that it does not.
[[nodiscard]] inline kernels::TokenRun tokens_of(const comm::Header& header) {
  return {header.gemm.seq, header.gemm.first_block * kBlockK, {header.wire, static_cast<int>(header.gemm.loss_bits)}};
}

class Workspace {
 public:
  /// `parameters` must outlive the workspace.
  Workspace(ParameterStore& parameters, DType wire, const ExecutorOptions& options);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Binds `graph`, which must live as long as the workspace, to this step's batch; what is left of another is given
  /// up.
  void begin_step(const model::StepGraph& graph, const StepInputs& inputs);

  /// The operation's numbers; at the first call its outputs get memory and the exponents of its operands are taken.
  /// Errors: CheckFailure when an operand is not finite.
  InProgress& open(const model::Operation& op);
  /// The numbers of an operation that was opened in this step and is not retired; else null.
  [[nodiscard]] InProgress* in_progress(OpId op);
  /// Forgets an operation, and tensors that no later one touches.
  void retire(const model::Operation& op);

  /// op(A) and op(B) of a GEMM, whole or from where a box of it begins.
  [[nodiscard]] kernels::ConstMatrix operand_a(const model::Operation& op);
  [[nodiscard]] kernels::ConstMatrix operand_b(const model::Operation& op);
  [[nodiscard]] kernels::ConstMatrix operand_a(const model::Operation& op, const GemmBox& box) {
    return operand_a(op).from(box.m0, box.k0);
  }
  [[nodiscard]] kernels::ConstMatrix operand_b(const model::Operation& op, const GemmBox& box) {
    return operand_b(op).from(box.k0, box.n0);
  }

  /// Exponents of columns [first, first + exponents.size()) of a GEMM's op(B); false where one is not finite.
  [[nodiscard]] bool take_column_exponents(const model::Operation& op, std::int64_t first,
                                           std::span<std::int16_t> exponents);

  /// The header of a tasklet's task: geometry and types.
  [[nodiscard]] comm::Header header_of(const sched::Tasklet& tasklet);

  [[nodiscard]] const model::StepGraph& graph() const { return *graph_; }
  [[nodiscard]] const model::Operation& operation(OpId id) const { return graph_->operation(id); }
  [[nodiscard]] TensorStore& tensors() { return *store_; }
  [[nodiscard]] const StepInputs& inputs() const { return inputs_; }
  [[nodiscard]] kernels::Parallel& parallel() { return parallel_; }
  [[nodiscard]] BlockPool& pool() { return pool_; }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  /// Where real time goes; who works on a step claims his part of it here.
  [[nodiscard]] Profile& profile() { return profile_; }
  [[nodiscard]] DType wire() const { return wire_; }
  /// What sums over tokens count in this step.
  [[nodiscard]] kernels::TokenUnit unit() const { return {wire_, graph_->loss_bits}; }

 private:
  [[nodiscard]] static bool sums_over_tokens(const model::Operation& op);
  void take_exponents(const model::Operation& op, InProgress& state);

  ParameterStore& parameters_;
  DType wire_;
  kernels::Parallel parallel_;
  BlockPool pool_{{}, comm::shared_memory()};
  std::map<const model::StepGraph*, std::unique_ptr<TensorStore>> stores_;
  TensorStore* store_ = nullptr;
  const model::StepGraph* graph_ = nullptr;
  StepInputs inputs_;
  NodePool nodes_;
  std::pmr::unordered_map<OpId, InProgress> in_progress_{&nodes_};
  Profile profile_;
};

}  // namespace cleave::server
