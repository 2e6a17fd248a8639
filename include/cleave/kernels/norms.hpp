// LayerNorm and RMSNorm over rows, forward and backward. Server kernels.
//
// Rows are worked on in chunks of fixed size; sums over rows (dw, db) are formed chunk by chunk and combined in order,
// so the bits do not depend on the number of threads. Row sums follow lanes.hpp. w and b are a norm's gain and bias.
// Sources: Ba, Kiros and Hinton 2016 (LayerNorm), Zhang and Sennrich 2019 (RMSNorm).
#pragma once

#include <cstdint>

#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// y = (x - mean) * rstd * w + b,  rstd = 1 / sqrt(var + eps), var = mean of (x - mean)^2, row by row.
/// x, y [rows, cols] (y may be x); w, b [cols]; mean, rstd [rows] are kept for the backward pass.
void layer_norm(Parallel& parallel, ConstRows x, const float* w, const float* b, double eps, Rows y, float* mean,
                float* rstd);

/// Gradients for dy, with n = (x - mean) * rstd and g = dy * w:
///   dx = rstd * (g - mean(g) - n * mean(g * n)),  dw = sum over rows of dy * n,  db = sum over rows of dy.
/// dx (may be dy), dw and db are overwritten. A dx without data is not computed. Shapes as layer_norm.
void layer_norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* mean, const float* rstd,
                         ConstRows dy, Rows dx, float* dw, float* db);

/// y = x * rstd * w,  rstd = 1 / sqrt(mean(x^2) + eps), row by row. Shapes as layer_norm.
void rms_norm(Parallel& parallel, ConstRows x, const float* w, double eps, Rows y, float* rstd);

/// Gradients for dy, with n = x * rstd and g = dy * w: dx = rstd * (g - n * mean(g * n)), dw = sum over rows of dy * n.
void rms_norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* rstd, ConstRows dy, Rows dx,
                       float* dw);

}  // namespace cleave::kernels
