// Loops over one row.
#include "row_ops.hpp"

#include "versions.hpp"

namespace cleave::kernels {

namespace {

CLEAVE_INLINE void add_row_loop(const float* a, const float* b, std::int64_t n, float* out) {
  for (std::int64_t j = 0; j < n; ++j) out[j] = a[j] + b[j];
}

CLEAVE_INLINE void add_scaled_row_loop(const float* a, const float* b, float scale, std::int64_t n, float* out) {
  for (std::int64_t j = 0; j < n; ++j) out[j] = a[j] + scale * b[j];
}

}  // namespace

void add_row(const float* a, const float* b, std::int64_t n, float* out) { dispatch<add_row_loop>(a, b, n, out); }

void add_scaled_row(const float* a, const float* b, float scale, std::int64_t n, float* out) {
  dispatch<add_scaled_row_loop>(a, b, scale, n, out);
}

}  // namespace cleave::kernels
