// Sums over tokens that may be added in any order: gradients of weights, biases, gains, where sequences come one after
// another, on any device, in any order (docs/numerics.md, "Sums over tokens in stages").
//
// A sum is an integer that counts units of 2^-50. What is added is rounded to a unit once: a product over the tokens
// between two borders, at multiples of kBlockK tokens of the batch and where a sequence ends; or a float. So integers
// add up to the same total however the tokens are dealt out. Values below 2^10 have room; a larger gradient of a mean
// loss means that the training has diverged.
//
// Example: sequences of 1024 tokens. The borders within the first two are at 768, 1024, 1536 and 2048.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cleave/base/shapes.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// Rows of a sequence whose sum is a float of its own before it is rounded to a unit: those of biases and norms.
inline constexpr std::int64_t kTokenBlock = 128;

/// Norm exponents that stand for the fixed unit wherever exponents are asked for: of every row and every column.
inline constexpr std::int16_t kTokenExponent = 5;

/// Tokens of a batch that a product sums over.
struct TokenRun {
  std::int64_t seq = 0;    ///< tokens of a sequence
  std::int64_t first = 0;  ///< of the batch
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

/// sums[m x n] (+)= A[m x k] B[k x n] over k tokens. Requires: sums.type is i64; the run begins and ends at borders.
/// Errors: not_representable.
ProductStatus multiply_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                              PartialSums sums, Accumulate accumulate);
/// C = float(sums) of all tokens of a batch. C: one of its strides is 1.
ProductStatus multiply_all_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, std::int64_t seq,
                                  Matrix c);
/// C = float(sums), rounded once. C: one of its strides is 1.
ProductStatus finish_token_products(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                    Matrix c);

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

/// sums[j] += the sum of column j over sequences of `seq` rows, block by block. Errors: not_representable.
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

/// sums[j] += values[j]. Errors: not_representable.
ProductStatus add_to_token_sums(std::span<const float> values, std::span<std::int64_t> sums);
/// values[j] = float(sums[j]), rounded once.
void finish_token_sums(std::span<const std::int64_t> sums, std::span<float> values);

}  // namespace cleave::kernels
