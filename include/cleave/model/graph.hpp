// StepGraph: one training step (or one evaluation) as a DAG of operations over tensors. Shapes only, no numbers.
//
// It is the only description of the work: the trainer binds memory to its tensors, the scheduler walks its
// dependencies, the planner and the rivals read its shapes, and FLOP, bytes and memory are computed from it. A model
// family builds it through GraphBuilder (builder.hpp), which also derives the backward pass.
//
// Every tensor is a row-major matrix rows x cols; a vector is 1 x cols; activations have one row per token (row b*T+t).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/base/units.hpp"

namespace cleave::model {

enum class TensorRole : std::uint8_t {
  parameter,   ///< lives across steps; f32
  gradient,    ///< of a parameter, written once per step
  activation,  ///< lives from its first write to its last read; f32
  tokens,      ///< int32, one row per token: inputs
  targets,     ///< int32, one row per token
  scalar,      ///< f64: loss sum, squared gradient norms
};

struct TensorSpec {
  TensorId id;
  std::string name;  ///< of a parameter: its Hugging Face state-dict name
  TensorRole role = TensorRole::activation;
  std::int64_t rows = 0, cols = 0;
  TensorId parameter;         ///< of a gradient: what it is the gradient of
  bool vector = false;        ///< stored with one dimension (bias, gain); such parameters are not decayed
  double init_deviation = 0;  ///< of a parameter: N(0, deviation); 0 with `vector`: see init_value
  double init_value = 0;      ///< of a parameter with deviation 0: constant
  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
};

/// A rectangle of a tensor.
struct TensorView {
  TensorId tensor;
  std::int64_t row0 = 0, rows = 0, col0 = 0, cols = 0;
  bool operator==(const TensorView&) const = default;
  [[nodiscard]] bool valid() const { return tensor.valid(); }
};

enum class OpKind : std::uint8_t {
  gemm,                ///< out[0] (+)= op(in[0]) * op(in[1])                           on devices
  attention_forward,   ///< out[0] = O from in = Q, K, V                                on devices
  attention_backward,  ///< out = dQ, dK, dV from in = Q, K, V, dO                      on devices
  // From here on: server kernels. Formulas stand in include/cleave/kernels/.
  embed,                ///< out[0] = in[1][in[0]] (+ in[2][position])          in = tokens, table[, positions]
  embed_backward,       ///< out[0][token] += in[1]; out[1][position] += in[1]  in = tokens, dy
  layer_norm,           ///< out = y, mean, rstd                                in = x, gain, bias
  layer_norm_backward,  ///< out = dx, dgain, dbias                             in = dy, x, gain, mean, rstd
  rms_norm,             ///< out = y, rstd                                      in = x, gain
  rms_norm_backward,    ///< out = dx, dgain                                    in = dy, x, gain, rstd
  add_bias,             ///< out[0] += in[0] on every row
  bias_gradient,        ///< out[0] = column sums of in[0]
  gelu,                 ///< out[0] = gelu_new(in[0])
  gelu_backward,        ///< out[0] = in[0] * gelu_new'(in[1])                  in = dy, x; out[0] is in[0]: in place
  relu,                 ///< out[0] = max(in[0], 0)                             out[0] is in[0]: in place
  relu_backward,        ///< out[0] = in[0] where in[1] > 0, else 0             in = dy, y; out[0] is in[0]: in place
  swiglu,               ///< out[0] = silu(in[0]) * in[1]                       in = gate, up
  swiglu_backward,      ///< out = dgate, dup                                   in = dy, gate, up
  rope,                 ///< out[0] rotated in place, heads of head_dim
  rope_backward,        ///< out[0] rotated back in place
  add,                  ///< out[0] = in[0] + in[1]
  accumulate,           ///< out[0] += in[0]
  zero,                 ///< out[0] = 0
  cross_entropy,        ///< as below, and in[0] becomes the gradient of scalar * loss sum (out[1] is in[0])
  cross_entropy_loss,   ///< out[0] scalar (+)= sum of losses over the rows     in = logits, targets
  square_norm,          ///< out[0] scalar = sum of squares of in[0]
  global_norm,          ///< out[0] scalar = norm over all square_norm scalars, in order
  adamw,                ///< parameter out[0] updated from gradient in[0]; when clipping, in[1] = the global norm
};

[[nodiscard]] const char* name_of(OpKind kind);
/// True for the kinds whose work is cut into tasklets and sent to devices.
[[nodiscard]] constexpr bool runs_on_devices(OpKind kind) { return kind <= OpKind::attention_backward; }

enum class Phase : std::uint8_t { forward, input_gradient, weight_gradient, update };

/// Which part of an operation a row group is (StepOptions::row_groups). Parts of one operation have the same B.
struct RowGroup {
  OpId first;  ///< the part of the first row group: names the operation
  std::int64_t index = 0, count = 1;
};

/// A node of the DAG. Outputs that a backward kernel could give but nobody needs (a frozen gain, the input gradient of
/// the lowest trained layer) have an invalid view and are not computed; attention_backward always gives all three.
struct Operation {
  OpId id;
  std::string name;  ///< "h.3.mlp.c_fc.forward"; unique in its graph
  std::string type;  ///< the same without the layer, "mlp.c_fc.forward": operations of one type and shape plan alike
  OpKind kind = OpKind::gemm;
  Phase phase = Phase::forward;
  std::vector<TensorView> in, out;
  bool trans_a = false, trans_b = false;  ///< gemm: op() of in[0] and in[1]
  bool accumulate = false;                ///< gemm, cross_entropy: add to what out[0] holds; otherwise overwrite it
  GemmShape gemm;                         ///< gemm only
  /// gemm: an upper bound of the 2-norm of every row of op(in[0]), known from the shape alone; 0: none is known. With a
  /// bound, scaled integers (kernels/gemm.hpp) have one exponent for all rows, so a device that has only some columns
  /// of in[0] can compute partial sums.
  double row_bound = 0;
  /// gemm: independent products of this shape, one per sequence or head. More than one only in graphs made for
  /// simulation (src/rivals/published_graph.hpp): no kernel computes them.
  std::int64_t instances = 1;
  AttentionShape attention;  ///< attention, rope; also seq and batch of embed and its backward
  bool rounded = false;      ///< out[0] is the residual stream or its gradient, rounded to StepGraph::boundary
  double scalar = 0;         ///< eps of norms; scale of cross_entropy; theta of rope
  std::int64_t integer = 0;  ///< position offset of embed; head_dim of rope
  std::vector<OpId> after;   ///< operations that must be complete before this one starts
  RowGroup rows;
};

/// What the graph computes.
enum class StepKind : std::uint8_t { train, evaluate };

struct StepOptions {
  StepKind kind = StepKind::train;
  std::int64_t batch = 1;           ///< sequences B
  bool clip = true;                 ///< AdamW waits for the global norm
  std::vector<std::string> freeze;  ///< glob patterns of parameter names that are not trained
  std::int64_t loss_rows = 0;       ///< tokens per loss chunk; 0: see kLogitsBudget
  std::int64_t row_groups = 1;      ///< groups of sequences that follow each other through both passes, B at most
  DType wire = DType::f32;          ///< in which operands travel
  /// To which the residual stream and its gradient are rounded, and in which they travel between stages; none: `wire`.
  std::optional<DType> boundary{};
};

/// Logits in memory at once take at most this many bytes, or four times the head's weight where that is more: one chunk
/// with all rows, or two buffers that the chunks use in turn. (Every chunk sends the head's [V, d] to the devices
/// again; with 2d rows or more in a chunk that is little beside the logits themselves, and the head with its gradient
/// and moments takes as much memory.)
inline constexpr std::int64_t kLogitsBudget = 256LL << 20;

/// log2 of the loss scale: floor(log2(tokens)) with fp16 on the wire, so that the gradient of a mean loss over `tokens`
/// tokens, 1 / tokens for each, does not vanish; 0 for other wire types.
[[nodiscard]] int loss_bits(DType wire, std::int64_t tokens);

/// See the file comment. Operations are in a legal serial order; ids are indices.
struct StepGraph {
  std::vector<TensorSpec> tensors;
  std::vector<Operation> operations;
  TensorId tokens, targets, loss, grad_norm;  ///< grad_norm invalid when nothing is trained
  TensorId logits;  ///< evaluate: buffer with the last (or only) chunk's logits in its first rows, kept to the end
  std::int64_t batch = 0, seq = 0;
  DType wire = DType::f32, boundary = DType::f32;  ///< as in StepOptions
  /// Gradients of activations are those of the loss times 2^loss_bits, gradients of parameters are not.
  int loss_bits = 0;

  [[nodiscard]] const TensorSpec& tensor(TensorId id) const { return tensors[static_cast<std::size_t>(id.value)]; }
  [[nodiscard]] const Operation& operation(OpId id) const { return operations[static_cast<std::size_t>(id.value)]; }
  [[nodiscard]] std::vector<TensorId> parameters() const;  ///< in order of creation
  [[nodiscard]] std::int64_t parameter_count() const;      ///< tied weights once
};

/// Multiplications and additions of an operation: 2mnk for a GEMM; causal pairs only for attention, two products
/// forward and five backward; a fixed count per element for server kernels (src/model/cost.cpp has the table).
[[nodiscard]] Flops flops_of(const Operation& operation);
/// FLOP of causal attention of one head for query rows [t0, t1) of a sequence; row t sees t + 1 keys.
///   products x 2 hd x sum over t in [t0, t1) of (t + 1)
/// `products`: matrix products that are counted, kAttentionForward or kAttentionBackward. Example: hd = 64, rows 0 and
/// 1, forward: 2 x 2 x 64 x (1 + 2) = 768.
[[nodiscard]] Flops head_flops(std::int64_t head_dim, std::int64_t t0, std::int64_t t1, double products);
inline constexpr double kAttentionForward = 2;   ///< Q K^T, P V
inline constexpr double kAttentionBackward = 5;  ///< Q K^T again, dV, dP, dQ, dK
/// Of AdamW for a parameter: clip 1, decay 1, moments 7, update 6.
inline constexpr std::int64_t kUpdateFlops = 15;
/// Memory traffic of a server kernel: every input view read once, every output view written once, and read first where
/// the kernel adds to it. Tables of embeddings count the rows of the batch only; AdamW counts its two moments.
[[nodiscard]] Bytes traffic_of(const Operation& operation);
/// FLOP of all operations that run on devices.
[[nodiscard]] Flops device_flops(const StepGraph& graph);
/// Largest total of bytes alive at once, parameters and optimizer state left out, when operations run in serial order:
/// a tensor lives from its first to its last access.
[[nodiscard]] Bytes peak_activation_bytes(const StepGraph& graph);

}  // namespace cleave::model
