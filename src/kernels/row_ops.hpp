// Loops over one row that several kernels share.
#pragma once

#include <cstdint>

namespace cleave::kernels {

/// out[j] = a[j] + b[j]; out may be a or b.
void add_row(const float* a, const float* b, std::int64_t n, float* out);

}  // namespace cleave::kernels
