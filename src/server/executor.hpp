// Executor: the numbers behind a StepGraph. It runs server kernels, gathers the operands of tasklets into messages,
// puts returned blocks in their place, checks them, and computes blocks itself when no device can.
//
// The server's fleets call it; the scheduler never does. It decides nothing: what runs where and when is the
// scheduler's, how blocks travel is the exchange's. Invariant: what it puts into tensors does not depend on who
// computed a block, in which order blocks came, or how the operation was cut (docs/numerics.md).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/random.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/comm/transport.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/parallel.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/server/parameter_store.hpp"
#include "cleave/server/profile.hpp"
#include "cleave/server/session.hpp"
#include "injected_fault.hpp"
#include "tensor_store.hpp"

namespace cleave::server {

/// The rank that a message is for: it may be able to read operands where they lie.
struct Reader {
  const comm::Transport* transport = nullptr;  ///< null: it is sent everything
  int rank = -1;
};

/// How a returned block was found.
enum class Verdict : std::uint8_t { good, wrong };

class Executor {
 public:
  /// `parameters` must outlive the executor.
  Executor(ParameterStore& parameters, const ExecutorOptions& options);
  ~Executor();

  /// Binds `graph`, which must live as long as the executor, to this step's batch.
  void begin_step(const model::StepGraph& graph, const StepInputs& inputs);

  /// Runs a server kernel. Requires: its inputs are complete.
  void run(const model::Operation& kernel);

  /// The task message of a tasklet, or of one part of it, for `reader`, to be answered as `fault` says.
  /// Requires: parts of a tasklet in order. Errors: CheckFailure when an operand is not finite.
  [[nodiscard]] comm::Frame gather(const sched::Tasklet& tasklet, const comm::MessagePart& part,
                                   const FaultOrder& fault, const Reader& reader);

  /// The first of the parts in which a tasklet travels to another host, to a device that has `room` for it; none: it
  /// travels in one message.
  [[nodiscard]] comm::MessagePart first_part(const sched::Tasklet& tasklet, Bytes room);

  /// Checks a returned block (as verification says) and puts it in its place. A result of another size, type or device
  /// than the tasklet's is wrong. Requires: comm::decode_result() accepted the result, and it names this tasklet.
  Verdict place(const sched::Tasklet& tasklet, const comm::ResultView& result);

  /// Computes a tasklet's block on the server, with the bits that a device would return, and puts it in its place.
  void compute(const sched::Tasklet& tasklet);

  /// The header of a tasklet's task: geometry and types.
  [[nodiscard]] comm::Header header_of(const sched::Tasklet& tasklet) const;

  /// Finishes partial sums and gives up what only this operation needed.
  void retire(OpId op);

  [[nodiscard]] double loss();
  [[nodiscard]] double grad_norm();
  [[nodiscard]] kernels::ConstRows logits();
  /// True once an update of this step has begun: from then on the step must be completed.
  [[nodiscard]] bool updating() const { return updating_; }
  [[nodiscard]] DType wire() const { return options_.wire; }
  [[nodiscard]] const model::StepGraph& graph() const { return *graph_; }
  [[nodiscard]] const VerificationReport& verification() const { return verification_; }
  [[nodiscard]] Bytes peak_memory() const { return pool_.peak(); }
  /// Calls `meanwhile` now and then while kernels run (kernels::Parallel); it must not use the executor.
  void set_meanwhile(std::function<void()> meanwhile) { parallel_.set_meanwhile(std::move(meanwhile)); }
  /// Where real time goes; who else works on a step claims his part of it here.
  [[nodiscard]] Profile& profile() { return profile_; }

 private:
  // Numbers of one operation in progress.
  struct InProgress {
    KeptVector<std::int16_t> row_exponents, column_exponents;  // empty when k has one block
    bool representable = true;
    Block sums;                  // partial sums of the whole result, from the pool; empty until the first arrives
    KeptVector<GemmBox> finish;  // boxes of partial sums that begin at k = 0: together the part to finish
    KeptMap<std::int64_t, kernels::ProductCheck> checks;  // of tasklets that are to be checked, by id
  };
  InProgress& open(const model::Operation& op);
  // Finishes the partial sums of an operation.
  void finish(const model::Operation& op, const InProgress& state);
  [[nodiscard]] kernels::ConstMatrix operand_a(const model::Operation& op);
  [[nodiscard]] kernels::ConstMatrix operand_b(const model::Operation& op);
  // What a box multiplies of them.
  [[nodiscard]] kernels::ConstMatrix operand_a(const model::Operation& op, const GemmBox& box) {
    return operand_a(op).from(box.m0, box.k0);
  }
  [[nodiscard]] kernels::ConstMatrix operand_b(const model::Operation& op, const GemmBox& box) {
    return operand_b(op).from(box.k0, box.n0);
  }
  void place_finished(const model::Operation& op, const GemmBox& box, std::span<const std::byte> block, DType type);
  bool place_if_representable(const sched::Tasklet& tasklet, const comm::ResultView& result);
  void place_partial(const model::Operation& op, const GemmBox& box, std::span<const std::byte> block, DType type);
  // A GEMM tasklet's block as a device would return it.
  kernels::ProductStatus multiply(const sched::Tasklet& tasklet, std::span<std::byte> block);
  // Where a rank finds the operands of a tasklet, matrix by matrix; none where it must be sent them. Valid until it is
  // called again.
  [[nodiscard]] std::span<const comm::OperandPlace> places_of(const sched::Tasklet& tasklet, const Reader& reader);
  // The message of a tasklet that only brings columns of B, with their exponents.
  [[nodiscard]] comm::Frame gather_columns(const sched::Tasklet& tasklet);
  // Puts the operands of a GEMM tasklet, or what a part brings of them, into its message, each by rows or by columns,
  // as it is stored, and, where the block is to be checked, into a check.
  void gather_operands(const sched::Tasklet& tasklet, kernels::ConstMatrix a, kernels::ConstMatrix b,
                       comm::TaskDraft& draft);
  // Whether verification looks at this tasklet's block.
  [[nodiscard]] bool is_drawn(const sched::Tasklet& tasklet) const;
  // The secret random numbers that a tasklet's block is checked with.
  [[nodiscard]] Random signs_of(const sched::Tasklet& tasklet) const;
  Verdict check(const sched::Tasklet& tasklet, const comm::ResultView& result);
  [[nodiscard]] double error_ratio_of_product(const sched::Tasklet& tasklet, const comm::ResultView& result);
  [[nodiscard]] double attention_error_ratio(const sched::Tasklet& tasklet, const comm::ResultView& result);
  [[nodiscard]] bool equals_own(const sched::Tasklet& tasklet, const comm::ResultView& result);
  // Notes a wrong block; the verdict on it.
  Verdict accuse(const sched::Tasklet& tasklet, bool checked, double ratio);
  void update(const model::Operation& op);

  ParameterStore& parameters_;
  ExecutorOptions options_;
  kernels::Parallel parallel_;
  BlockPool pool_{{}, comm::shared_memory()};
  std::map<const model::StepGraph*, std::unique_ptr<TensorStore>> stores_;
  TensorStore* store_ = nullptr;
  const model::StepGraph* graph_ = nullptr;
  StepInputs inputs_;
  NodePool nodes_;
  std::pmr::unordered_map<OpId, InProgress> in_progress_{&nodes_};
  std::vector<comm::OperandPlace> places_;
  std::deque<std::vector<float>> unwanted_;  // memory for outputs of kernels that nobody wants
  std::optional<kernels::RopeTable> rope_table_;
  bool updating_ = false;
  Random draws_;
  VerificationReport verification_;
  Profile profile_;
};

}  // namespace cleave::server
