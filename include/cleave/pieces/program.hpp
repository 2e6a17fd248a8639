// Program: the operations of one piece of a StepGraph (model/pieces.hpp), and which columns each of them must compute
// for a purpose: a forward pass, keys and values alone, a backward pass, or the operands of a slice of the gradient.
//
// Nothing about a family is known here: dependencies are read off the graph. Columns of a product are independent of
// each other, and so are heads of attention. So the owner of a slice computes little more than what its slice needs.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/pieces/column_set.hpp"

namespace cleave::pieces {

/// Wanted columns by tensor. A tensor without an entry is not wanted.
using Wanted = std::map<TensorId, ColumnSet>;

/// An operation, and which columns of each of its outputs it is to compute.
struct Instruction {
  const model::Operation* op = nullptr;
  std::vector<ColumnSet> columns;  ///< for each of op->out, numbered as columns of the output's tensor
};

/// The sum over tokens that gives a weight or bias gradient, and which columns of its operands it multiplies.
struct SumInstruction {
  const model::Operation* op = nullptr;
  ColumnSet a, b;  ///< of op->in[0] and op->in[1], numbered from the view's first column; b is empty for a bias
};

/// See the file comment. Constant once constructed.
class Program {
 public:
  /// The program of a piece. `graph`: a training step in one row group and one chunk of the loss, of any batch.
  /// Requires: `graph` outlives the program; 0 <= piece < pieces_of(graph).size().
  Program(const model::StepGraph& graph, std::int64_t piece);
  /// The program of a part of the head (model::HeadPart): columns `vocabulary` of the logits. `head`: number of the
  /// head.
  Program(const model::StepGraph& graph, std::int64_t head, Columns vocabulary);

  [[nodiscard]] const model::StepGraph& graph() const { return *graph_; }
  [[nodiscard]] TensorId x() const { return x_; }    ///< residual stream that the piece reads
  [[nodiscard]] TensorId y() const { return y_; }    ///< residual stream that it returns; invalid for the head
  [[nodiscard]] TensorId dy() const { return dy_; }  ///< gradient of y; invalid for the head, or without backward pass
  [[nodiscard]] TensorId dx() const { return dx_; }  ///< gradient of x; invalid where nothing below is trained
  /// The attention_forward operation; null for a piece without attention.
  [[nodiscard]] const model::Operation* attention() const { return attention_; }
  /// Tensors of model::Piece::kept, each with the number of columns of those before it (an offset), and the number of
  /// columns of all of them.
  [[nodiscard]] const std::map<TensorId, std::int64_t>& kept() const { return kept_; }
  [[nodiscard]] std::int64_t kept_columns() const { return kept_columns_; }
  [[nodiscard]] bool has_logits() const { return !y_.valid(); }  ///< the head or a part of it
  [[nodiscard]] bool is_part() const { return vocabulary_.count() > 0; }
  /// A part's columns of the logits; and the tensor of the logits, of the head and of a part.
  [[nodiscard]] Columns vocabulary() const { return vocabulary_; }
  [[nodiscard]] TensorId logits() const { return product_ == nullptr ? TensorId() : product_->out[0].tensor; }
  /// Of the head: the product that gives the gradient of the last norm's output; null where nothing below is trained.
  [[nodiscard]] const model::Operation* gradient_product() const { return gradient_product_; }
  [[nodiscard]] bool backward() const { return !backward_.empty(); }

  /// The forward operations that `wanted` needs, in order. They read x() and parameters alone.
  [[nodiscard]] std::vector<Instruction> forward(const Wanted& wanted) const;
  /// Everything that the forward pass returns: y(); for the head, what its backward pass begins with.
  [[nodiscard]] Wanted outputs() const;
  /// Of a part: the forward operations up to its logits, before the loss replaces them by their gradient.
  [[nodiscard]] std::vector<Instruction> forward_to_logits() const;
  /// Of a part: its columns of the logits' gradient, for back() with row_sums.
  [[nodiscard]] Wanted logit_gradient() const;
  /// Of the head: the operations after gradient_product(), up to dx() and the norm's gradients. They recompute the
  /// norm's statistics from x().
  [[nodiscard]] std::vector<Instruction> back_from_product() const;
  /// Keys and values, as attention reads them; empty without attention.
  [[nodiscard]] Wanted keys_values() const;

  /// The operations of a backward pass with recomputation that give `wanted`: first forward operations, then those of
  /// input gradients. Keys and values are there already. `wanted` may name gradients and forward values. `row_sums`:
  /// each row's maximum and sum of exponentials are known (ChunkRun::know_row_sums()), so some columns of the logits'
  /// gradient do not need all logits.
  [[nodiscard]] std::vector<Instruction> back(const Wanted& wanted, bool row_sums = false) const;
  /// The same where the values of the forward pass were kept (model::Piece::kept): no forward operations.
  [[nodiscard]] std::vector<Instruction> back_of_kept(const Wanted& wanted) const;
  /// The columns of keys and values that instructions of back() read.
  [[nodiscard]] static Wanted keys_values_of(std::span<const Instruction> instructions);
  /// dx() and the norm's gradients.
  [[nodiscard]] Wanted input_gradient() const;

  /// The operations that sum over tokens: gradients of trained weights and biases of products.
  [[nodiscard]] std::span<const model::Operation* const> sums() const { return sums_; }
  /// The backward operation of the piece's norm; null where there is none.
  [[nodiscard]] const model::Operation* norm_backward() const { return norm_backward_; }
  /// The columns of the piece's tensors that these sums read.
  [[nodiscard]] static Wanted operands_of(std::span<const SumInstruction> sums);

 private:
  // What is known without being made.
  struct Known {
    bool keys_values = false, row_sums = false;
  };
  [[nodiscard]] std::vector<Instruction> needed(std::span<const model::Operation* const> operations, Wanted& wanted,
                                                Known known) const;

  const model::StepGraph* graph_;
  std::vector<const model::Operation*> forward_, backward_, sums_;
  const model::Operation *attention_ = nullptr, *norm_backward_ = nullptr;
  const model::Operation *product_ = nullptr, *gradient_product_ = nullptr;  // of the head
  Columns vocabulary_;
  TensorId x_, y_, dx_, dy_;
  std::map<TensorId, std::int64_t> kept_;
  std::int64_t kept_columns_ = 0;
};

}  // namespace cleave::pieces
