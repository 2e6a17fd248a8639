// AVX2 loops: 8 elements at a time, the last ones under a mask.
//
// nearest(x), |x| <= 2^62 with 24 significant bits, in doubles: x = high * 2^32 + low with |low| <= 2^31. Adding
// 1.5 * 2^84 leaves high in the low bits of the sum's mantissa, and adding 1.5 * 2^52 to low leaves low there, rounded
// to nearest even; high is even, so that rounds x. What the added powers themselves leave in the bits (kOffset) is
// taken away once an element, however many blocks are summed: integers wrap around.
#include "quantize_avx2.hpp"

#include "intrinsics.hpp"

#ifdef CLEAVE_HAS_VERSIONS

namespace cleave::kernels::quantize::avx2 {
namespace {

constexpr double kUnits = 0x1.8p52, kHighUnits = 0x1.8p84;
constexpr std::int64_t kUnitsBits = 0x4338000000000000, kHighUnitsBits = 0x4538000000000000;
constexpr std::int64_t kOffset =
    static_cast<std::int64_t>((static_cast<std::uint64_t>(kHighUnitsBits) << 32) + kUnitsBits);
constexpr float kLargest = 0x1p62F;  // results from here on, and below its negative, are refused
static_assert(kLimitBits<std::int64_t> == 62);

/// Elements that a step takes: all eight, or the first few.
struct Whole {
  CLEAVE_AVX2_INLINE void load(const float* from, __m256& x) const { x = _mm256_loadu_ps(from); }
  CLEAVE_AVX2_INLINE void load(const double* from, __m256d& low, __m256d& high) const {
    low = _mm256_loadu_pd(from);
    high = _mm256_loadu_pd(from + 4);
  }
  CLEAVE_AVX2_INLINE void load(const std::int64_t* from, __m256i& low, __m256i& high) const {
    low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 4));
  }
  CLEAVE_AVX2_INLINE void store(float* to, const __m256& x) const { _mm256_storeu_ps(to, x); }
  CLEAVE_AVX2_INLINE void store(std::int64_t* to, const __m256i& low, const __m256i& high) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 4), high);
  }
};
struct First {
  __m256i all, low_half, high_half;  // sign bits of the lanes
  CLEAVE_AVX2_INLINE explicit First(std::int64_t count) {
    const __m256i n = _mm256_set1_epi32(static_cast<int>(count));
    all = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    low_half = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(all));
    high_half = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(all, 1));
  }
  CLEAVE_AVX2_INLINE void load(const float* from, __m256& x) const { x = _mm256_maskload_ps(from, all); }
  CLEAVE_AVX2_INLINE void load(const double* from, __m256d& low, __m256d& high) const {
    low = _mm256_maskload_pd(from, low_half);
    high = _mm256_maskload_pd(from + 4, high_half);
  }
  CLEAVE_AVX2_INLINE void load(const std::int64_t* from, __m256i& low, __m256i& high) const {
    low = _mm256_maskload_epi64(reinterpret_cast<const long long*>(from), low_half);
    high = _mm256_maskload_epi64(reinterpret_cast<const long long*>(from + 4), high_half);
  }
  CLEAVE_AVX2_INLINE void store(float* to, const __m256& x) const { _mm256_maskstore_ps(to, all, x); }
  CLEAVE_AVX2_INLINE void store(std::int64_t* to, const __m256i& low, const __m256i& high) const {
    _mm256_maskstore_epi64(reinterpret_cast<long long*>(to), low_half, low);
    _mm256_maskstore_epi64(reinterpret_cast<long long*>(to + 4), high_half, high);
  }
};

/// into += nearest(x) + kOffset, four elements.
CLEAVE_AVX2_INLINE void add_nearest(const __m128& x, __m256i& into) {
  const __m256d wide = _mm256_cvtps_pd(x), high_units = _mm256_set1_pd(kHighUnits);
  const __m256d shifted = _mm256_add_pd(wide, high_units);
  const __m256d low = _mm256_sub_pd(wide, _mm256_sub_pd(shifted, high_units));
  const __m256d low_shifted = _mm256_add_pd(low, _mm256_set1_pd(kUnits));
  into = _mm256_add_epi64(into, _mm256_slli_epi64(_mm256_castpd_si256(shifted), 32));
  into = _mm256_add_epi64(into, _mm256_castpd_si256(low_shifted));
}

/// low and high += nearest(product * down * down_columns) + kOffset, eight elements. `bad` gets lanes that do not fit.
template <class Elements>
CLEAVE_AVX2_INLINE void add_scaled(const Elements& elements, const float* product, const __m256& down,
                                   const __m256& down_columns, __m256i& low, __m256i& high, __m256& bad) {
  __m256 x;
  elements.load(product, x);
  x = _mm256_mul_ps(_mm256_mul_ps(x, down), down_columns);
  const __m256 above = _mm256_cmp_ps(x, _mm256_set1_ps(kLargest), _CMP_NLT_UQ);
  const __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(-kLargest), _CMP_NGE_UQ);
  bad = _mm256_or_ps(bad, _mm256_or_ps(above, below));
  add_nearest(_mm256_castps256_ps128(x), low);
  add_nearest(_mm256_extractf128_ps(x, 1), high);
}

/// q as double, rounded once: its halves under the mantissas of 2^84 and 2^52; the subtraction is exact.
CLEAVE_AVX2_INLINE __m256d to_double(const __m256i& q) {
  constexpr int kOddWords = 0b10101010;
  const __m256i low = _mm256_blend_epi32(q, _mm256_set1_epi64x(0x4330000000000000), kOddWords);
  const __m256i high = _mm256_xor_si256(_mm256_srli_epi64(q, 32), _mm256_set1_epi64x(0x4530000080000000));
  const __m256d rest = _mm256_set1_pd(0x1p84 + 0x1p63 + 0x1p52);
  return _mm256_add_pd(_mm256_sub_pd(_mm256_castsi256_pd(high), rest), _mm256_castsi256_pd(low));
}

/// c = float(q * up * up_columns), eight elements. `bad` gets lanes that are not finite.
template <class Elements>
CLEAVE_AVX2_INLINE void finish(const Elements& elements, const __m256i& low, const __m256i& high, const __m256d& up,
                               const double* up_columns, float* c, __m256& bad) {
  __m256d low_columns, high_columns;
  elements.load(up_columns, low_columns, high_columns);
  const __m128 first = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_mul_pd(to_double(low), up), low_columns));
  const __m128 second = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_mul_pd(to_double(high), up), high_columns));
  const __m256 value = _mm256_insertf128_ps(_mm256_castps128_ps256(first), second, 1);
  // x - x is 0 of finite numbers, and NaN of all others.
  const __m256 zero = _mm256_sub_ps(value, value);
  bad = _mm256_or_ps(bad, _mm256_cmp_ps(zero, zero, _CMP_UNORD_Q));
  elements.store(c, value);
}

/// A loop over n elements: eights, then the rest.
template <class Step>
CLEAVE_AVX2_INLINE bool for_eights(std::int64_t n, Step& step) {
  std::int64_t j = 0;
  for (; j + 8 <= n; j += 8) step.take(Whole(), j);
  if (j < n) step.take(First(n - j), j);
  return _mm256_movemask_ps(step.bad) != 0;
}

template <bool kAdd>
struct Quantize {
  const float* product;
  const float* down_columns;
  std::int64_t* sums;
  __m256 down, bad;
  template <class Elements>
  CLEAVE_AVX2_INLINE void take(const Elements& elements, std::int64_t j) {
    __m256i low, high;
    __m256 columns;
    low = high = _mm256_setzero_si256();
    if constexpr (kAdd) elements.load(sums + j, low, high);
    const __m256i offset = _mm256_set1_epi64x(kOffset);
    elements.load(down_columns + j, columns);
    add_scaled(elements, product + j, down, columns, low, high, bad);
    elements.store(sums + j, _mm256_sub_epi64(low, offset), _mm256_sub_epi64(high, offset));
  }
};

/// Block results of kBlocks K blocks, added to sums of those before where kBefore says that there are some.
template <int kBlocks, bool kBefore>
struct SumAndFinish {
  const float* const* products;
  const std::int64_t* before;
  const float* down_columns;
  const double* up_columns;
  float* c;
  __m256 down, bad;
  __m256d up;
  template <class Elements>
  CLEAVE_AVX2_INLINE void take(const Elements& elements, std::int64_t j) {
    __m256i low, high;
    __m256 columns;
    low = high = _mm256_set1_epi64x(
        static_cast<std::int64_t>(-static_cast<std::uint64_t>(kBlocks) * static_cast<std::uint64_t>(kOffset)));
    if constexpr (kBefore) {
      __m256i low_before, high_before;
      elements.load(before + j, low_before, high_before);
      low = _mm256_add_epi64(low, low_before);
      high = _mm256_add_epi64(high, high_before);
    }
    if constexpr (kBlocks > 0) {
      elements.load(down_columns + j, columns);
#pragma GCC unroll 3
      for (int b = 0; b < kBlocks; ++b) add_scaled(elements, products[b] + j, down, columns, low, high, bad);
    }
    finish(elements, low, high, up, up_columns + j, c + j, bad);
  }
};

template <bool kAdd>
CLEAVE_AVX2_INLINE bool quantize(const float* product, std::int64_t n, float down, const float* down_columns,
                                 std::int64_t* sums) {
  Quantize<kAdd> step{product, down_columns, sums, _mm256_set1_ps(down), _mm256_setzero_ps()};
  return for_eights(n, step);
}

template <int kBlocks, bool kBefore>
CLEAVE_AVX2_INLINE bool sum_and_finish(const float* const* products, const std::int64_t* before, std::int64_t n,
                                       float down, const float* down_columns, double up, const double* up_columns,
                                       float* c) {
  SumAndFinish<kBlocks, kBefore> step{
      products, before, down_columns, up_columns, c, _mm256_set1_ps(down), _mm256_setzero_ps(), _mm256_set1_pd(up)};
  return for_eights(n, step);
}

template <bool kAdd>
CLEAVE_AVX2_INLINE bool sum_sixteen(const float* products, std::int64_t ld, std::int64_t rows,
                                    const std::int16_t* row_exponents, const float* down_columns, std::int64_t* sums,
                                    std::int64_t sums_ld) {
  __m256 bad = _mm256_setzero_ps();
  const __m256 columns[2] = {_mm256_loadu_ps(down_columns), _mm256_loadu_ps(down_columns + 8)};
  const __m256i offset = _mm256_set1_epi64x(kOffset);
  for (std::int64_t i = 0; i < rows; ++i, products += ld, sums += sums_ld) {
    fetch_ahead(sums, sums_ld, 0, rows - i, 16);
    const __m256 down_row = _mm256_set1_ps(static_cast<float>(down<std::int64_t>(row_exponents[i])));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i low, high;
      low = high = _mm256_setzero_si256();
      if constexpr (kAdd) Whole().load(sums + 8 * half, low, high);
      add_scaled(Whole(), products + 8 * half, down_row, columns[half], low, high, bad);
      Whole().store(sums + 8 * half, _mm256_sub_epi64(low, offset), _mm256_sub_epi64(high, offset));
    }
  }
  return _mm256_movemask_ps(bad) != 0;
}

template <int kBlocks>
CLEAVE_AVX2_INLINE bool finish_sixteen(const BlockBands& products, std::int64_t rows, const std::int16_t* row_exponents,
                                       const ColumnFactors& factors, float* c, std::int64_t c_ld) {
  __m256 bad = _mm256_setzero_ps();
  const __m256 columns[2] = {_mm256_loadu_ps(factors.down_narrow), _mm256_loadu_ps(factors.down_narrow + 8)};
  const __m256i none = _mm256_set1_epi64x(
      static_cast<std::int64_t>(-static_cast<std::uint64_t>(kBlocks) * static_cast<std::uint64_t>(kOffset)));
  const float* block[kBlocks];
  for (int b = 0; b < kBlocks; ++b) block[b] = products.first.row[b];
  for (std::int64_t i = 0; i < rows; ++i, c += c_ld) {
    const __m256 down_row = _mm256_set1_ps(static_cast<float>(down<std::int64_t>(row_exponents[i])));
    const __m256d up_row = _mm256_set1_pd(up<std::int64_t>(row_exponents[i]));
#pragma GCC unroll 3
    for (int b = 0; b < kBlocks; ++b) fetch_ahead(block[b], products.ld[b], 0, rows - i, 16);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i low = none, high = none;
#pragma GCC unroll 3
      for (int b = 0; b < kBlocks; ++b)
        add_scaled(Whole(), block[b] + 8 * half, down_row, columns[half], low, high, bad);
      finish(Whole(), low, high, up_row, factors.up + 8 * half, c + 8 * half, bad);
    }
#pragma GCC unroll 3
    for (int b = 0; b < kBlocks; ++b) block[b] += products.ld[b];
  }
  return _mm256_movemask_ps(bad) != 0;
}

}  // namespace

CLEAVE_AVX2 bool sum_sixteen_columns(Sums how, const float* products, std::int64_t ld, std::int64_t rows,
                                     const std::int16_t* row_exponents, const float* down_columns, std::int64_t* sums,
                                     std::int64_t sums_ld) {
  return how == Sums::add ? sum_sixteen<true>(products, ld, rows, row_exponents, down_columns, sums, sums_ld)
                          : sum_sixteen<false>(products, ld, rows, row_exponents, down_columns, sums, sums_ld);
}
CLEAVE_AVX2 bool finish_sixteen_columns(const BlockBands& products, std::int64_t rows,
                                        const std::int16_t* row_exponents, const ColumnFactors& columns, float* c,
                                        std::int64_t c_ld) {
  return products.first.count == 2 ? finish_sixteen<2>(products, rows, row_exponents, columns, c, c_ld)
                                   : finish_sixteen<3>(products, rows, row_exponents, columns, c, c_ld);
}

CLEAVE_AVX2 bool set_row(const float* product, std::int64_t n, float down, const float* down_columns,
                         std::int64_t* sums) {
  return quantize<false>(product, n, down, down_columns, sums);
}
CLEAVE_AVX2 bool add_row(const float* product, std::int64_t n, float down, const float* down_columns,
                         std::int64_t* sums) {
  return quantize<true>(product, n, down, down_columns, sums);
}
CLEAVE_AVX2 bool finish_row(const std::int64_t* sums, std::int64_t n, double up, const double* up_columns, float* c) {
  return sum_and_finish<0, true>(nullptr, sums, n, 1, nullptr, up, up_columns, c);
}
CLEAVE_AVX2 bool add_and_finish_row(const float* product, std::int64_t n, float down, const float* down_columns,
                                    const std::int64_t* sums, double up, const double* up_columns, float* c) {
  return sum_and_finish<1, true>(&product, sums, n, down, down_columns, up, up_columns, c);
}
CLEAVE_AVX2 bool sum_and_finish_row(const BlockRows& products, std::int64_t n, float down, const float* down_columns,
                                    double up, const double* up_columns, float* c) {
  return products.count == 2
             ? sum_and_finish<2, false>(products.row, nullptr, n, down, down_columns, up, up_columns, c)
             : sum_and_finish<3, false>(products.row, nullptr, n, down, down_columns, up, up_columns, c);
}

}  // namespace cleave::kernels::quantize::avx2

#else  // another processor: never called, as usable_instructions() is baseline

namespace cleave::kernels::quantize::avx2 {
bool set_row(const float*, std::int64_t, float, const float*, std::int64_t*) { return true; }
bool add_row(const float*, std::int64_t, float, const float*, std::int64_t*) { return true; }
bool finish_row(const std::int64_t*, std::int64_t, double, const double*, float*) { return true; }
bool add_and_finish_row(const float*, std::int64_t, float, const float*, const std::int64_t*, double, const double*,
                        float*) {
  return true;
}
bool sum_and_finish_row(const BlockRows&, std::int64_t, float, const float*, double, const double*, float*) {
  return true;
}
bool sum_sixteen_columns(Sums, const float*, std::int64_t, std::int64_t, const std::int16_t*, const float*,
                         std::int64_t*, std::int64_t) {
  return true;
}
bool finish_sixteen_columns(const BlockBands&, std::int64_t, const std::int16_t*, const ColumnFactors&, float*,
                            std::int64_t) {
  return true;
}
}  // namespace cleave::kernels::quantize::avx2

#endif
