// Cross-entropy of logits, in nats. Server kernels.
//
// A row of more than one vocabulary block (base/shapes.hpp) has, of each block b, the maximum m_b and the sum
// s_b = sum of exp(l - m_b) in fp32; the row's maximum is m = max m_b, its sum s = sum over b of s_b exp(m_b - m), in
// order of b. So parts of the vocabulary come to the same bits, whoever computes them. Source of the joining: Milakov
// and Gimelshein 2018 (online softmax).
#pragma once

#include <cstdint>
#include <span>

#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// Sum over rows of -log softmax(logits)[target], in double; rows in chunks of fixed size, added in order. A row with a
/// logit that is not finite makes the sum non-finite.
/// Requires: targets.size() == logits.rows; 0 <= target < logits.cols.
[[nodiscard]] double cross_entropy(Parallel& parallel, ConstRows logits, std::span<const std::int32_t> targets);

/// The same sum, and logits replaced by their gradient: (softmax(logits) - onehot(target)) * scale. For the mean over
/// all rows of a batch, scale = 1 / rows of the batch.
[[nodiscard]] double cross_entropy_backward(Parallel& parallel, Rows logits, std::span<const std::int32_t> targets,
                                            float scale);

/// For each row: top = its maximum, sum = sum of exp(logit - top), loss = what cross_entropy() adds up over the rows.
/// top, sum, loss: [rows]. Requires: as cross_entropy().
void cross_entropy_rows(Parallel& parallel, ConstRows logits, std::span<const std::int32_t> targets,
                        std::span<float> top, std::span<double> sum, std::span<double> loss);

/// m_b and s_b of the vocabulary blocks b of a part of the vocabulary. logits: [rows, columns of the part]; tops, sums:
/// [rows, blocks of the part], row-major. Requires: the part begins where a block does.
void cross_entropy_blocks(Parallel& parallel, ConstRows logits, std::span<float> tops, std::span<float> sums);

/// Joins the blocks of one row: returns s = sum over b of s_b exp(m_b - m) and sets top = m = max m_b. tops, sums: m_b
/// and s_b of all blocks of the vocabulary, in order. Requires: more than one block.
[[nodiscard]] double join_blocks(std::span<const float> tops, std::span<const float> sums, float& top);

/// A row's loss: log(exp_sum) - (target_logit - top), exp_sum being the sum of exp(logit - top).
[[nodiscard]] double loss_of(float target_logit, float top, double exp_sum);

/// Replaces columns [col0, col0 + logits.cols) of the logits by their gradient, with the bits that
/// cross_entropy_backward() gives for whole rows. top, sum [rows]: as cross_entropy_rows() gives for the whole rows.
void cross_entropy_columns(Parallel& parallel, Rows logits, std::int64_t col0, std::span<const std::int32_t> targets,
                           std::span<const float> top, std::span<const double> sum, float scale);

}  // namespace cleave::kernels
