// Pieces: a step cut where only the residual stream crosses, for layouts in which a device holds the weights of
// neighbouring pieces (docs/stage_layouts.md).
//
// A piece is the attention half of a layer (norm, q k v, attention, projection, residual), its MLP half, or the head
// with the last norm and the loss. pieces_of() sorts the operations of a StepGraph into pieces, so FLOP, tensors and
// widths are those of the graph: nothing about a family is known here. Embeddings, their gradient and the update belong
// to no piece; they stay with the server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/shapes.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::model {

enum class PieceKind : std::uint8_t { attention, mlp, head };

/// A weight or bias of a piece, and how slices of the piece cut its gradient. Slices count units of the piece; units
/// [u0, u1) are the range [begin + u0 extent / units, begin + u1 extent / units) of the tensor's rows or columns.
struct SlicedTensor {
  TensorId tensor;
  std::int64_t begin = 0, extent = 0;  ///< the piece's range of rows or columns: [begin, begin + extent)
  std::int64_t width = 1;              ///< elements in each of these rows or columns
  bool cut_rows = false;               ///< slices cut rows; otherwise columns
  bool vector = false;                 ///< a bias: travels in fp32, whatever the wire type
  bool trained = true;
  [[nodiscard]] std::int64_t elements() const { return extent * width; }
};

/// Which part of a head a piece is. A part holds some rows of the vocabulary. For each token its devices return the
/// maximum and the sum of exponentials of each of its vocabulary blocks; once those of all parts are known, a partial
/// sum of dX (docs/numerics.md, "The head in parts"). The server adds the partial sums and takes them through the last
/// norm.
struct HeadPart {
  std::int64_t index = 0, count = 1;  ///< part `index` of `count`; count 1: the whole head
  std::int64_t blocks = 0;            ///< vocabulary blocks of the part; 0 for a whole head
  std::int64_t first = 0;             ///< first row of the vocabulary
};

/// See the file comment. FLOP are per token, for the whole width of the piece, without attention, whose FLOP depend on
/// the token's position (attention_flops()).
struct Piece {
  PieceKind kind = PieceKind::mlp;
  std::int64_t layer = 0;             ///< of a head: the number of layers
  std::vector<SlicedTensor> tensors;  ///< weights and biases of products
  std::vector<TensorId> norms;        ///< gains and biases of its norms
  std::int64_t norm_elements = 0;
  std::int64_t units = 0;      ///< of slices: columns of K, hidden columns, or rows of the vocabulary
  std::int64_t width = 0;      ///< columns of the residual stream
  AttentionShape attention;    ///< attention piece: of the whole batch
  double forward = 0;          ///< products and server kernels of the forward pass
  double keys_values = 0;      ///< the part of `forward` that makes keys and values
  double input_gradient = 0;   ///< products and kernels of the backward pass that lead to the piece's dX
  double weight_gradient = 0;  ///< products and sums over tokens
  double norm_forward = 0;     ///< the part of `forward` that is the norm's
  double row_elements = 0;     ///< elements per token of everything that the forward pass writes
  /// Tensors that the backward pass and the sums over tokens read: values of the forward pass, x among them, and
  /// gradients. A device that keeps them needs no recomputation.
  std::vector<TensorId> kept;
  std::int64_t kept_elements = 0;  ///< of these tensors, per token
  bool backward = false;           ///< dX of the piece, or a gradient within it, is wanted
  HeadPart part;                   ///< head: which part of it

  [[nodiscard]] bool is_part() const { return part.count > 1; }
  [[nodiscard]] std::string name() const;                ///< "h.3.attn", "h.3.mlp", "head", "head.1"
  [[nodiscard]] std::int64_t weight_elements() const;    ///< weights of products, without biases
  [[nodiscard]] std::int64_t vector_elements() const;    ///< biases and norms
  [[nodiscard]] std::int64_t key_value_columns() const;  ///< of K and V together; 0 without attention
  /// FLOP of causal attention for query rows [t0, t1) of one sequence. `products` as head_flops() has it, or both
  /// passes' together. 0 without attention.
  [[nodiscard]] Flops attention_flops(std::int64_t t0, std::int64_t t1, double products) const;
};

/// The pieces of a training step, bottom first; the head is the last one. Empty where there are none: an evaluation, or
/// layers without halves between which only the residual stream passes. Requires: graph.row_groups 1.
[[nodiscard]] std::vector<Piece> pieces_of(const StepGraph& graph);

/// Cuts a head into `count` parts between vocabulary blocks; numbers of blocks differ by at most one. Requires: `head`
/// is a whole head with a norm, and has at least `count` vocabulary blocks.
[[nodiscard]] std::vector<Piece> head_parts(const Piece& head, std::int64_t count);

/// For each operation the index of its piece, or -1 where it belongs to none. Requires as pieces_of().
[[nodiscard]] std::vector<std::int64_t> pieces_of_operations(const StepGraph& graph);

}  // namespace cleave::model
