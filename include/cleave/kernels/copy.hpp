// Copying blocks of matrices: into memory that others will read, and back.
#pragma once

#include "cleave/kernels/matrix.hpp"

namespace cleave::kernels {

/// to[i from.cols + j] = from(i, j), by stores that do not bring the lines of `to` into the caches first, where the
/// processor has them: for memory that another core reads next, or that is read only after much else. The stores are
/// done when the call returns. The two must not overlap.
void copy_past_caches(ConstRows from, float* to);

/// to[i from.cols + j] = from(i, j), through the caches: for what is read again at once. The two must not overlap.
void copy_rows(ConstRows from, float* to);

/// to(i, j) = from[i to.cols + j]. The two must not overlap.
void copy_rows(const float* from, Rows to);

/// The same in one pass with a look at every element: false where one is infinite or NaN. All are copied either way.
[[nodiscard]] bool copy_finite_rows(const float* from, Rows to);

}  // namespace cleave::kernels
