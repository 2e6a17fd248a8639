// What a stage costs (docs/stage_layouts.md): bytes, FLOP and memory of its weights, its chunks of tokens, its
// open sequences and its gradient slices. Pure functions; the planner and the scheduler use them.
//
// Letters: X is what a stage reads of the residual stream, Y what it returns, dX and dY are their gradients. A "row" is
// a token of a sequence.
#pragma once

#include <span>
#include <utility>

#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan {

/// Bytes of a row at the head, beside its boundary. Down: its target. Up: its maximum in fp32, its sum of exponentials
/// and its loss in fp64. Back (to an owner of the head, and to a part of the head for its backward pass): maximum, sum
/// of exponentials and target.
inline constexpr std::int64_t kHeadRowDown = 4, kHeadRowUp = 20, kHeadRowBack = 16;
/// Bytes up of a row at a part of the head: maximum and sum of exponentials, in fp32, of each vocabulary block; and the
/// logit of the target.
inline constexpr std::int64_t kPartRowOfBlock = 8, kPartRowUp = 4;
/// Bytes of a slice of a piece, and of the number of a further owner that is to sum the same operands.
inline constexpr std::int64_t kSliceRecord = 24, kOwnerNumber = 4;

/// The costs of a stage.
class StageCost {
 public:
  /// A stage of pieces [first, end) of `work`, passed in chunks of `chunk` tokens. Requires: work.pieces outlives it.
  StageCost(const StageWork& work, std::int64_t first, std::int64_t end, std::int64_t chunk);

  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t end() const { return end_; }
  /// The stage is the whole head.
  [[nodiscard]] bool is_head() const { return head_; }
  /// The stage is a part of the head.
  [[nodiscard]] bool is_part() const { return blocks_ > 0; }
  /// The whole head or a part of it: its backward pass begins with its own logits, so there is no dY.
  [[nodiscard]] bool has_logits() const { return is_head() || is_part(); }
  /// Columns of the residual stream.
  [[nodiscard]] std::int64_t width() const { return width_; }
  /// The stage has a backward pass: dX, or a gradient of one of its parameters, is wanted.
  [[nodiscard]] bool backward() const { return backward_; }
  /// Bytes of its weights as they are sent: weights of products in the wire type, biases and norms in fp32.
  [[nodiscard]] Bytes weights() const { return weights_; }
  /// Elements of the gradient that owners sum.
  [[nodiscard]] double gradient_elements() const { return gradient_elements_; }

  /// Memory of an open sequence. Forward: keys and values. Backward with recomputation: the boundaries within the
  /// stage, keys and values, and the sums of the gradients of keys and values.
  [[nodiscard]] Bytes open_forward() const { return open_forward_; }
  [[nodiscard]] Bytes open_backward() const { return open_backward_; }
  /// Memory of a kept sequence, which needs no recomputation: everything that its backward pass and its sums read
  /// (model::Piece::kept), keys and values, and the sums of their gradients.
  [[nodiscard]] Bytes kept() const { return kept_; }
  /// Memory of the packed weights of a replica that keeps sequences: weights of products in fp32, for the forward and
  /// for the backward pass.
  [[nodiscard]] Bytes packed() const { return packed_; }
  /// Memory of a replica with kLeastOpen open sequences each way and a chunk at work, without operands for sums.
  [[nodiscard]] Bytes least_replica() const;
  /// Memory of the chunk that is computed: its operands, twice so that the next chunk can arrive meanwhile, and the
  /// values of its rows in fp32.
  [[nodiscard]] Bytes at_work() const { return at_work_; }

  /// Bytes of so many rows of the residual stream, or of its gradient, as they travel.
  [[nodiscard]] Bytes boundary(std::int64_t rows) const { return Bytes(rows * row_); }
  /// Bytes of so many rows: operands (down) and results (up) of the forward pass, and of the backward pass, where X
  /// comes besides (recompute()) unless it was kept. Without the gradients of norms.
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
  /// A sequence passes the stage twice, forward and backward. It passes a whole head once.
  [[nodiscard]] bool twice() const { return backward_ && !head_; }
  /// Replicas of the stage may keep sequences. Not at a part of the head: it recomputes its logits from X.
  [[nodiscard]] bool may_keep() const { return twice() && !is_part(); }
  /// Bytes of so many rows in all passes of a step: taken_in() down, beside weights; sent() up, beside the gradients of
  /// norms. X comes once for kept sequences, otherwise twice.
  [[nodiscard]] Bytes taken_in(std::int64_t rows, bool kept = false) const {
    return twice() ? boundary(rows) * (kept ? 1 : 2) + backward_operand(rows) : forward_operand(rows);
  }
  [[nodiscard]] Bytes sent(std::int64_t rows) const {
    return twice() ? forward_result(rows) + backward_result(rows) : forward_result(rows);
  }
  /// Bytes of one sequence's gradients of gains and biases of norms, in fp32.
  [[nodiscard]] Bytes norm_gradients() const { return Bytes(4 * norm_elements_); }

  /// FLOP of the forward pass of rows [t0, t1) of a sequence. At a whole head they include loss and dX.
  [[nodiscard]] Flops forward(std::int64_t t0, std::int64_t t1) const;
  /// FLOP of the recomputation before the backward pass of a sequence can begin, for rows [t0, t1): the boundaries
  /// within the stage, keys and values.
  [[nodiscard]] Flops recompute(std::int64_t t0, std::int64_t t1) const;
  /// FLOP of the backward pass of rows [t0, t1), dX from dY, with recomputation of the values within each piece.
  [[nodiscard]] Flops backward(std::int64_t t0, std::int64_t t1) const;
  /// FLOP of a sequence's whole backward pass, `rows` being its tokens: of a kept sequence, or with recomputation.
  [[nodiscard]] Flops way_back(std::int64_t rows, bool kept) const {
    return kept ? backward_of_kept(0, rows) : recompute(0, rows) + backward(0, rows);
  }
  /// FLOP of the backward pass of rows [t0, t1) of a kept sequence.
  [[nodiscard]] Flops backward_of_kept(std::int64_t t0, std::int64_t t1) const;

 private:
  const std::vector<model::Piece>* pieces_;
  std::int64_t first_, end_, width_ = 0, wire_ = 4, row_ = 0, sum_ = 8, norm_elements_ = 0;
  std::int64_t blocks_ = 0;  // of the vocabulary, of a part of the head
  bool head_ = false, backward_ = false;
  double gradient_elements_ = 0;
  Bytes weights_, packed_, open_forward_, open_backward_, kept_, at_work_;
};

/// Bytes of a partial sum over tokens, in its owner's memory and on the wire (docs/numerics.md).
[[nodiscard]] constexpr std::int64_t sum_bytes(DType wire) { return size_of(partial_sum_type(wire)); }

/// The least number of sequences that a replica can have open in each direction.
inline constexpr std::int64_t kLeastOpen = 2;

/// What an owner of slices of a stage costs.
struct OwnerCost {
  double elements = 0;  ///< number of sums
  Bytes weights;        ///< weights that a device needs which is no replica of the stage
  Bytes at_work;        ///< memory for the sequence that is summed; owners of one stage on one device share it
  /// Slices of a part of the head: memory for operands of two sequences, from their backward pass until they are
  /// summed.
  Bytes kept;
  /// Slices on a replica: memory for operands of one sequence, from its backward pass until it is summed. Sequences run
  /// backward through a replica one after another, each summed before the next one; at a whole head they do not.
  Bytes held;
  std::int64_t side_by_side = 1;  ///< sequences whose operands wait at the same time: kLeastOpen at a whole head
  Bytes operands;                 ///< bytes down of a sequence that the device did not run backward
  Flops alone;                    ///< FLOP of such a sequence, recomputation included
  Flops beside;                   ///< FLOP of a sequence that the device ran backward: the sums alone
  /// Memory for operands that wait to be summed, on a replica of the stage or on another device.
  [[nodiscard]] Bytes waiting(bool replica) const { return replica ? kept + held * side_by_side : kept; }
  /// Slices on a replica: memory for operands of each further open sequence (slot_bytes()).
  [[nodiscard]] Bytes of_each() const { return held + Bytes(kept.value() / kLeastOpen); }
};

/// The cost of an owner of `slices` of a stage. Requires: slices are of the stage's pieces, in order, without common
/// units; none: all costs are zero.
[[nodiscard]] OwnerCost owner_cost(const StageWork& work, const StageCost& stage, std::span<const PieceSlice> slices,
                                   std::int64_t chunk);

/// Memory of one more open sequence on a replica, forward and backward, beyond kLeastOpen. `held`: what the owners on
/// the replica's device need for it (OwnerCost::of_each()); it counts at a whole head (forward) and at a part
/// (backward).
[[nodiscard]] std::pair<Bytes, Bytes> slot_bytes(const StageCost& stage, Bytes held);

/// The slices of a stage that hold its trained elements from share `from` to share `to`, both in [0, 1], rounded to
/// whole units. Adjacent shares give adjacent slices.
[[nodiscard]] std::vector<PieceSlice> slices_between(const StageWork& work, const StageCost& stage, double from,
                                                     double to);

}  // namespace cleave::plan
