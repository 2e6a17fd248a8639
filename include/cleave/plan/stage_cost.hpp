// What a stage costs (docs/stage_layouts.md): bytes, FLOP and memory of its weights, its chunks of tokens, open
// sequences and gradient slices. Pure; the planner and the scheduler ask here.
#pragma once

#include <span>
#include <utility>

#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan {

/// Bytes of a row at the head beside the boundary: its target down; its maximum in fp32, its sum of exponentials and
/// its loss in double up. An owner of some of the vocabulary is sent all of them but the loss, and so is a part of the
/// head on the way back.
inline constexpr std::int64_t kHeadRowDown = 4, kHeadRowUp = 20, kHeadRowBack = 16;
/// Of a part of the head, up: a maximum and a sum of each vocabulary block, in fp32; and the logit of the target.
inline constexpr std::int64_t kPartRowOfBlock = 8, kPartRowUp = 4;

/// Of pieces [first, end) of some work.
class StageCost {
 public:
  StageCost(const StageWork& work, std::int64_t first, std::int64_t end, std::int64_t chunk);

  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t end() const { return end_; }
  [[nodiscard]] bool is_head() const { return head_; }
  /// It holds a part of the head: a piece of its own, beside the other parts.
  [[nodiscard]] bool is_part() const { return blocks_ > 0; }
  /// The gradient that it goes back from is that of its own logits: no dY comes from above.
  [[nodiscard]] bool has_logits() const { return is_head() || is_part(); }
  /// Columns of the residual stream.
  [[nodiscard]] std::int64_t width() const { return width_; }
  /// Some gradient within the stage, or of what it reads, is wanted.
  [[nodiscard]] bool backward() const { return backward_; }
  /// Products' weights in the wire type, biases and norms in 4 bytes.
  [[nodiscard]] Bytes weights() const { return weights_; }
  /// Elements of the gradient that owners sum.
  [[nodiscard]] double gradient_elements() const { return gradient_elements_; }

  /// What a sequence keeps on its replica: forward keys and values; backward the inner boundaries, keys and values, and
  /// the sums of their gradients.
  [[nodiscard]] Bytes open_forward() const { return open_forward_; }
  [[nodiscard]] Bytes open_backward() const { return open_backward_; }
  /// What a sequence keeps where nothing is to be made again: everything that its way back and its sums read
  /// (model::Piece::kept), keys and values, and the sums of their gradients.
  [[nodiscard]] Bytes kept() const { return kept_; }
  /// Its products' weights in the order in which kernels read them, either way, in 4 bytes: where values are kept,
  /// weights are packed once.
  [[nodiscard]] Bytes packed() const { return packed_; }
  /// A chunk at work: its operands, twice so that the next one may come, and the rows' values in fp32.
  [[nodiscard]] Bytes at_work() const { return at_work_; }

  /// Rows of the residual stream, or of its gradient, as they travel.
  [[nodiscard]] Bytes boundary(std::int64_t rows) const { return Bytes(rows * width_ * wire_); }
  /// What rows need on the way forward and what comes of them, what they need on the way back beside X, and what comes
  /// of them then.
  [[nodiscard]] Bytes forward_operand(std::int64_t rows) const {
    return boundary(rows) + Bytes(has_logits() ? kHeadRowDown * rows : 0);
  }
  [[nodiscard]] Bytes forward_result(std::int64_t rows) const {
    if (is_part()) return Bytes((kPartRowOfBlock * blocks_ + kPartRowUp) * rows);
    return boundary(rows) + Bytes(head_ ? kHeadRowUp * rows : 0);
  }
  [[nodiscard]] Bytes backward_operand(std::int64_t rows) const {
    return is_part() ? Bytes(kHeadRowBack * rows) : boundary(rows);
  }
  [[nodiscard]] Bytes backward_result(std::int64_t rows) const {
    return is_part() ? Bytes(sum_ * rows * width_) : boundary(rows);
  }
  /// It is passed twice, forward and backward.
  [[nodiscard]] bool twice() const { return backward_ && !head_; }
  /// Its replicas may keep what a sequence's way back reads: it comes back at all, and is made of more than its rows.
  [[nodiscard]] bool may_keep() const { return twice() && !is_part(); }
  /// Of rows in all passes of a step: what its replicas take in beside weights, and what they send beside norms. X
  /// comes once where the values of the way forward are kept, otherwise twice.
  [[nodiscard]] Bytes taken_in(std::int64_t rows, bool kept = false) const {
    return twice() ? boundary(rows) * (kept ? 1 : 2) + backward_operand(rows) : forward_operand(rows);
  }
  [[nodiscard]] Bytes sent(std::int64_t rows) const {
    return twice() ? forward_result(rows) + backward_result(rows) : forward_result(rows);
  }
  /// The gradients of norms' gains and biases of one sequence, in 4 bytes.
  [[nodiscard]] Bytes norm_gradients() const { return Bytes(4 * norm_elements_); }

  /// Rows [t0, t1) of a sequence. For the head this is everything: logits, loss and dX.
  [[nodiscard]] Flops forward(std::int64_t t0, std::int64_t t1) const;
  /// What has to be made again of these rows before the last chunk's dY can be used: inner boundaries, keys and values.
  [[nodiscard]] Flops remake(std::int64_t t0, std::int64_t t1) const;
  /// dX from dY, with the values within each piece made again.
  [[nodiscard]] Flops backward(std::int64_t t0, std::int64_t t1) const;
  /// All that rows' way back takes, from keys and values to dX: with what has to be made again, or where it was kept.
  [[nodiscard]] Flops way_back(std::int64_t rows, bool kept) const {
    return kept ? backward_of_kept(0, rows) : remake(0, rows) + backward(0, rows);
  }
  /// dX from dY, where those values were kept.
  [[nodiscard]] Flops backward_of_kept(std::int64_t t0, std::int64_t t1) const;

 private:
  const std::vector<model::Piece>* pieces_;
  std::int64_t first_, end_, width_ = 0, wire_ = 4, sum_ = 8, norm_elements_ = 0;
  std::int64_t blocks_ = 0;  // of the vocabulary, of a part of the head
  bool head_ = false, backward_ = false;
  double gradient_elements_ = 0;
  Bytes weights_, packed_, open_forward_, open_backward_, kept_, at_work_;
};

/// Bytes of a sum over tokens, on its owner and between owner groups: the partial sums of docs/numerics.md.
[[nodiscard]] constexpr std::int64_t sum_bytes(DType wire) { return size_of(partial_sum_type(wire)); }

/// Sequences that a replica has open each way, at least.
inline constexpr std::int64_t kLeastOpen = 2;

/// What an owner of slices of a stage costs. `slices` are in order, and no two have units in common.
struct OwnerCost {
  double elements = 0;  ///< of the sums
  Bytes weights;        ///< that a device needs which is no replica of the stage
  Bytes at_work;        ///< memory beside sums and weights, which owners of a stage on one device share
  /// Of slices of a part of the head: memory for operands of their sums, from the way back of a sequence until they are
  /// summed, of that sequence and the next one.
  Bytes kept;
  /// Of a replica's slices: what their sums read of one sequence, from its way back until it is summed. Sequences go
  /// back through a replica one after another, each summed before the next, but through the head side by side.
  Bytes held;
  std::int64_t side_by_side = 1;  ///< that wait so: as many as a head has open at least
  Bytes operands;                 ///< of one sequence that it did not run itself
  Flops alone;                    ///< of such a sequence
  Flops beside;                   ///< of a sequence whose backward pass it ran itself
  /// Memory for operands that wait to be summed.
  [[nodiscard]] Bytes waiting(bool replica) const { return replica ? kept + held * side_by_side : kept; }
  /// Of a replica's slices: what waits of each sequence that is open (slot_bytes()).
  [[nodiscard]] Bytes of_each() const { return held + Bytes(kept.value() / kLeastOpen); }
};
[[nodiscard]] OwnerCost owner_cost(const StageWork& work, const StageCost& stage, std::span<const PieceSlice> slices,
                                   std::int64_t chunk);

/// Memory of one more sequence that a replica has open, forward and backward, beyond the least number; its owners hold
/// so much of it, which at a head, or a part of one, waits for each.
[[nodiscard]] std::pair<Bytes, Bytes> slot_bytes(const StageCost& stage, Bytes held);

/// Slices of a stage from a share to another of its trained elements, in [0, 1]: whole units, so that shares which
/// follow each other give slices which do.
[[nodiscard]] std::vector<PieceSlice> slices_between(const StageWork& work, const StageCost& stage, double from,
                                                     double to);

}  // namespace cleave::plan
