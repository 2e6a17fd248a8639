// The two matrices of attention that are never stored whole: blocks of rows of P and of dS, with the same bits wherever
// they are computed. Shared by the kernels and by the check of what others computed.
#pragma once

#include <cstdint>

#include "cleave/kernels/attention.hpp"

namespace cleave::kernels::attention_parts {

/// It also decides where the sums of dK and dV are cut.
inline constexpr std::int64_t kRows = kQueryRows;

[[nodiscard]] std::int64_t block_rows(PairShape shape);
/// Floats of scratch: a block of P (and of dS).
[[nodiscard]] std::int64_t forward_floats(PairShape shape);
[[nodiscard]] std::int64_t backward_floats(PairShape shape);

/// Blocks of both matrices of a pair, for any of its heads. Keys and values are packed once for all of them.
class Scores {
 public:
  /// `k` and `v`: [keys x hd]; without `v`, probabilities alone. Uses memory of the calling thread: one at a time.
  Scores(PairShape shape, std::int64_t keys, const float* k, const float* v = nullptr);

  /// P[rows x keys] of query rows [t0, t0 + rows) of a head; keys = t0 + rows. q [rows x hd]: their queries.
  void probabilities(const float* q, std::int64_t t0, std::int64_t rows, float* probabilities) const;

  /// dS[rows x keys] = P * (dO V^T - rowsum(P * dO V^T)) / sqrt(hd) of the same rows; d_o [rows x hd].
  void gradients(const float* d_o, std::int64_t t0, std::int64_t rows, const float* probabilities,
                 float* gradients) const;

 private:
  PairShape shape_;
};

}  // namespace cleave::kernels::attention_parts
