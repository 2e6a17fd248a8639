// Loops over one row that several kernels share.
#pragma once

#include <cstdint>

namespace cleave::kernels {

/// out[j] = a[j] + b[j]; out may be a or b.
void add_row(const float* a, const float* b, std::int64_t n, float* out);
/// out[j] = a[j] + scale b[j], the product rounded first; out may be a or b.
void add_scaled_row(const float* a, const float* b, float scale, std::int64_t n, float* out);

/// The largest element, NaN passed over; -infinity for none, and 0 for zeros of either sign: the same bits with every
/// instruction set.
[[nodiscard]] float largest_of_row(const float* x, std::int64_t n);

}  // namespace cleave::kernels
