// Loops over one row.
#include "row_ops.hpp"

#include "clones.hpp"

namespace cleave::kernels {

CLEAVE_CLONES void add_row(const float* a, const float* b, std::int64_t n, float* out) {
  for (std::int64_t j = 0; j < n; ++j) out[j] = a[j] + b[j];
}

}  // namespace cleave::kernels
