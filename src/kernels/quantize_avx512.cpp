// AVX-512 loops: 16 elements at a time, the last ones under a mask. Conversions to integers round to nearest even.
#include "quantize_avx512.hpp"

#include "intrinsics.hpp"
#include "quantize.hpp"

#ifdef CLEAVE_HAS_VERSIONS

namespace cleave::kernels::quantize::avx512 {
namespace {

/// 16 integers of either width; one register or two.
template <class Int>
struct Integers;
template <>
struct Integers<std::int32_t> {
  __m512i all;
};
template <>
struct Integers<std::int64_t> {
  __m512i low, high;
};

using Mask = __mmask16;
CLEAVE_AVX512_INLINE __mmask8 low_half(Mask mask) { return static_cast<__mmask8>(mask & 0xff); }
CLEAVE_AVX512_INLINE __mmask8 high_half(Mask mask) { return static_cast<__mmask8>(mask >> 8); }

CLEAVE_AVX512_INLINE void load(Mask mask, const std::int32_t* from, Integers<std::int32_t>& q) {
  q.all = _mm512_maskz_loadu_epi32(mask, from);
}
CLEAVE_AVX512_INLINE void load(Mask mask, const std::int64_t* from, Integers<std::int64_t>& q) {
  q.low = _mm512_maskz_loadu_epi64(low_half(mask), from);
  q.high = _mm512_maskz_loadu_epi64(high_half(mask), from + 8);
}
CLEAVE_AVX512_INLINE void store(Mask mask, std::int32_t* to, const Integers<std::int32_t>& q) {
  _mm512_mask_storeu_epi32(to, mask, q.all);
}
CLEAVE_AVX512_INLINE void store(Mask mask, std::int64_t* to, const Integers<std::int64_t>& q) {
  _mm512_mask_storeu_epi64(to, low_half(mask), q.low);
  _mm512_mask_storeu_epi64(to + 8, high_half(mask), q.high);
}
CLEAVE_AVX512_INLINE void add(const Integers<std::int32_t>& a, Integers<std::int32_t>& into) {
  into.all = _mm512_add_epi32(into.all, a.all);
}
CLEAVE_AVX512_INLINE void add(const Integers<std::int64_t>& a, Integers<std::int64_t>& into) {
  into.low = _mm512_add_epi64(into.low, a.low);
  into.high = _mm512_add_epi64(into.high, a.high);
}

/// q = nearest(x). What does not fit, NaN included, becomes the least integer. `bad` gets a top bit where q is outside
/// [-2^kLimitBits, 2^kLimitBits).
CLEAVE_AVX512_INLINE void nearest(const __m512& x, Integers<std::int32_t>& q, __m512i& bad) {
  const __m512i offset = _mm512_set1_epi32(1 << kLimitBits<std::int32_t>);
  q.all = _mm512_cvtps_epi32(x);
  bad = _mm512_or_si512(bad, _mm512_add_epi32(q.all, offset));
}
CLEAVE_AVX512_INLINE void nearest(const __m512& x, Integers<std::int64_t>& q, __m512i& bad) {
  const __m512i offset = _mm512_set1_epi64(std::int64_t{1} << kLimitBits<std::int64_t>);
  q.low = _mm512_cvtps_epi64(_mm512_castps512_ps256(x));
  q.high = _mm512_cvtps_epi64(_mm512_extractf32x8_ps(x, 1));
  bad = _mm512_or_si512(bad, _mm512_or_si512(_mm512_add_epi64(q.low, offset), _mm512_add_epi64(q.high, offset)));
}
CLEAVE_AVX512_INLINE bool any_bad(const __m512i& bad, std::int32_t) { return _mm512_movepi32_mask(bad) != 0; }
CLEAVE_AVX512_INLINE bool any_bad(const __m512i& bad, std::int64_t) { return _mm512_movepi64_mask(bad) != 0; }

CLEAVE_AVX512_INLINE void to_doubles(const Integers<std::int32_t>& q, __m512d& low, __m512d& high) {
  low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(q.all));
  high = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(q.all, 1));
}
CLEAVE_AVX512_INLINE void to_doubles(const Integers<std::int64_t>& q, __m512d& low, __m512d& high) {
  low = _mm512_cvtepi64_pd(q.low);
  high = _mm512_cvtepi64_pd(q.high);
}

/// c = float(q * up * up_columns); `not_finite` gets the lanes that overflowed.
template <class Int>
CLEAVE_AVX512_INLINE void finish(Mask mask, const Integers<Int>& q, const __m512d& up, const double* up_columns,
                                 float* c, Mask& not_finite) {
  __m512d low, high;
  to_doubles(q, low, high);
  low = _mm512_mul_pd(_mm512_mul_pd(low, up), _mm512_maskz_loadu_pd(low_half(mask), up_columns));
  high = _mm512_mul_pd(_mm512_mul_pd(high, up), _mm512_maskz_loadu_pd(high_half(mask), up_columns + 8));
  const __m512 value = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
  constexpr int kInfinityOrNaN = 0x99;  // of vfpclassps: quiet or signalling NaN, either infinity
  not_finite = static_cast<Mask>(not_finite | _mm512_fpclass_ps_mask(value, kInfinityOrNaN));
  _mm512_mask_storeu_ps(c, mask, value);
}

/// x = product * row * columns, 16 elements.
CLEAVE_AVX512_INLINE void scale(Mask mask, const float* product, const __m512& row, const float* columns, __m512& x) {
  x = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, product), row), _mm512_maskz_loadu_ps(mask, columns));
}

/// A loop over n elements: full steps, whose mask is a constant that costs nothing, then the rest under a mask.
template <class Step>
CLEAVE_AVX512_INLINE void for_sixteens(std::int64_t n, Step& step) {
  std::int64_t j = 0;
  for (; j + 16 <= n; j += 16) step.take(static_cast<Mask>(0xffff), j);
  if (j < n) step.take(static_cast<Mask>((1u << (n - j)) - 1u), j);
}

template <bool kAdd, class Int>
struct Quantize {
  const float* product;
  const float* down_columns;
  Int* sums;
  __m512 down;
  __m512i bad;
  CLEAVE_AVX512_INLINE void take(Mask mask, std::int64_t j) {
    Integers<Int> q, before;
    __m512 x;
    scale(mask, product + j, down, down_columns + j, x);
    nearest(x, q, bad);
    if constexpr (kAdd) {
      load(mask, sums + j, before);
      add(before, q);
    }
    store(mask, sums + j, q);
  }
};

template <class Int>
struct Finish {
  const Int* sums;
  const double* up_columns;
  float* c;
  __m512d up;
  Mask not_finite;
  CLEAVE_AVX512_INLINE void take(Mask mask, std::int64_t j) {
    Integers<Int> q;
    load(mask, sums + j, q);
    finish(mask, q, up, up_columns + j, c + j, not_finite);
  }
};

/// Block results of kBlocks K blocks, added to sums of those before where kBefore says that there are some.
template <int kBlocks, bool kBefore, class Int>
struct SumAndFinish {
  const float* const* products;
  const Int* before;
  const float* down_columns;
  const double* up_columns;
  float* c;
  __m512 down;
  __m512d up;
  __m512i bad;
  Mask not_finite;
  CLEAVE_AVX512_INLINE void take(Mask mask, std::int64_t j) {
    Integers<Int> sum, q;
    __m512 x;
    scale(mask, products[0] + j, down, down_columns + j, x);
    nearest(x, sum, bad);
#pragma GCC unroll 2
    for (int b = 1; b < kBlocks; ++b) {
      scale(mask, products[b] + j, down, down_columns + j, x);
      nearest(x, q, bad);
      add(q, sum);
    }
    if constexpr (kBefore) {
      load(mask, before + j, q);
      add(q, sum);
    }
    finish(mask, sum, up, up_columns + j, c + j, not_finite);
  }
};

template <bool kAdd, class Int>
CLEAVE_AVX512_INLINE bool quantize(const float* product, std::int64_t n, float down, const float* down_columns,
                                   Int* sums) {
  Quantize<kAdd, Int> step{product, down_columns, sums, _mm512_set1_ps(down), _mm512_setzero_si512()};
  for_sixteens(n, step);
  return any_bad(step.bad, Int{});
}

template <class Int>
CLEAVE_AVX512_INLINE bool finish_sums(const Int* sums, std::int64_t n, double up, const double* up_columns, float* c) {
  Finish<Int> step{sums, up_columns, c, _mm512_set1_pd(up), 0};
  for_sixteens(n, step);
  return step.not_finite != 0;
}

template <int kBlocks, bool kBefore, class Int>
CLEAVE_AVX512_INLINE bool sum_and_finish(const float* const* products, const Int* before, std::int64_t n, float down,
                                         const float* down_columns, double up, const double* up_columns, float* c) {
  SumAndFinish<kBlocks, kBefore, Int> step{
      products, before, down_columns, up_columns, c, _mm512_set1_ps(down), _mm512_set1_pd(up), _mm512_setzero_si512(),
      0};
  for_sixteens(n, step);
  return any_bad(step.bad, Int{}) || step.not_finite != 0;
}

template <class Int>
CLEAVE_AVX512_INLINE bool sum_few_and_finish(const BlockRows& products, std::int64_t n, float down,
                                             const float* down_columns, double up, const double* up_columns, float* c) {
  const Int* const none = nullptr;
  return products.count == 2 ? sum_and_finish<2, false>(products.row, none, n, down, down_columns, up, up_columns, c)
                             : sum_and_finish<3, false>(products.row, none, n, down, down_columns, up, up_columns, c);
}

}  // namespace

CLEAVE_AVX512 bool set_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int32_t* sums) {
  return quantize<false>(product, n, down, down_columns, sums);
}
CLEAVE_AVX512 bool add_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int32_t* sums) {
  return quantize<true>(product, n, down, down_columns, sums);
}
CLEAVE_AVX512 bool finish_row(const std::int32_t* sums, std::int64_t n, double up, const double* up_columns, float* c) {
  return finish_sums(sums, n, up, up_columns, c);
}
CLEAVE_AVX512 bool add_and_finish_row(const float* product, std::int64_t n, float down, const float* down_columns,
                                      const std::int32_t* sums, double up, const double* up_columns, float* c) {
  return sum_and_finish<1, true>(&product, sums, n, down, down_columns, up, up_columns, c);
}

CLEAVE_AVX512 bool set_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int64_t* sums) {
  return quantize<false>(product, n, down, down_columns, sums);
}
CLEAVE_AVX512 bool add_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int64_t* sums) {
  return quantize<true>(product, n, down, down_columns, sums);
}
CLEAVE_AVX512 bool finish_row(const std::int64_t* sums, std::int64_t n, double up, const double* up_columns, float* c) {
  return finish_sums(sums, n, up, up_columns, c);
}
CLEAVE_AVX512 bool add_and_finish_row(const float* product, std::int64_t n, float down, const float* down_columns,
                                      const std::int64_t* sums, double up, const double* up_columns, float* c) {
  return sum_and_finish<1, true>(&product, sums, n, down, down_columns, up, up_columns, c);
}

CLEAVE_AVX512 bool sum_and_finish_row(const BlockRows& products, std::int64_t n, float down, const float* down_columns,
                                      double up, const double* up_columns, float* c, std::int32_t) {
  return sum_few_and_finish<std::int32_t>(products, n, down, down_columns, up, up_columns, c);
}
CLEAVE_AVX512 bool sum_and_finish_row(const BlockRows& products, std::int64_t n, float down, const float* down_columns,
                                      double up, const double* up_columns, float* c, std::int64_t) {
  return sum_few_and_finish<std::int64_t>(products, n, down, down_columns, up, up_columns, c);
}

}  // namespace cleave::kernels::quantize::avx512

#else  // another processor: never called, as usable_instructions() is baseline

namespace cleave::kernels::quantize::avx512 {
bool set_row(const float*, std::int64_t, float, const float*, std::int32_t*) { return true; }
bool add_row(const float*, std::int64_t, float, const float*, std::int32_t*) { return true; }
bool finish_row(const std::int32_t*, std::int64_t, double, const double*, float*) { return true; }
bool add_and_finish_row(const float*, std::int64_t, float, const float*, const std::int32_t*, double, const double*,
                        float*) {
  return true;
}
bool set_row(const float*, std::int64_t, float, const float*, std::int64_t*) { return true; }
bool add_row(const float*, std::int64_t, float, const float*, std::int64_t*) { return true; }
bool finish_row(const std::int64_t*, std::int64_t, double, const double*, float*) { return true; }
bool add_and_finish_row(const float*, std::int64_t, float, const float*, const std::int64_t*, double, const double*,
                        float*) {
  return true;
}
bool sum_and_finish_row(const BlockRows&, std::int64_t, float, const float*, double, const double*, float*,
                        std::int32_t) {
  return true;
}
bool sum_and_finish_row(const BlockRows&, std::int64_t, float, const float*, double, const double*, float*,
                        std::int64_t) {
  return true;
}
}  // namespace cleave::kernels::quantize::avx512

#endif
