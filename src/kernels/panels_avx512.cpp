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

}  // namespace

CLEAVE_AVX512 void transpose_panel(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                                   std::int64_t width, float* to) {
  for (std::int64_t t0 = 0; t0 < depth; t0 += kSide) {
    const __mmask16 depths = first(depth - t0);
    const std::int64_t columns = std::min(kSide, depth - t0);
    for (std::int64_t r0 = 0; r0 < width; r0 += kSide) {
      const std::int64_t here = std::clamp<std::int64_t>(rows - r0, 0, kSide);
      Square square;
#pragma GCC unroll 16
      for (int r = 0; r < kSide; ++r) {
        square.row[r] = r < here ? _mm512_maskz_loadu_ps(depths, from + (r0 + r) * stride + t0) : _mm512_setzero_ps();
        // The same of the next panel: so many short streams the processor does not fetch by itself.
        if (r0 + r < width) __builtin_prefetch(from + (r0 + r + width) * stride + t0, 0, 2);
      }
      transpose(square);
      const __mmask16 stored = first(width - r0);
      float* out = to + t0 * width + r0;
      if (columns == kSide) {
#pragma GCC unroll 16
        for (int t = 0; t < kSide; ++t) _mm512_mask_storeu_ps(out + t * width, stored, square.row[t]);
      } else {
        for (std::int64_t t = 0; t < columns; ++t) _mm512_mask_storeu_ps(out + t * width, stored, square.row[t]);
      }
    }
  }
}

#else
void transpose_panel(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*) {}
#endif

}  // namespace cleave::kernels::panels::avx512
