// Cross-entropy of logits, in nats. Server kernels.
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

/// Of each row: its maximum, the sum of exp(logit - maximum), and the loss whose sum over rows cross_entropy() gives.
/// Requires: as above; the spans have an element a row.
void cross_entropy_rows(Parallel& parallel, ConstRows logits, std::span<const std::int32_t> targets,
                        std::span<float> top, std::span<double> sum, std::span<double> loss);

/// Columns [col0, col0 + logits.cols) of what cross_entropy_backward() makes of whole rows, with the same bits; `top`
/// and `sum` are those of the whole rows.
void cross_entropy_columns(Parallel& parallel, Rows logits, std::int64_t col0, std::span<const std::int32_t> targets,
                           std::span<const float> top, std::span<const double> sum, float scale);

}  // namespace cleave::kernels
