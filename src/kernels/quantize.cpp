// Loops between fp32 block results and scaled integers. All versions of a loop yield the same bits.
#include "quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "integers.hpp"
#include "quantize_avx2.hpp"
#include "quantize_avx512.hpp"
#include "versions.hpp"

namespace cleave::kernels::quantize {
namespace {

using std::bit_cast;

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

template <Sums kHow, class Int, class Scale>
CLEAVE_INLINE bool quantize_row(const float* product, std::int64_t n, Scale scale, Int* sums) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const float x = scale(product, j);
    const bool fits = x >= -kLimit<Int> && x < kLimit<Int>;
    bad |= fits ? 0u : 1u;
    Int q;
    nearest(fits ? x : 0.0f, q);
    sums[j] = kHow == Sums::add ? wrapping_add(sums[j], q) : q;
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

/// How many rows from here on AVX2's loops over sixteen columns, its micro-tile's, may take at once.
std::int64_t sixteen_moderate_rows(const std::int16_t* row_exponents, std::int64_t rows, std::int64_t n,
                                   const ColumnFactors& columns) {
  if (n != 16 || !columns.moderate || !use_avx2()) return 0;
  std::int64_t count = 0;
  while (count < rows && is_moderate(row_exponents[count])) ++count;
  return count;
}

/// run(i, count) for rows that these loops take at once, one(i) for each of the others. Returns whether one was bad.
template <class Int, class Run, class One>
bool for_runs(const std::int16_t* row_exponents, std::int64_t rows, std::int64_t n, const ColumnFactors& columns,
              const Run& run, const One& one) {
  bool bad = false;
  for (std::int64_t i = 0, count = 0; i < rows; i += std::max<std::int64_t>(1, count)) {
    count = sizeof(Int) == 8 ? sixteen_moderate_rows(row_exponents + i, rows - i, n, columns) : 0;
    bad |= count > 0 ? run(i, count) : one(i);
  }
  return bad;
}

}  // namespace

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
    return quantize_row<Sums::set>(product, n, WideScale{row, columns.down}, sums);
  const auto narrow = static_cast<float>(row);
  if (use_avx512()) return avx512::set_row(product, n, narrow, columns.down_narrow, sums);
  if constexpr (sizeof(Int) == 8) {
    if (use_avx2()) return avx2::set_row(product, n, narrow, columns.down_narrow, sums);
  }
  return dispatch<quantize_row<Sums::set, Int, NarrowScale>>(product, n, {narrow, columns.down_narrow}, sums);
}

template <class Int>
bool add_row(const float* product, std::int64_t n, int row_exponent, const ColumnFactors& columns, Int* sums) {
  const double row = down<Int>(row_exponent);
  if (!columns.moderate || !is_moderate(row_exponent))
    return quantize_row<Sums::add>(product, n, WideScale{row, columns.down}, sums);
  const auto narrow = static_cast<float>(row);
  if (use_avx512()) return avx512::add_row(product, n, narrow, columns.down_narrow, sums);
  if constexpr (sizeof(Int) == 8) {
    if (use_avx2()) return avx2::add_row(product, n, narrow, columns.down_narrow, sums);
  }
  return dispatch<quantize_row<Sums::add, Int, NarrowScale>>(product, n, {narrow, columns.down_narrow}, sums);
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
bool sum_rows(Sums how, const float* products, std::int64_t ld, std::int64_t rows, std::int64_t n,
              const std::int16_t* row_exponents, const ColumnFactors& columns, Int* sums, std::int64_t sums_ld) {
  const auto run = [&](std::int64_t i, std::int64_t count) {
    if constexpr (sizeof(Int) == 8)
      return avx2::sum_sixteen_columns(how, products + i * ld, ld, count, row_exponents + i, columns.down_narrow,
                                       sums + i * sums_ld, sums_ld);
    return true;
  };
  const auto one = [&](std::int64_t i) {
    fetch_ahead(sums, sums_ld, i, rows, n);
    return how == Sums::set ? set_row(products + i * ld, n, row_exponents[i], columns, sums + i * sums_ld)
                            : add_row(products + i * ld, n, row_exponents[i], columns, sums + i * sums_ld);
  };
  return for_runs<Int>(row_exponents, rows, n, columns, run, one);
}

template <class Int>
bool sum_and_finish_rows(const BlockBands& products, std::int64_t rows, std::int64_t n,
                         const std::int16_t* row_exponents, const ColumnFactors& columns, float* c, std::int64_t c_ld) {
  const auto from_row = [&](std::int64_t i) {
    BlockBands here = products;
    for (int b = 0; b < here.first.count; ++b) here.first.row[b] += i * here.ld[b];
    return here;
  };
  const auto run = [&](std::int64_t i, std::int64_t count) {
    return avx2::finish_sixteen_columns(from_row(i), count, row_exponents + i, columns, c + i * c_ld, c_ld);
  };
  const auto one = [&](std::int64_t i) {
    for (int b = 0; b < products.first.count; ++b) fetch_ahead(products.first.row[b], products.ld[b], i, rows, n);
    return sum_and_finish_row<Int>(from_row(i).first, n, row_exponents[i], columns, c + i * c_ld);
  };
  return for_runs<Int>(row_exponents, rows, n, columns, run, one);
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
  template bool sum_rows(Sums, const float*, std::int64_t, std::int64_t, std::int64_t, const std::int16_t*,    \
                         const ColumnFactors&, Int*, std::int64_t);                                            \
  template bool sum_and_finish_rows<Int>(const BlockBands&, std::int64_t, std::int64_t, const std::int16_t*,   \
                                         const ColumnFactors&, float*, std::int64_t);                          \
  template void add_integers(const Int*, std::int64_t, Int*);
CLEAVE_INSTANTIATE(std::int32_t)
CLEAVE_INSTANTIATE(std::int64_t)
#undef CLEAVE_INSTANTIATE

namespace {

template <int kCount>
CLEAVE_INLINE bool rows_are_finite_of(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t n) {
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < rows; ++i, x += ld)
    for (std::int64_t j = 0; j < (kCount > 0 ? kCount : n); ++j) bad |= not_finite_bit(x[j]);
  return (bad >> 31) == 0;
}
/// A micro-tile of AVX2 has sixteen columns.
CLEAVE_INLINE bool rows_are_finite_loop(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t n) {
  return n == 16 ? rows_are_finite_of<16>(x, ld, rows, n) : rows_are_finite_of<0>(x, ld, rows, n);
}

}  // namespace

bool rows_are_finite(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t n) {
  return dispatch<rows_are_finite_loop>(x, ld, rows, n);
}

}  // namespace cleave::kernels::quantize
