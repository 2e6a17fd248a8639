// Squares of 16 x 16 elements, transposed in registers: pairs of rows are interleaved by elements, then by pairs, then
// by quarters of registers.
#include "panels_avx512.hpp"

#include <algorithm>

#include "avx512.hpp"

namespace cleave::kernels::panels::avx512 {

#ifdef CLEAVE_HAS_AVX512

namespace {

constexpr std::int64_t kSide = 16;
struct Square {
  __m512 row[kSide];
};

CLEAVE_AVX512_INLINE __mmask16 first(std::int64_t count) {
  return static_cast<__mmask16>(count >= kSide ? 0xffff : (1U << std::max<std::int64_t>(0, count)) - 1);
}

CLEAVE_AVX512_INLINE __m512 pairs_low(const __m512& a, const __m512& b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
CLEAVE_AVX512_INLINE __m512 pairs_high(const __m512& a, const __m512& b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

CLEAVE_AVX512_INLINE void transpose(Square& square) {
  __m512(&x)[kSide] = square.row;
  __m512 y[kSide];
#pragma GCC unroll 8
  for (int i = 0; i < kSide; i += 2) {
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kSide; i += 4) {
    x[i] = pairs_low(y[i], y[i + 2]);
    x[i + 1] = pairs_high(y[i], y[i + 2]);
    x[i + 2] = pairs_low(y[i + 1], y[i + 3]);
    x[i + 3] = pairs_high(y[i + 1], y[i + 3]);
  }
  // Quarter q of x[4 g + c]: column 4 q + c of rows 4 g to 4 g + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 upper_low = _mm512_shuffle_f32x4(x[c], x[4 + c], 0x44);
    const __m512 upper_high = _mm512_shuffle_f32x4(x[c], x[4 + c], 0xee);
    const __m512 lower_low = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0x44);
    const __m512 lower_high = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0xee);
    y[c] = _mm512_shuffle_f32x4(upper_low, lower_low, 0x88);
    y[4 + c] = _mm512_shuffle_f32x4(upper_low, lower_low, 0xdd);
    y[8 + c] = _mm512_shuffle_f32x4(upper_high, lower_high, 0x88);
    y[12 + c] = _mm512_shuffle_f32x4(upper_high, lower_high, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) x[i] = y[i];
}

/// 16 depths of 12 rows into the 12 registers that follow each other in a panel of 12.
CLEAVE_AVX512_INLINE void transpose_twelve(const float* from, std::int64_t stride, float* to) {
  constexpr int kRows = 12;
  __m512 x[kRows], y[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) x[r] = _mm512_loadu_ps(from + r * stride);
#pragma GCC unroll 6
  for (int i = 0; i < kRows; i += 2) {
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  // x[3 c + g]: quarter q is depth 4 q + c of rows 4 g to 4 g + 3.
#pragma GCC unroll 3
  for (int g = 0; g < 3; ++g) {
    x[g] = pairs_low(y[4 * g], y[4 * g + 2]);
    x[3 + g] = pairs_high(y[4 * g], y[4 * g + 2]);
    x[6 + g] = pairs_low(y[4 * g + 1], y[4 * g + 3]);
    x[9 + g] = pairs_high(y[4 * g + 1], y[4 * g + 3]);
  }
#pragma GCC unroll 3
  for (int k = 0; k < 3; ++k) {
    const __m512* quad = x + 4 * k;
    const __m512 a = _mm512_shuffle_f32x4(quad[0], quad[1], 0x44), b = _mm512_shuffle_f32x4(quad[2], quad[3], 0x44);
    const __m512 c = _mm512_shuffle_f32x4(quad[0], quad[1], 0xee), d = _mm512_shuffle_f32x4(quad[2], quad[3], 0xee);
    _mm512_storeu_ps(to + 16 * k, _mm512_shuffle_f32x4(a, b, 0x88));
    _mm512_storeu_ps(to + 16 * (3 + k), _mm512_shuffle_f32x4(a, b, 0xdd));
    _mm512_storeu_ps(to + 16 * (6 + k), _mm512_shuffle_f32x4(c, d, 0x88));
    _mm512_storeu_ps(to + 16 * (9 + k), _mm512_shuffle_f32x4(c, d, 0xdd));
  }
}

/// 16 depths of 16 rows, into panels of kWidth.
template <int kWidth>
CLEAVE_AVX512_INLINE void transpose_sixteen(const float* from, std::int64_t stride, float* to) {
  Square square;
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r) square.row[r] = _mm512_loadu_ps(from + r * stride);
  transpose(square);
#pragma GCC unroll 16
  for (int t = 0; t < kSide; ++t) _mm512_storeu_ps(to + t * kWidth, square.row[t]);
}

/// Depths [0, depth / 16 * 16) of a whole panel; returns how many these are. The same of the next panel is asked for:
/// so many short streams the processor does not fetch by itself.
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

/// Any panel, by halves and masks.
CLEAVE_AVX512 void transpose_part(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                                  std::int64_t width, float* to) {
  for (std::int64_t t0 = 0; t0 < depth; t0 += kSide) {
    const __mmask16 depths = first(depth - t0);
    const std::int64_t columns = std::min(kSide, depth - t0);
    for (std::int64_t r0 = 0; r0 < width; r0 += kSide) {
      const std::int64_t here = std::clamp<std::int64_t>(rows - r0, 0, kSide);
      Square square;
#pragma GCC unroll 16
      for (int r = 0; r < kSide; ++r)
        square.row[r] = r < here ? _mm512_maskz_loadu_ps(depths, from + (r0 + r) * stride + t0) : _mm512_setzero_ps();
      transpose(square);
      const __mmask16 stored = first(width - r0);
      for (std::int64_t t = 0; t < columns; ++t)
        _mm512_mask_storeu_ps(to + (t0 + t) * width + r0, stored, square.row[t]);
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
