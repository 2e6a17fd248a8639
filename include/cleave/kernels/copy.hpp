// Copying blocks of matrices: into memory that others will read, and back.
#pragma once

#include "cleave/kernels/matrix.hpp"

namespace cleave::kernels {

/// to[i from.cols + j] = from(i, j), by stores that do not bring the lines of `to` into the caches first, where the
/// processor has them: for memory that another core reads next, or that is read only after much else. The stores are
/// done when the call returns. The two must not overlap.
void copy_past_caches(ConstRows from, float* to);

/// to(i, j) = from[i to.cols + j]. The two must not overlap.
void copy_rows(const float* from, Rows to);

/// The same in one pass with a look at every element: false where one is infinite or NaN. All are copied either way.
[[nodiscard]] bool copy_finite_rows(const float* from, Rows to);

/// Heads side by side in a matrix, one after another in a message, `apart` elements from one to the next. A row's heads
/// are copied together, so that each row is passed once: with w = from.cols / heads,
/// to[h apart + i w + j] = from(i, h w + j).
void copy_heads(ConstRows from, std::int64_t heads, float* to, std::int64_t apart);

/// The way back: to(i, h w + j) = from[h apart + i w + j]. False where an element is infinite or NaN; all are copied
/// either way.
[[nodiscard]] bool copy_finite_heads(const float* from, std::int64_t apart, std::int64_t heads, Rows to);

}  // namespace cleave::kernels
