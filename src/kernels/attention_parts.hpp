// The two matrices of attention that are never stored whole: blocks of rows of P and of dS, with the same bits wherever
// they are computed. Shared by the kernels and by the check of what others computed.
#pragma once

#include <cstdint>

#include "cleave/kernels/attention.hpp"

namespace cleave::kernels::attention_parts {

/// Query rows worked on together. Part of the definition: it decides where the sums of dK and dV are cut.
inline constexpr std::int64_t kRows = 128;

[[nodiscard]] std::int64_t block_rows(PairShape shape);
/// Floats of scratch: a block of P (and of dS).
[[nodiscard]] std::int64_t forward_floats(PairShape shape);
[[nodiscard]] std::int64_t backward_floats(PairShape shape);

/// P[rows x keys] of query rows [t0, t0 + rows) of the head whose queries are q [seq x hd]; keys = t0 + rows.
void probabilities_of(PairShape shape, const float* q, const float* k, std::int64_t t0, std::int64_t rows,
                      float* probabilities);

/// dS[rows x keys] = P * (dO V^T - rowsum(P * dO V^T)) / sqrt(hd) of the same rows; d_o [seq x hd] of the head.
void score_gradients_of(PairShape shape, const float* v, const float* d_o, std::int64_t t0, std::int64_t rows,
                        const float* probabilities, float* gradients);

}  // namespace cleave::kernels::attention_parts
