// Loops over one row.
#include "row_ops.hpp"

#include <limits>

#include "intrinsics.hpp"
#include "versions.hpp"

namespace cleave::kernels {

namespace {

CLEAVE_INLINE void add_row_loop(const float* a, const float* b, std::int64_t n, float* out) {
  for (std::int64_t j = 0; j < n; ++j) out[j] = a[j] + b[j];
}

CLEAVE_INLINE void add_scaled_row_loop(const float* a, const float* b, float scale, std::int64_t n, float* out) {
  for (std::int64_t j = 0; j < n; ++j) out[j] = a[j] + scale * b[j];
}

constexpr float kLow = -std::numeric_limits<float>::infinity();
/// Vectors whose maxima are kept side by side: a comparison takes four cycles.
constexpr std::int64_t kMaxima = 4;

float largest_among(const float* x, std::int64_t n, float best) {
  for (std::int64_t t = 0; t < n; ++t) best = x[t] > best ? x[t] : best;
  return best;
}

/// Of vectors that every processor compares at once: wider ones GCC compares element by element, unless intrinsics name
/// them.
float largest_baseline(const float* x, std::int64_t n) {
  using Four = float __attribute__((vector_size(16)));
  Four maxima[kMaxima];
  for (Four& four : maxima) four = Four{kLow, kLow, kLow, kLow};
  std::int64_t t = 0;
  for (; t + 4 * kMaxima <= n; t += 4 * kMaxima)
    for (std::int64_t v = 0; v < kMaxima; ++v) {
      Four next;
      __builtin_memcpy(&next, x + t + 4 * v, sizeof(next));
      maxima[v] = next > maxima[v] ? next : maxima[v];
    }
  float of_lanes[4 * kMaxima];
  __builtin_memcpy(of_lanes, maxima, sizeof of_lanes);
  return largest_among(x + t, n - t, largest_among(of_lanes, 4 * kMaxima, kLow));
}

#ifdef CLEAVE_HAS_VERSIONS
CLEAVE_AVX2 float largest_avx2(const float* x, std::int64_t n) {
  __m256 maxima[kMaxima];
  for (__m256& eight : maxima) eight = _mm256_set1_ps(kLow);
  std::int64_t t = 0;
  for (; t + 8 * kMaxima <= n; t += 8 * kMaxima)
    for (std::int64_t v = 0; v < kMaxima; ++v) maxima[v] = _mm256_max_ps(_mm256_loadu_ps(x + t + 8 * v), maxima[v]);
  for (; t + 8 <= n; t += 8) maxima[0] = _mm256_max_ps(_mm256_loadu_ps(x + t), maxima[0]);
  const __m256 all = _mm256_max_ps(_mm256_max_ps(maxima[0], maxima[1]), _mm256_max_ps(maxima[2], maxima[3]));
  float of_lanes[8];
  _mm256_storeu_ps(of_lanes, all);
  return largest_among(x + t, n - t, largest_among(of_lanes, 8, kLow));
}

CLEAVE_AVX512 float largest_avx512(const float* x, std::int64_t n) {
  __m512 maxima[kMaxima];
  for (__m512& sixteen : maxima) sixteen = _mm512_set1_ps(kLow);
  std::int64_t t = 0;
  for (; t + 16 * kMaxima <= n; t += 16 * kMaxima)
    for (std::int64_t v = 0; v < kMaxima; ++v) maxima[v] = _mm512_max_ps(_mm512_loadu_ps(x + t + 16 * v), maxima[v]);
  for (; t < n; t += 16) {
    const __mmask16 there = first_lanes(n - t);
    maxima[0] = _mm512_mask_max_ps(maxima[0], there, _mm512_maskz_loadu_ps(there, x + t), maxima[0]);
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(maxima[0], maxima[1]), _mm512_max_ps(maxima[2], maxima[3])));
}
#endif

}  // namespace

float largest_of_row(const float* x, std::int64_t n) {
  constexpr float kPositiveZero = 0;  // of zeros of both signs, whichever was found
#ifdef CLEAVE_HAS_VERSIONS
  switch (usable_instructions()) {
    case Instructions::avx512: return largest_avx512(x, n) + kPositiveZero;
    case Instructions::avx2: return largest_avx2(x, n) + kPositiveZero;
    case Instructions::baseline: break;
  }
#endif
  return largest_baseline(x, n) + kPositiveZero;
}

void add_row(const float* a, const float* b, std::int64_t n, float* out) { dispatch<add_row_loop>(a, b, n, out); }

void add_scaled_row(const float* a, const float* b, float scale, std::int64_t n, float* out) {
  dispatch<add_scaled_row_loop>(a, b, scale, n, out);
}

}  // namespace cleave::kernels
