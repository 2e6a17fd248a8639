// Loops between fp32 block results and scaled integers.
#include "quantize.hpp"

#include <limits>

#include "clones.hpp"

namespace cleave::kernels::quantize {
namespace {

using std::bit_cast;

/// The nearest integer (ties to even) of |x| < 2^51, in the low bits: adding 1.5 * 2^52 rounds x to a whole number and
/// leaves it in the mantissa.
constexpr double kUnits = 0x1.8p52;
/// The same for multiples of 2^32.
constexpr double kHighUnits = 0x1.8p84;

CLEAVE_INLINE std::uint32_t nearest(double x, std::int32_t) {
  return static_cast<std::uint32_t>(bit_cast<std::uint64_t>(x + kUnits));
}
CLEAVE_INLINE std::uint64_t nearest(double x, std::int64_t) {
  // x = high * 2^32 + low with |low| <= 2^31, both exact: x has the 24 bits of a float. high * 2^32 is a whole even
  // number, so rounding low rounds x.
  const double shifted = x + kHighUnits;
  const double low = x - (shifted - kHighUnits);
  const std::uint64_t high_bits = bit_cast<std::uint64_t>(shifted) - bit_cast<std::uint64_t>(kHighUnits);
  const std::uint64_t low_bits = bit_cast<std::uint64_t>(low + kUnits) - bit_cast<std::uint64_t>(kUnits);
  return (high_bits << 32) + low_bits;
}

CLEAVE_INLINE double to_double(std::int32_t q) { return static_cast<double>(q); }
CLEAVE_INLINE double to_double(std::int64_t q) {
  // The halves of q under the mantissas of 2^84 and 2^52, so that one subtraction and one addition, which is the only
  // one to round, give the nearest double.
  const auto bits = static_cast<std::uint64_t>(q);
  const double low = bit_cast<double>((bits & 0xffffffffu) | 0x4330000000000000u);
  const double high = bit_cast<double>(((bits >> 32) ^ 0x80000000u) | 0x4530000000000000u);
  return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

/// Largest honest |x|: 2^p, with room for the rounding of a block (768 * 2^-24 < 2^-10).
template <class Int>
constexpr double kLimit = static_cast<double>(Int{1} << kScaleBits<Int>) * (1 + 0x1p-10);

template <class Int, bool kAdd>
CLEAVE_INLINE bool quantize_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                                Int* sums) {
  std::uint64_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const double x = static_cast<double>(product[j]) * row_scale * col_scales[j];
    // NaN compares greater here, as bits do: its exponent is the largest.
    const std::uint64_t magnitude = bit_cast<std::uint64_t>(x) & 0x7fffffffffffffffu;
    bad |= bit_cast<std::uint64_t>(kLimit<Int>) - magnitude;  // the top bit is set where magnitude > limit
    const auto q = nearest(x, Int{});
    sums[j] = static_cast<Int>(kAdd ? q + static_cast<decltype(q)>(sums[j]) : q);
  }
  return (bad >> 63) != 0;
}

template <class Int>
CLEAVE_INLINE bool finish(const Int* sums, std::int64_t n, double row_scale, const double* col_scales, float* c) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const auto value = static_cast<float>(to_double(sums[j]) * row_scale * col_scales[j]);
    bad |= bit_cast<std::uint32_t>(std::numeric_limits<float>::max()) - (bit_cast<std::uint32_t>(value) & 0x7fffffffu);
    c[j] = value;
  }
  return (bad >> 31) != 0;
}

}  // namespace

CLEAVE_CLONES bool set_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int32_t* sums) {
  return quantize_row<std::int32_t, false>(product, n, row_scale, col_scales, sums);
}
CLEAVE_CLONES bool set_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int64_t* sums) {
  return quantize_row<std::int64_t, false>(product, n, row_scale, col_scales, sums);
}
CLEAVE_CLONES bool add_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int32_t* sums) {
  return quantize_row<std::int32_t, true>(product, n, row_scale, col_scales, sums);
}
CLEAVE_CLONES bool add_row(const float* product, std::int64_t n, double row_scale, const double* col_scales,
                           std::int64_t* sums) {
  return quantize_row<std::int64_t, true>(product, n, row_scale, col_scales, sums);
}

CLEAVE_CLONES bool finish_row(const std::int32_t* sums, std::int64_t n, double row_scale, const double* col_scales,
                              float* c) {
  return finish(sums, n, row_scale, col_scales, c);
}
CLEAVE_CLONES bool finish_row(const std::int64_t* sums, std::int64_t n, double row_scale, const double* col_scales,
                              float* c) {
  return finish(sums, n, row_scale, col_scales, c);
}

CLEAVE_CLONES void add_integers(const std::int32_t* from, std::int64_t n, std::int32_t* into) {
  for (std::int64_t j = 0; j < n; ++j)
    into[j] = static_cast<std::int32_t>(static_cast<std::uint32_t>(into[j]) + static_cast<std::uint32_t>(from[j]));
}
CLEAVE_CLONES void add_integers(const std::int64_t* from, std::int64_t n, std::int64_t* into) {
  for (std::int64_t j = 0; j < n; ++j)
    into[j] = static_cast<std::int64_t>(static_cast<std::uint64_t>(into[j]) + static_cast<std::uint64_t>(from[j]));
}

CLEAVE_CLONES bool row_is_finite(const float* x, std::int64_t n) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j)
    bad |= bit_cast<std::uint32_t>(std::numeric_limits<float>::max()) - (bit_cast<std::uint32_t>(x[j]) & 0x7fffffffu);
  return (bad >> 31) == 0;
}

}  // namespace cleave::kernels::quantize
