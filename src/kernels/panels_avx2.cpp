// Transposing in registers of 8: pairs of rows are interleaved first, then the pairs.
//
// Six rows at depths 0 to 7: with A, B and C the pairs of rows 0 1, 2 3 and 4 5, interleaving gives A0 A1 | A4 A5 and
// A2 A3 | A6 A7, likewise B and C (a bar parts the halves of a register). A panel of six wants A0 B0 C0 A1 B1 C1 and so
// on: six registers A0 B0 | A4 B4, C0 A1 | C4 A5, B1 C1 | B5 C5, ... whose halves are stored apart.
#include "panels_avx2.hpp"

#include "intrinsics.hpp"

namespace cleave::kernels::panels::avx2 {

#ifdef CLEAVE_HAS_VERSIONS

namespace {

constexpr std::int64_t kLine = 16;  // floats of a cache line

CLEAVE_AVX2_INLINE __m256d interleave_low(const __m256& a, const __m256& b) {
  return _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
}
CLEAVE_AVX2_INLINE __m256d interleave_high(const __m256& a, const __m256& b) {
  return _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
}

/// Three registers of pairs, A, B and C as above, to places 0, 4, 8 and, their high halves, 24, 28, 32 of a panel of
/// six.
CLEAVE_AVX2_INLINE void store_pairs(const __m256d& a, const __m256d& b, const __m256d& c, float* to) {
  constexpr int kLowThenHigh = 0b1010;  // the first's low number and the second's high one, in both halves
  const __m256 out[3] = {_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                         _mm256_castpd_ps(_mm256_shuffle_pd(c, a, kLowThenHigh)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(b, c))};
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    _mm_storeu_ps(to + 4 * i, _mm256_castps256_ps128(out[i]));
    _mm_storeu_ps(to + 24 + 4 * i, _mm256_extractf128_ps(out[i], 1));
  }
}

/// 8 depths of 6 rows.
CLEAVE_AVX2_INLINE void transpose_six(const float* from, std::int64_t stride, float* to) {
  __m256 x[6];
#pragma GCC unroll 6
  for (int r = 0; r < 6; ++r) x[r] = _mm256_loadu_ps(from + r * stride);
  store_pairs(interleave_low(x[0], x[1]), interleave_low(x[2], x[3]), interleave_low(x[4], x[5]), to);
  store_pairs(interleave_high(x[0], x[1]), interleave_high(x[2], x[3]), interleave_high(x[4], x[5]), to + 12);
}

/// 4 depths of 8 rows, into a panel of 16. Row r and row r + 4 share a register.
CLEAVE_AVX2_INLINE void transpose_eight(const float* from, std::int64_t stride, float* to) {
  __m256 x[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r)
    x[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + r * stride)),
                                _mm_loadu_ps(from + (r + 4) * stride), 1);
  const __m256d low = interleave_low(x[0], x[1]), high = interleave_high(x[0], x[1]);
  const __m256d next_low = interleave_low(x[2], x[3]), next_high = interleave_high(x[2], x[3]);
  _mm256_storeu_ps(to, _mm256_castpd_ps(_mm256_unpacklo_pd(low, next_low)));
  _mm256_storeu_ps(to + 16, _mm256_castpd_ps(_mm256_unpackhi_pd(low, next_low)));
  _mm256_storeu_ps(to + 32, _mm256_castpd_ps(_mm256_unpacklo_pd(high, next_high)));
  _mm256_storeu_ps(to + 48, _mm256_castpd_ps(_mm256_unpackhi_pd(high, next_high)));
}

/// While a panel is packed the next one is asked for: so many short streams the processor does not fetch by itself.
template <int kWidth>
CLEAVE_AVX2 std::int64_t transpose_whole(const float* from, std::int64_t stride, std::int64_t depth, float* to) {
  constexpr int kDepths = kWidth == 6 ? 8 : 4;
  std::int64_t t = 0;
  for (; t + kDepths <= depth; t += kDepths) {
    if (t % kLine == 0) {
      const float* const next = from + kWidth * stride + t;
#pragma GCC unroll 16
      for (int r = 0; r < kWidth; ++r) __builtin_prefetch(next + r * stride, 0, 2);
    }
    if constexpr (kWidth == 6) {
      transpose_six(from + t, stride, to + t * kWidth);
    } else {
      transpose_eight(from + t, stride, to + t * kWidth);
      transpose_eight(from + 8 * stride + t, stride, to + t * kWidth + 8);
    }
  }
  return t;
}

}  // namespace

std::int64_t transpose_whole_panel(const float* from, std::int64_t stride, std::int64_t depth, std::int64_t width,
                                   float* to) {
  if (width == 6) return transpose_whole<6>(from, stride, depth, to);
  if (width == 16) return transpose_whole<16>(from, stride, depth, to);
  return 0;
}

#else
std::int64_t transpose_whole_panel(const float*, std::int64_t, std::int64_t, std::int64_t, float*) { return 0; }
#endif

}  // namespace cleave::kernels::panels::avx2
