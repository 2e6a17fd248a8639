// AdamW as torch.optim.AdamW defines it, and the norm that clipping needs. Server kernels.
#pragma once

#include <cstdint>
#include <span>

#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// Sum of x^2 in double: chunks of fixed size, 16 lanes in each, added in order.
[[nodiscard]] double sum_squares(Parallel& parallel, std::span<const float> x);

struct AdamW {
  double lr = 0;  ///< learning rate of this update
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0;  ///< 0 for tensors that do not decay
  double clip = 1;          ///< factor on the gradient (golden: c)
  std::int64_t step = 1;    ///< k, 1 for the first update
};

/// One update of a tensor, element by element, in fp32 with factors rounded from double:
///   g' = clip * g;  p *= 1 - lr * weight_decay;  m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2;
///   p -= lr / (1 - beta1^k) * m / (sqrt(v) / sqrt(1 - beta2^k) + eps).
/// Requires: all of one size.
/// Source: Loshchilov and Hutter 2019, algorithm 2, with PyTorch's place for eps.
void adamw_update(Parallel& parallel, const AdamW& settings, std::span<const float> gradient,
                  std::span<float> parameter, std::span<float> exp_avg, std::span<float> exp_avg_sq);

}  // namespace cleave::kernels
