// Sums over tokens that may be added in any order: gradients of weights, biases, gains, where sequences come one after
// another, on any device, in any order (docs/numerics.md, "Sums over tokens in stages").
//
// A sum is an integer that counts a fixed unit (TokenUnit). What is added is rounded to a unit once: a product over the
// tokens between two borders, at multiples of kBlockK tokens of the batch and where a sequence ends; or a float. So
// integers add up to the same total however the tokens are dealt out.
//
// fp32: units of 2^-50 in 64 bits. Values below 2^10 have room; a larger gradient of a mean loss means that the
// training has diverged. 16-bit wires: units of 2^-32, which 32 bits hold up to 1/2, and rows with more in 64 bits
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

/// Rows of a sequence whose sum is a float of its own before it is rounded to a unit: those of biases and norms.
inline constexpr std::int64_t kTokenBlock = 128;

/// What sums over tokens count. What is added may be 2^loss_bits times as large as what it stands for
/// (model::StepGraph::loss_bits); a gradient is without that factor.
struct TokenUnit {
  DType wire = DType::f32;
  int loss_bits = 0;
  bool operator==(const TokenUnit&) const = default;

  /// A gradient is its integer times 2^-of_gradient(); a product, or another value that is added, its own times
  /// 2^-of_product().
  [[nodiscard]] constexpr int of_gradient() const { return wire == DType::f32 ? 50 : 32; }
  [[nodiscard]] constexpr int of_product() const { return of_gradient() - loss_bits; }
  /// A finished gradient travels, and is rounded to the wire type, as its integer times 2^-as_sent(): 1 is the least
  /// number that fp16 has, so nothing vanishes, and integers up to 2^40 have 11 bits.
  [[nodiscard]] constexpr int as_sent() const { return wire == DType::f32 ? 50 : 24; }
  /// What is sent times this is the gradient: a power of two.
  [[nodiscard]] constexpr float scale_of_sent() const {
    return 1.0F / static_cast<float>(std::int64_t{1} << (of_gradient() - as_sent()));
  }
  /// What larger ones are cut off at.
  [[nodiscard]] constexpr float largest_sent() const {
    return wire == DType::f16 ? 65504.0F : std::numeric_limits<float>::infinity();
  }
  /// Norm exponents that stand for the unit where partial sums of such a type are looked at: of every row, and column.
  struct Exponents {
    std::int16_t row, column;
  };
  [[nodiscard]] constexpr Exponents exponents(DType sums) const {
    if (wire == DType::f32) return {5, 5};
    return {static_cast<std::int16_t>((sums == DType::i32 ? 29 : 60) - of_product()), 0};
  }
};

/// Tokens of a batch that a product sums over.
struct TokenRun {
  std::int64_t seq = 0;    ///< tokens of a sequence
  std::int64_t first = 0;  ///< of the batch
  TokenUnit unit{};
  /// Where the product that begins at `token` (counted from `first`) ends.
  [[nodiscard]] constexpr std::int64_t border_after(std::int64_t token) const {
    const std::int64_t at = first + token;
    return std::min((at / kBlockK + 1) * kBlockK, (at / seq + 1) * seq) - first;
  }
  /// Products over `depth` tokens.
  [[nodiscard]] constexpr std::int64_t products(std::int64_t depth) const {
    std::int64_t count = 0;
    for (std::int64_t token = 0; token < depth; token = border_after(token)) ++count;
    return count;
  }
};

/// How a product sums over its depth: by norms of its operands (gemm.hpp), or over tokens in fixed units.
struct SumRule {
  std::span<const std::int16_t> row_exponents, column_exponents;  ///< read where tokens.seq is 0
  TokenRun tokens{};                                              ///< seq 0: it does not sum over tokens
};
/// multiply_box() or multiply_tokens(), and multiply_whole() or multiply_all_tokens().
ProductStatus multiply_run(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, const SumRule& rule,
                           PartialSums sums, Accumulate accumulate);
ProductStatus multiply_depth(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, const SumRule& rule,
                             DType accumulator, Matrix c);

/// sums[m x n] (+)= A[m x k] B[k x n] over k tokens. Requires: fp32, sums.type is i64; the run begins and ends at
/// borders. Errors: not_representable.
ProductStatus multiply_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                              PartialSums sums, Accumulate accumulate);
/// A product over a run of tokens, A[m x k] B[k x n], that is one of several summed.
struct TokenProduct {
  ConstMatrix a, b;
  std::int64_t k = 0;
  TokenRun tokens{};
};
/// multiply_tokens() of each of them into the same sums, tile by tile, so that sums pass through memory once.
ProductStatus multiply_token_runs(Parallel& parallel, std::int64_t m, std::int64_t n,
                                  std::span<const TokenProduct> products, PartialSums sums, Accumulate accumulate);
/// C = float(sums) of all tokens of a batch, as it is sent. C: one of its strides is 1.
ProductStatus multiply_all_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                                  Matrix c);
/// C = float(sums) of 64-bit sums, rounded once. Requires: fp32. C: one of its strides is 1.
ProductStatus finish_token_products(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                    Matrix c);
/// Rounds a finished gradient to the wire type and takes it from what is sent to what it stands for.
void round_gradient(Parallel& parallel, TokenUnit unit, Rows gradient);

/// Rows of whole sequences, or a part of one that begins with a block, in blocks of kTokenBlock rows of a sequence.
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

/// The sums of columns over each block of sequences of `seq` rows: of_blocks[blocks.count() x cols].
void column_sums_of_blocks(Parallel& parallel, ConstRows rows, std::int64_t seq, KeptVector<float>& of_blocks);
/// sums[j] += the sum of column j over sequences of `seq` rows, block by block, in 64 bits. Errors: not_representable.
ProductStatus add_column_sums(Parallel& parallel, ConstRows rows, std::int64_t seq, std::span<std::int64_t> sums);

/// The way back through a norm: layer_norm_backward(), or without `mean` rms_norm_backward(), of rows of sequences.
struct NormBackward {
  ConstRows x, dy;
  const float *gain = nullptr, *mean = nullptr, *rstd = nullptr;
  Rows dx{};  ///< without data: not computed
  [[nodiscard]] std::int64_t sums() const { return (mean != nullptr ? 2 : 1) * dy.cols; }
};
/// dx, and for each block the gradients of the gain and, of a layer norm, of the bias: blocks.count() x of.sums().
void norm_backward_by_blocks(Parallel& parallel, const NormBackward& of, const TokenBlocks& blocks, float* gradients);

/// sums[j] += values[j], in units of 2^-50, of values that are 2^loss_bits times as large as what they stand for.
/// Errors: not_representable.
ProductStatus add_to_token_sums(std::span<const float> values, std::span<std::int64_t> sums, int loss_bits = 0);
/// values[j] = float(sums[j]) in units of 2^-50, rounded once.
void finish_token_sums(std::span<const std::int64_t> sums, std::span<float> values);

}  // namespace cleave::kernels
