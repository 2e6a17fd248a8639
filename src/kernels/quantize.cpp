// Loops between fp32 block results and scaled integers. All versions of a loop yield the same bits: where an
// instruction set has no conversion between floating-point numbers and 64-bit integers, adding powers of two ("magic
// numbers") does it, exactly or with the same single rounding.
#include "quantize.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "quantize_avx2.hpp"
#include "quantize_avx512.hpp"
#include "versions.hpp"

namespace cleave::kernels::quantize {
namespace {

using std::bit_cast;

/// The nearest integer, ties to even, of |x| <= 2^62 with 24 significant bits.
CLEAVE_INLINE std::int64_t nearest_by_magic(double x) {
  constexpr double kUnits = 0x1.8p52;      // adding it rounds |x| < 2^51 to an integer, left in the low bits
  constexpr double kHighUnits = 0x1.8p84;  // the same for multiples of 2^32
  // x = high * 2^32 + low with |low| <= 2^31, both exact as x has 24 bits. The high part is even, so rounding the low
  // one rounds x.
  const double shifted = x + kHighUnits;
  const double low = x - (shifted - kHighUnits);
  const std::uint64_t high_bits = bit_cast<std::uint64_t>(shifted) - bit_cast<std::uint64_t>(kHighUnits);
  const std::uint64_t low_bits = bit_cast<std::uint64_t>(low + kUnits) - bit_cast<std::uint64_t>(kUnits);
  return static_cast<std::int64_t>((high_bits << 32) + low_bits);
}

/// x rounded to a whole number, ties to even. From 2^23 on every float is whole.
CLEAVE_INLINE float whole(float x) {
  const float shift = std::copysign(0x1p23f, x);
  return std::abs(x) < 0x1p23f ? (x + shift) - shift : x;
}

CLEAVE_INLINE void nearest(float x, std::int32_t& q) { q = static_cast<std::int32_t>(whole(x)); }
CLEAVE_INLINE void nearest(float x, std::int64_t& q) { q = nearest_by_magic(static_cast<double>(x)); }

CLEAVE_INLINE double to_double(std::int32_t q) { return static_cast<double>(q); }
CLEAVE_INLINE double to_double(std::int64_t q) {
  // The halves of q under the mantissas of 2^84 and 2^52: the subtraction is exact, the addition rounds once.
  const auto bits = static_cast<std::uint64_t>(q);
  const double low = bit_cast<double>((bits & 0xffffffffu) | 0x4330000000000000u);
  const double high = bit_cast<double>(((bits >> 32) ^ 0x80000000u) | 0x4530000000000000u);
  return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

/// Sums of honest results cannot overflow, but what others sent may: wrap around.
template <class Int>
CLEAVE_INLINE Int wrapping_add(Int a, Int b) {
  using Unsigned = std::make_unsigned_t<Int>;
  return static_cast<Int>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
}

/// Bound on |x|, at least twice the largest honest one.
template <class Int>
constexpr float kLimit = static_cast<float>(Int{1} << kLimitBits<Int>);

constexpr std::uint32_t kLargestBits = 0x7f7fffffu;  // of the largest finite float
/// The top bit says whether x is infinite or NaN.
CLEAVE_INLINE std::uint32_t not_finite_bit(float x) {
  return kLargestBits - (bit_cast<std::uint32_t>(x) & 0x7fffffffu);
}

/// x[j] as float, by fp32 or by double factors; the latter may round, but only what is far below 1/2.
struct NarrowScale {
  float row;
  const float* columns;
  CLEAVE_INLINE float operator()(const float* product, std::int64_t j) const { return product[j] * row * columns[j]; }
};
struct WideScale {
  double row;
  const double* columns;
  CLEAVE_INLINE float operator()(const float* product, std::int64_t j) const {
    return static_cast<float>(static_cast<double>(product[j]) * row * columns[j]);
  }
};

enum class Row { set, add };

template <Row kRow, class Int, class Scale>
CLEAVE_INLINE bool quantize_row(const float* product, std::int64_t n, Scale scale, Int* sums) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const float x = scale(product, j);
    const bool fits = x >= -kLimit<Int> && x < kLimit<Int>;
    bad |= fits ? 0u : 1u;
    Int q;
    nearest(fits ? x : 0.0f, q);
    sums[j] = kRow == Row::add ? wrapping_add(sums[j], q) : q;
  }
  return bad != 0;
}

template <class Int>
CLEAVE_INLINE bool finish(const Int* sums, std::int64_t n, double row, const double* columns, float* c) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    c[j] = static_cast<float>(to_double(sums[j]) * row * columns[j]);
    bad |= not_finite_bit(c[j]);
  }
  return (bad >> 31) != 0;
}

// Block results of kBlocks K blocks, added to sums of those before where kBefore says that there are some.
template <int kBlocks, bool kBefore, class Int, class Scale>
CLEAVE_INLINE bool sum_and_finish_of(const float* const* products, const Int* before, std::int64_t n, Scale scale,
                                     double row, const double* columns, float* c) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    Int sum = 0;
    if constexpr (kBefore) sum = before[j];
    std::uint32_t beyond = 0;
    for (int b = 0; b < kBlocks; ++b) {
      const float x = scale(products[b], j);
      const bool fits = x >= -kLimit<Int> && x < kLimit<Int>;
      Int q;
      nearest(fits ? x : 0.0f, q);
      sum = wrapping_add(sum, q);
      beyond |= fits ? 0u : 0x80000000u;
    }
    const auto value = static_cast<float>(to_double(sum) * row * columns[j]);
    bad |= not_finite_bit(value) | beyond;
    c[j] = value;
  }
  return (bad >> 31) != 0;
}
template <class Int, class Scale>
CLEAVE_INLINE bool add_and_finish(const float* product, std::int64_t n, Scale scale, const Int* sums, double row,
                                  const double* columns, float* c) {
  return sum_and_finish_of<1, true>(&product, sums, n, scale, row, columns, c);
}
template <class Int, class Scale>
CLEAVE_INLINE bool sum_and_finish(const BlockRows& products, std::int64_t n, Scale scale, double row,
                                  const double* columns, float* c) {
  const Int* const none = nullptr;
  if (products.count == 2) return sum_and_finish_of<2, false>(products.row, none, n, scale, row, columns, c);
  return sum_and_finish_of<3, false>(products.row, none, n, scale, row, columns, c);
}

template <class Int>
CLEAVE_INLINE void add_integers_loop(const Int* from, std::int64_t n, Int* into) {
  for (std::int64_t j = 0; j < n; ++j) into[j] = wrapping_add(into[j], from[j]);
}

bool use_avx512() { return usable_instructions() >= Instructions::avx512; }
/// Of 64-bit integers alone.
bool use_avx2() { return usable_instructions() == Instructions::avx2; }

bool is_moderate(int exponent) { return exponent >= -kModerate && exponent <= kModerate; }

/// 2^(p - e), by which a row of exponent e is scaled besides its columns' 2^-f.
template <class Int>
double down(int row_exponent) {
  return power_of_two(kScaleBits<Int> - row_exponent);
}
/// 2^(e - p), by which sums are scaled back.
template <class Int>
double up(int row_exponent) {
  return power_of_two(row_exponent - kScaleBits<Int>);
}

}  // namespace

double power_of_two(int exponent) { return bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52); }

void ColumnScales::assign(std::span<const std::int16_t> exponents) {
  const std::size_t n = exponents.size();
  down_narrow_.resize(n);
  down_.resize(n);
  up_.resize(n);
  moderate_ = true;
  for (std::size_t j = 0; j < n; ++j) {
    down_[j] = power_of_two(-exponents[j]);
    up_[j] = power_of_two(exponents[j]);
    down_narrow_[j] = static_cast<float>(down_[j]);
    moderate_ = moderate_ && is_moderate(exponents[j]);
  }
}

template <class Int>
bool set_row(const float* product, std::int64_t n, int row_exponent, const ColumnFactors& columns, Int* sums) {
  const double row = down<Int>(row_exponent);
  if (!columns.moderate || !is_moderate(row_exponent))
    return quantize_row<Row::set>(product, n, WideScale{row, columns.down}, sums);
  const auto narrow = static_cast<float>(row);
  if (use_avx512()) return avx512::set_row(product, n, narrow, columns.down_narrow, sums);
  if constexpr (sizeof(Int) == 8) {
    if (use_avx2()) return avx2::set_row(product, n, narrow, columns.down_narrow, sums);
  }
  return dispatch<quantize_row<Row::set, Int, NarrowScale>>(product, n, {narrow, columns.down_narrow}, sums);
}

template <class Int>
bool add_row(const float* product, std::int64_t n, int row_exponent, const ColumnFactors& columns, Int* sums) {
  const double row = down<Int>(row_exponent);
  if (!columns.moderate || !is_moderate(row_exponent))
    return quantize_row<Row::add>(product, n, WideScale{row, columns.down}, sums);
  const auto narrow = static_cast<float>(row);
  if (use_avx512()) return avx512::add_row(product, n, narrow, columns.down_narrow, sums);
  if constexpr (sizeof(Int) == 8) {
    if (use_avx2()) return avx2::add_row(product, n, narrow, columns.down_narrow, sums);
  }
  return dispatch<quantize_row<Row::add, Int, NarrowScale>>(product, n, {narrow, columns.down_narrow}, sums);
}

template <class Int>
bool finish_row(const Int* sums, std::int64_t n, int row_exponent, const ColumnFactors& columns, float* c) {
  const double row = up<Int>(row_exponent);
  if (use_avx512()) return avx512::finish_row(sums, n, row, columns.up, c);
  if constexpr (sizeof(Int) == 8) {
    if (use_avx2()) return avx2::finish_row(sums, n, row, columns.up, c);
  }
  return dispatch<finish<Int>>(sums, n, row, columns.up, c);
}

template <class Int>
bool add_and_finish_row(const float* product, std::int64_t n, int row_exponent, const ColumnFactors& columns,
                        const Int* sums, float* c) {
  const double row = down<Int>(row_exponent), back = up<Int>(row_exponent);
  if (!columns.moderate || !is_moderate(row_exponent))
    return add_and_finish(product, n, WideScale{row, columns.down}, sums, back, columns.up, c);
  const auto narrow = static_cast<float>(row);
  if (use_avx512())
    return avx512::add_and_finish_row(product, n, narrow, columns.down_narrow, sums, back, columns.up, c);
  if constexpr (sizeof(Int) == 8) {
    if (use_avx2()) return avx2::add_and_finish_row(product, n, narrow, columns.down_narrow, sums, back, columns.up, c);
  }
  return dispatch<add_and_finish<Int, NarrowScale>>(product, n, {narrow, columns.down_narrow}, sums, back, columns.up,
                                                    c);
}

template <class Int>
bool sum_and_finish_row(const BlockRows& products, std::int64_t n, int row_exponent, const ColumnFactors& columns,
                        float* c) {
  const double row = down<Int>(row_exponent), back = up<Int>(row_exponent);
  if (!columns.moderate || !is_moderate(row_exponent))
    return sum_and_finish<Int>(products, n, WideScale{row, columns.down}, back, columns.up, c);
  const auto narrow = static_cast<float>(row);
  if (use_avx512())
    return avx512::sum_and_finish_row(products, n, narrow, columns.down_narrow, back, columns.up, c, Int{});
  if constexpr (sizeof(Int) == 8) {
    if (use_avx2()) return avx2::sum_and_finish_row(products, n, narrow, columns.down_narrow, back, columns.up, c);
  }
  return dispatch<sum_and_finish<Int, NarrowScale>>(products, n, {narrow, columns.down_narrow}, back, columns.up, c);
}

template <class Int>
void add_integers(const Int* from, std::int64_t n, Int* into) {
  dispatch<add_integers_loop<Int>>(from, n, into);
}

#define CLEAVE_INSTANTIATE(Int)                                                                                \
  template bool set_row(const float*, std::int64_t, int, const ColumnFactors&, Int*);                          \
  template bool add_row(const float*, std::int64_t, int, const ColumnFactors&, Int*);                          \
  template bool finish_row(const Int*, std::int64_t, int, const ColumnFactors&, float*);                       \
  template bool add_and_finish_row(const float*, std::int64_t, int, const ColumnFactors&, const Int*, float*); \
  template bool sum_and_finish_row<Int>(const BlockRows&, std::int64_t, int, const ColumnFactors&, float*);    \
  template void add_integers(const Int*, std::int64_t, Int*);
CLEAVE_INSTANTIATE(std::int32_t)
CLEAVE_INSTANTIATE(std::int64_t)
#undef CLEAVE_INSTANTIATE

namespace {

CLEAVE_INLINE bool row_is_finite_loop(const float* x, std::int64_t n) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) bad |= not_finite_bit(x[j]);
  return (bad >> 31) == 0;
}

}  // namespace

bool row_is_finite(const float* x, std::int64_t n) { return dispatch<row_is_finite_loop>(x, n); }

}  // namespace cleave::kernels::quantize
