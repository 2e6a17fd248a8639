// 16 depths of 12 or 16 rows, transposed in registers: pairs of rows are interleaved by elements, then by pairs, then
// by quarters of registers.
#include "panels_avx512.hpp"

#include <algorithm>

#include "intrinsics.hpp"

namespace cleave::kernels::panels::avx512 {

#ifdef CLEAVE_HAS_VERSIONS

namespace {

constexpr std::int64_t kSide = 16;

CLEAVE_AVX512_INLINE __m512 pairs_low(const __m512& a, const __m512& b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
CLEAVE_AVX512_INLINE __m512 pairs_high(const __m512& a, const __m512& b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

/// Four rows by columns: quarter q of column[c * apart] is column 4 q + c of the rows.
CLEAVE_AVX512_INLINE void interleave_four(const __m512* row, __m512* column, int apart) {
  const __m512 low = _mm512_unpacklo_ps(row[0], row[1]), high = _mm512_unpackhi_ps(row[0], row[1]);
  const __m512 next_low = _mm512_unpacklo_ps(row[2], row[3]), next_high = _mm512_unpackhi_ps(row[2], row[3]);
  column[0] = pairs_low(low, next_low);
  column[apart] = pairs_high(low, next_low);
  column[2 * apart] = pairs_low(high, next_high);
  column[3 * apart] = pairs_high(high, next_high);
}

/// out[q * apart] holds quarter q of from[0], from[1], from[2] and from[3].
CLEAVE_AVX512_INLINE void gather_quarters(const __m512* from, __m512* out, int apart) {
  const __m512 low = _mm512_shuffle_f32x4(from[0], from[1], 0x44),
               next_low = _mm512_shuffle_f32x4(from[2], from[3], 0x44);
  const __m512 high = _mm512_shuffle_f32x4(from[0], from[1], 0xee),
               next_high = _mm512_shuffle_f32x4(from[2], from[3], 0xee);
  out[0] = _mm512_shuffle_f32x4(low, next_low, 0x88);
  out[apart] = _mm512_shuffle_f32x4(low, next_low, 0xdd);
  out[2 * apart] = _mm512_shuffle_f32x4(high, next_high, 0x88);
  out[3 * apart] = _mm512_shuffle_f32x4(high, next_high, 0xdd);
}

/// Turns rows x[kRows] of 16 elements into 16 columns of kRows, one after another in the same registers.
template <int kRows>
CLEAVE_AVX512_INLINE void transpose(__m512* x) {
  constexpr int kGroups = kRows / 4;
  __m512 y[kRows];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) interleave_four(x + 4 * g, y + g, kGroups);
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) gather_quarters(y + 4 * g, x + g, kGroups);
}

/// 16 depths of 12 rows into the 12 registers that follow each other in a panel of 12.
CLEAVE_AVX512_INLINE void transpose_twelve(const float* from, std::int64_t stride, float* to) {
  constexpr int kRows = 12;
  __m512 x[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) x[r] = _mm512_loadu_ps(from + r * stride);
  transpose<kRows>(x);
#pragma GCC unroll 12
  for (int k = 0; k < kRows; ++k) _mm512_storeu_ps(to + 16 * k, x[k]);
}

/// 16 depths of 16 rows, into panels of kWidth.
template <int kWidth>
CLEAVE_AVX512_INLINE void transpose_sixteen(const float* from, std::int64_t stride, float* to) {
  __m512 square[kSide];
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r) square[r] = _mm512_loadu_ps(from + r * stride);
  transpose<kSide>(square);
#pragma GCC unroll 16
  for (int t = 0; t < kSide; ++t) _mm512_storeu_ps(to + t * kWidth, square[t]);
}

// While a panel is packed the next one is asked for: so many short streams the processor does not fetch by itself.

/// Depths [0, depth / 16 * 16) of a whole panel; returns how many these are.
template <int kWidth>
CLEAVE_AVX512 std::int64_t transpose_whole(const float* from, std::int64_t stride, std::int64_t depth, float* to) {
  std::int64_t t = 0;
  for (; t + kSide <= depth; t += kSide) {
    const float* const next = from + kWidth * stride + t;
#pragma GCC unroll 16
    for (int r = 0; r < kWidth; ++r) __builtin_prefetch(next + r * stride, 0, 2);
    if constexpr (kWidth == 12) {
      transpose_twelve(from + t, stride, to + t * kWidth);
    } else {
#pragma GCC unroll 3
      for (int r = 0; r < kWidth; r += 16)
        transpose_sixteen<kWidth>(from + r * stride + t, stride, to + t * kWidth + r);
    }
  }
  return t;
}

/// Any panel, by squares and masks.
CLEAVE_AVX512 void transpose_part(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                                  std::int64_t width, float* to) {
  for (std::int64_t t0 = 0; t0 < depth; t0 += kSide) {
    const __mmask16 depths = first_lanes(depth - t0);
    const std::int64_t columns = std::min(kSide, depth - t0);
    for (std::int64_t r0 = 0; r0 < width; r0 += kSide) {
      const std::int64_t here = std::clamp<std::int64_t>(rows - r0, 0, kSide);
      __m512 square[kSide];
#pragma GCC unroll 16
      for (int r = 0; r < kSide; ++r) {
        square[r] = r < here ? _mm512_maskz_loadu_ps(depths, from + (r0 + r) * stride + t0) : _mm512_setzero_ps();
        if (r0 + r < width) __builtin_prefetch(from + (r0 + r + width) * stride + t0, 0, 2);
      }
      transpose<kSide>(square);
      const __mmask16 stored = first_lanes(width - r0);
      for (std::int64_t t = 0; t < columns; ++t) _mm512_mask_storeu_ps(to + (t0 + t) * width + r0, stored, square[t]);
    }
  }
}

}  // namespace

CLEAVE_AVX512 void transpose_panel(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                                   std::int64_t width, float* to) {
  std::int64_t done = 0;
  if (rows == width) {
    switch (width) {
      case 12: done = transpose_whole<12>(from, stride, depth, to); break;
      case 16: done = transpose_whole<16>(from, stride, depth, to); break;
      case 32: done = transpose_whole<32>(from, stride, depth, to); break;
      default: break;
    }
  }
  if (done < depth) transpose_part(from + done, stride, rows, depth - done, width, to + done * width);
}

#else
void transpose_panel(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*) {}
#endif

}  // namespace cleave::kernels::panels::avx512
