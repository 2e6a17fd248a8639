// Rows of block results to and from scaled integers: the inner loops of canonical products.
//
// Every clone of these loops yields the same integers and floats: conversions between double and 64-bit integers are
// done by adding powers of two ("magic numbers"), which any instruction set does exactly or with one IEEE rounding.
#pragma once

#include <bit>
#include <cstdint>

namespace cleave::kernels::quantize {

/// p of gemm.hpp: bits before the point of the scaled integers.
template <class Int>
inline constexpr int kScaleBits = sizeof(Int) == 4 ? 29 : 60;

/// 2^exponent. Requires: -1022 <= exponent <= 1023.
inline double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// What set_row and add_row scale a row of exponent e by, besides the columns' 2^-f: 2^(p - e).
template <class Int>
double row_scale(int exponent) {
  return power_of_two(kScaleBits<Int> - exponent);
}
/// What finish_row scales a row of exponent e by, besides the columns' 2^f: 2^(e - p).
template <class Int>
double finish_scale(int exponent) {
  return power_of_two(exponent - kScaleBits<Int>);
}

/// sums[j] = llrint(product[j] * row_scale * col_scales[j]). Returns whether an element was not finite or larger than
/// its exponents allow; then the sums are worthless.
[[nodiscard]] bool set_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int32_t* sums);
[[nodiscard]] bool set_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int64_t* sums);
/// sums[j] += ..., otherwise as set_row.
[[nodiscard]] bool add_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int32_t* sums);
[[nodiscard]] bool add_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int64_t* sums);
/// c[j] = float(double(sums[j]) * row_scale * col_scales[j]). Returns whether a result overflowed.
[[nodiscard]] bool finish_row(const std::int32_t* sums, std::int64_t n, double row_scale, const double* col_scales,
                              float* c);
[[nodiscard]] bool finish_row(const std::int64_t* sums, std::int64_t n, double row_scale, const double* col_scales,
                              float* c);
/// into[j] += from[j], wrapping around on overflow.
void add_integers(const std::int32_t* from, std::int64_t n, std::int32_t* into);
void add_integers(const std::int64_t* from, std::int64_t n, std::int64_t* into);

[[nodiscard]] bool row_is_finite(const float* x, std::int64_t n);

}  // namespace cleave::kernels::quantize
