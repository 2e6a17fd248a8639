// Copying blocks of matrices: into memory that others will read, and back.
#pragma once

#include "cleave/kernels/matrix.hpp"

namespace cleave::kernels {

/// to[i from.cols + j] = from(i, j), by non-temporal stores where the processor has them: for memory that another core
/// reads next, or that is read much later. The stores are visible to other threads when the call returns.
/// Requires: `from` and `to` do not overlap.
void copy_past_caches(ConstRows from, float* to);

/// to[i from.cols + j] = from(i, j), through the caches: for what is read again at once. Requires: no overlap.
void copy_rows(ConstRows from, float* to);

/// to(i, j) = from[i to.cols + j]. Requires: no overlap.
void copy_rows(const float* from, Rows to);

/// Copies as copy_rows() and checks every element in the same pass: false where one is infinite or NaN. All elements
/// are copied either way.
[[nodiscard]] bool copy_finite_rows(const float* from, Rows to);

}  // namespace cleave::kernels
