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

/// A part of a parameter whose gradient sums over tokens, and how slices cut it: units [u0, u1) of the piece are
/// [begin + u0 extent / units, begin + u1 extent / units) along the tensor's cut axis.
struct SlicedTensor {
  TensorId tensor;
  std::int64_t begin = 0, extent = 0;  ///< along the cut axis
  std::int64_t width = 1;              ///< elements at each place of the cut axis
  bool cut_rows = false;               ///< the cut axis is that of rows; otherwise of columns
  bool vector = false;                 ///< a bias: travels in 4 bytes
  bool trained = true;
  [[nodiscard]] std::int64_t elements() const { return extent * width; }
};

/// A part of a head holds some of the vocabulary: units [begin, begin + units) of it. Of a row its devices return the
/// maximum and the sum of each of its vocabulary blocks, and, once those of all parts are known, a partial sum of dX
/// (docs/numerics.md, "The head in parts"). The last norm's gradients and dX are then made by the server.
struct HeadPart {
  std::int64_t index = 0, count = 1;  ///< count 1: the whole head
  std::int64_t blocks = 0;            ///< of the vocabulary, of a part
  std::int64_t first = 0;             ///< row of the vocabulary that the part begins with
};

/// See the file comment. FLOP are per token, of the whole width, attention left out: it depends on the token's place.
struct Piece {
  PieceKind kind = PieceKind::mlp;
  std::int64_t layer = 0;             ///< of a head: the number of layers
  std::vector<SlicedTensor> tensors;  ///< weights and biases of products
  std::vector<TensorId> norms;        ///< gains and biases of its norms
  std::int64_t norm_elements = 0;
  std::int64_t units = 0;      ///< that slices are made of: columns of K, hidden columns, rows of the vocabulary
  std::int64_t width = 0;      ///< columns of the boundary tensor that comes in
  AttentionShape attention;    ///< of an attention piece, of the whole batch
  double forward = 0;          ///< products and server kernels of the forward pass
  double keys_values = 0;      ///< that part of `forward` which makes keys and values
  double input_gradient = 0;   ///< products and kernels of the backward pass that lead to the piece's dX
  double weight_gradient = 0;  ///< products and sums over tokens
  double norm_forward = 0;     ///< that part of `forward` which is the norm's
  double row_elements = 0;     ///< elements of the widest forward state: everything that its operations write
  /// What the way back and sums over tokens read: values of the forward pass, x among them, and gradients. Whoever
  /// keeps them from the forward pass on makes nothing again. Elements of a row are those of their columns.
  std::vector<TensorId> kept;
  std::int64_t kept_elements = 0;
  bool backward = false;  ///< dX of the piece, or a gradient within it, is wanted
  HeadPart part;          ///< of a head

  [[nodiscard]] bool is_part() const { return part.count > 1; }
  [[nodiscard]] std::string name() const;                ///< "h.3.attn", "h.3.mlp", "head", "head.1"
  [[nodiscard]] std::int64_t weight_elements() const;    ///< of products, without biases
  [[nodiscard]] std::int64_t vector_elements() const;    ///< biases and norms
  [[nodiscard]] std::int64_t key_value_columns() const;  ///< of K and V together; 0 without attention
  /// Attention of query rows [t0, t1) of one sequence, causal; `products` as in flops_of: 2 forward, 5 backward.
  [[nodiscard]] Flops attention_flops(std::int64_t t0, std::int64_t t1, double products) const;
};

/// The pieces of a training step, bottom first; the head is the last one. Empty where the graph is not a residual
/// stream (an evaluation, a graph without layers). Requires: graph.row_groups 1.
[[nodiscard]] std::vector<Piece> pieces_of(const StepGraph& graph);

/// A head in so many parts, cut between vocabulary blocks, of equal numbers of blocks as far as that goes. Requires: a
/// whole head with a norm, and at least as many blocks as parts.
[[nodiscard]] std::vector<Piece> head_parts(const Piece& head, std::int64_t count);

/// For each operation the index of its piece, or -1 where it belongs to none. Requires as pieces_of().
[[nodiscard]] std::vector<std::int64_t> pieces_of_operations(const StepGraph& graph);

}  // namespace cleave::model
