// Program: the operations of one piece of a StepGraph (model/pieces.hpp), and which columns of what each of them must
// compute for a purpose: all of a chunk's forward pass, its keys and values, its way back, or a slice of the gradient.
//
// Nothing about a family is known here: what depends on what is read off the graph. Columns of a product are
// independent of each other, and heads of attention are; so who owns a slice of a gradient computes little more than
// what the slice needs.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/pieces/column_set.hpp"

namespace cleave::pieces {

/// Of tensors, columns that are wanted. A tensor that is not named is not wanted.
using Wanted = std::map<TensorId, ColumnSet>;

/// An operation and the columns of each of its outputs that it computes, counted in the output's tensor.
struct Instruction {
  const model::Operation* op = nullptr;
  std::vector<ColumnSet> columns;
};

/// A weight or bias gradient: the columns of its two operands that it multiplies (of a bias: of its one operand).
struct SumInstruction {
  const model::Operation* op = nullptr;
  ColumnSet a, b;
};

class Program {
 public:
  /// `graph`: a training step in one row group and one chunk of the loss, which must outlive the program; its batch may
  /// be any. Requires: 0 <= piece < pieces_of(graph).size().
  Program(const model::StepGraph& graph, std::int64_t piece);
  /// A part of the head (model::HeadPart): columns `vocabulary` of the logits.
  Program(const model::StepGraph& graph, std::int64_t head, Columns vocabulary);

  [[nodiscard]] const model::StepGraph& graph() const { return *graph_; }
  [[nodiscard]] TensorId x() const { return x_; }    ///< what the piece reads of the residual stream
  [[nodiscard]] TensorId y() const { return y_; }    ///< what it makes of it; of the head none
  [[nodiscard]] TensorId dy() const { return dy_; }  ///< none for the head, or where nothing goes backward
  [[nodiscard]] TensorId dx() const { return dx_; }  ///< none where no gradient is wanted below
  /// Attention of the forward and of the backward pass; null where the piece has none, or nothing goes backward.
  [[nodiscard]] const model::Operation* attention() const { return attention_; }
  /// Tensors of model::Piece::kept, each with the columns of those before it; and the columns of all of them.
  [[nodiscard]] const std::map<TensorId, std::int64_t>& kept() const { return kept_; }
  [[nodiscard]] std::int64_t kept_columns() const { return kept_columns_; }
  [[nodiscard]] bool has_logits() const { return !y_.valid(); }  ///< the head or a part of it
  [[nodiscard]] bool is_part() const { return vocabulary_.count() > 0; }
  /// Of a part: its columns of the logits, and their tensor.
  [[nodiscard]] Columns vocabulary() const { return vocabulary_; }
  [[nodiscard]] TensorId logits() const { return product_ == nullptr ? TensorId() : product_->out[0].tensor; }
  /// Of the head: the product that makes the gradient of what the norm returned; null where nobody wants it.
  [[nodiscard]] const model::Operation* gradient_product() const { return gradient_product_; }
  [[nodiscard]] bool backward() const { return !backward_.empty(); }

  /// Forward operations that `wanted` needs, in order. They read `x` and parameters alone.
  [[nodiscard]] std::vector<Instruction> forward(const Wanted& wanted) const;
  /// Everything that the forward pass returns: y, or of the head what its way back begins with.
  [[nodiscard]] Wanted outputs() const;
  /// Of a part: its logits, as they are before the loss makes gradients of them.
  [[nodiscard]] std::vector<Instruction> forward_to_logits() const;
  /// Of a part: its columns of the logits' gradient. To be made with row_sums.
  [[nodiscard]] Wanted logit_gradient() const;
  /// Of the head: what follows gradient_product(), up to dx and the norms' gradients; the norm's statistics are made
  /// again.
  [[nodiscard]] std::vector<Instruction> back_from_product() const;
  /// Keys and values, as attention reads them.
  [[nodiscard]] Wanted keys_values() const;

  /// What `wanted` needs when keys and values are there already: forward operations, made again, then those that lead
  /// to input gradients. `wanted` may name gradients and forward values. With `row_sums`, each row's maximum and sum of
  /// exponentials are known, so columns of logits need no others.
  [[nodiscard]] std::vector<Instruction> back(const Wanted& wanted, bool row_sums = false) const;
  /// The same where the forward pass has left its values (model::Piece::kept): operations of the way back alone.
  [[nodiscard]] std::vector<Instruction> back_of_kept(const Wanted& wanted) const;
  /// The keys and values that instructions of back() read.
  [[nodiscard]] static Wanted keys_values_of(std::span<const Instruction> instructions);
  /// dx, and the norms' gradients with it.
  [[nodiscard]] Wanted input_gradient() const;

  /// Gradients of products' weights and biases that are trained.
  [[nodiscard]] std::span<const model::Operation* const> sums() const { return sums_; }
  /// Norms' gains and biases whose gradient is wanted: the operation that gives them, or null.
  [[nodiscard]] const model::Operation* norm_backward() const { return norm_backward_; }
  /// What sums need of the piece's values.
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
