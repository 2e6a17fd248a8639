// Sums over tokens that may be added in any order: gradients of weights, biases, gains, where sequences come one after
// another, on any device, in any order (docs/numerics.md, "Sums over tokens in stages").
//
// A sum is an integer that counts a fixed unit (TokenUnit). What is added is rounded to a unit once: a product over the
// tokens between two borders, at multiples of kBlockK tokens of the batch and where a sequence ends; or a float. So
// integers add up to the same total however the tokens are dealt out.
//
// fp32: units of 2^-50 in 64 bits. What one product adds must be below 2^12, what a block of a bias or a norm adds
// below 2^10: a larger gradient of a mean loss means that the training has diverged, and is an error. Sums are exact to
// 2^13 and wrap beyond. 16-bit wires: units of 2^-32, which 32 bits hold up to 1/2, and rows with more in 64 bits
// (token_sum_matrix.hpp); what one product adds is cut off at 2^18.
//
// Example: sequences of 1024 tokens. The borders within the first two are at 1024, 1536 and 2048.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// Rows of a sequence whose sum for a bias's or a norm's gradient is formed in floating point, before it is rounded to
/// units.
inline constexpr std::int64_t kTokenBlock = kRowBlock;

/// The fixed unit of sums over tokens. With fp16 on the wire, gradients of activations carry the loss scale 2^loss_bits
/// (model::StepGraph::loss_bits), and so do the products that are added. The sum, a parameter's gradient, does not.
struct TokenUnit {
  DType wire = DType::f32;
  int loss_bits = 0;
  bool operator==(const TokenUnit&) const = default;

  /// gradient = sum * 2^-of_gradient(). A value with the loss scale that is added counts value * 2^of_product() units.
  [[nodiscard]] constexpr int of_gradient() const { return wire == DType::f32 ? 50 : 32; }
  [[nodiscard]] constexpr int of_product() const { return of_gradient() - loss_bits; }
  /// A finished gradient travels as sum * 2^-as_sent(), rounded to the wire type. A sum of 1 then is the least positive
  /// number of fp16, so no gradient vanishes.
  [[nodiscard]] constexpr int as_sent() const { return wire == DType::f32 ? 50 : 24; }
  /// gradient = value sent * scale_of_sent(). A power of two.
  [[nodiscard]] constexpr float scale_of_sent() const {
    return 1.0F / static_cast<float>(std::int64_t{1} << (of_gradient() - as_sent()));
  }
  /// Values that are sent are clamped to this magnitude.
  [[nodiscard]] constexpr float largest_sent() const {
    return wire == DType::f16 ? 65504.0F : std::numeric_limits<float>::infinity();
  }
  /// The norm exponents e of every row and f of every column with which functions of gemm.hpp read partial sums of type
  /// `sums`: unit = 2^(e + f - p).
  struct Exponents {
    std::int16_t row, column;
  };
  [[nodiscard]] constexpr Exponents exponents(DType sums) const {
    if (wire == DType::f32) return {5, 5};
    return {static_cast<std::int16_t>((sums == DType::i32 ? 29 : 60) - of_product()), 0};
  }
};

/// A run of tokens of a batch that a product sums over.
struct TokenRun {
  std::int64_t seq = 0;    ///< tokens of a sequence
  std::int64_t first = 0;  ///< first token of the run, counted from the batch's first one
  TokenUnit unit{};
  /// The border at which the product that begins at `token` ends. Both are counted from `first`.
  [[nodiscard]] constexpr std::int64_t border_after(std::int64_t token) const {
    const std::int64_t at = first + token;
    return std::min((at / kBlockK + 1) * kBlockK, (at / seq + 1) * seq) - first;
  }
  /// Number of products into which borders cut the first `depth` tokens.
  [[nodiscard]] constexpr std::int64_t products(std::int64_t depth) const {
    std::int64_t count = 0;
    for (std::int64_t token = 0; token < depth; token = border_after(token)) ++count;
    return count;
  }
};

/// How a product sums over its depth: in scaled integers by the norms of its operands (gemm.hpp), or over tokens in
/// fixed units.
struct SumRule {
  std::span<const std::int16_t> row_exponents, column_exponents;  ///< [m], [n]; read where tokens.seq is 0
  TokenRun tokens{};                                              ///< seq 0: it does not sum over tokens
};

/// By the rule: multiply_run() is multiply_box() or multiply_tokens(), multiply_depth() is multiply_whole() or
/// multiply_all_tokens(). Shapes, requirements, errors: theirs.
ProductStatus multiply_run(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, const SumRule& rule,
                           PartialSums sums, Accumulate accumulate);
ProductStatus multiply_depth(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, const SumRule& rule,
                             DType accumulator, Matrix c);

/// sums[m x n] (+)= A[m x k] B[k x n] over k tokens. Requires: fp32 on the wire; sums.type is i64; the run begins and
/// ends at borders. Errors: not_representable.
ProductStatus multiply_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                              PartialSums sums, Accumulate accumulate);
/// One of several products that are summed: A[m x k] B[k x n] over a run of k tokens.
struct TokenProduct {
  ConstMatrix a, b;
  std::int64_t k = 0;
  TokenRun tokens{};
};

/// sums (+)= the sum over the products of multiply_tokens(), tile by tile: the sums pass through memory once.
/// Requires, errors: as multiply_tokens().
ProductStatus multiply_token_runs(Parallel& parallel, std::int64_t m, std::int64_t n,
                                  std::span<const TokenProduct> products, PartialSums sums, Accumulate accumulate);
/// C[m x n] = float(sum of A[m x k] B[k x n] over all tokens of a batch), in the unit TokenUnit::as_sent(), not yet
/// rounded to the wire type. Requires: one of C's strides is 1. Errors: not_representable.
ProductStatus multiply_all_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                                  Matrix c);
/// C[m x n] = float(sums) of 64-bit sums, rounded once. Requires: fp32 on the wire; one of C's strides is 1.
/// Errors: not_representable.
ProductStatus finish_token_products(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                    Matrix c);
/// In place: rounds a finished gradient in the unit as_sent() to the wire type, and multiplies it by scale_of_sent().
/// With fp32 on the wire it does nothing.
void round_gradient(Parallel& parallel, TokenUnit unit, Rows gradient);

/// Blocks of kTokenBlock rows of a sequence; the last block of a sequence may be shorter. The `rows` rows are those of
/// whole sequences of `seq` rows each, or (with seq = rows) a part of one sequence that begins where a block does.
struct TokenBlocks {
  std::int64_t rows = 0, seq = 0;
  [[nodiscard]] constexpr std::int64_t of_sequence() const { return (seq + kTokenBlock - 1) / kTokenBlock; }
  [[nodiscard]] constexpr std::int64_t count() const { return rows / seq * of_sequence(); }
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t block) const {
    return block / of_sequence() * seq + block % of_sequence() * kTokenBlock;
  }
  [[nodiscard]] constexpr std::int64_t end(std::int64_t block) const {
    return std::min(begin(block) + kTokenBlock, (block / of_sequence() + 1) * seq);
  }
};

/// of_blocks[b, j] = sum over the rows of block b of rows(i, j), for TokenBlocks{rows.rows, seq}; resized to
/// [blocks.count() x rows.cols].
void column_sums_of_blocks(Parallel& parallel, ConstRows rows, std::int64_t seq, KeptVector<float>& of_blocks);
/// sums[j] += the sum of column j, rounded to units of 2^-50 block by block (TokenBlocks{rows.rows, seq}).
/// sums: [rows.cols]. Errors: not_representable.
ProductStatus add_column_sums(Parallel& parallel, ConstRows rows, std::int64_t seq, std::span<std::int64_t> sums);

/// The backward pass of a norm: layer_norm_backward(), or rms_norm_backward() where `mean` is null.
struct NormBackward {
  ConstRows x, dy;
  const float *gain = nullptr, *mean = nullptr, *rstd = nullptr;  ///< [cols], [rows], [rows]
  Rows dx{};                                                      ///< without data: not computed
  /// Gradients of a block: the gain's, and those of a layer norm's bias.
  [[nodiscard]] std::int64_t sums() const { return (mean != nullptr ? 2 : 1) * dy.cols; }
};

/// Computes dx, and for each block the gradient of the gain, followed for a layer norm by that of the bias.
/// gradients: [blocks.count() x of.sums()].
void norm_backward_by_blocks(Parallel& parallel, const NormBackward& of, const TokenBlocks& blocks, float* gradients);

/// sums[j] += values[j] * 2^-loss_bits, in units of 2^-50. Requires: as many values as sums. Errors: not_representable
/// where a value is not finite or 2^10 or larger; the others are added all the same.
ProductStatus add_to_token_sums(std::span<const float> values, std::span<std::int64_t> sums, int loss_bits = 0);
/// values[j] = float(sums[j]) in units of 2^-50, rounded once.
void finish_token_sums(std::span<const std::int64_t> sums, std::span<float> values);

}  // namespace cleave::kernels
