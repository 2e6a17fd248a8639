// Loops over one row.
#include "row_ops.hpp"

#include <limits>

#include "versions.hpp"

namespace cleave::kernels {

namespace {

CLEAVE_INLINE void add_row_loop(const float* a, const float* b, std::int64_t n, float* out) {
  for (std::int64_t j = 0; j < n; ++j) out[j] = a[j] + b[j];
}

CLEAVE_INLINE void add_scaled_row_loop(const float* a, const float* b, float scale, std::int64_t n, float* out) {
  for (std::int64_t j = 0; j < n; ++j) out[j] = a[j] + scale * b[j];
}

/// Maxima that are kept side by side: those of several registers, as a comparison takes some cycles.
constexpr std::int64_t kMaxima = 128;

/// The largest element of each lane first. In plain loops: vectors that are named, GCC compares element by element
/// where they are wider than the baseline's.
CLEAVE_INLINE float largest_of_row_loop(const float* x, std::int64_t n) {
  constexpr float kLow = -std::numeric_limits<float>::infinity();
  float maxima[kMaxima];
  for (float& lane : maxima) lane = kLow;
  std::int64_t t = 0;
  for (; t + kMaxima <= n; t += kMaxima)
    for (std::int64_t l = 0; l < kMaxima; ++l) maxima[l] = x[t + l] > maxima[l] ? x[t + l] : maxima[l];
  for (std::int64_t l = 0; t + l < n; ++l) maxima[l] = x[t + l] > maxima[l] ? x[t + l] : maxima[l];
  for (std::int64_t half = kMaxima / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) maxima[l] = maxima[l] > maxima[l + half] ? maxima[l] : maxima[l + half];
  return maxima[0] + 0.0F;  // of zeros of both signs, whichever was found
}

}  // namespace

float largest_of_row(const float* x, std::int64_t n) { return dispatch<largest_of_row_loop>(x, n); }

void add_row(const float* a, const float* b, std::int64_t n, float* out) { dispatch<add_row_loop>(a, b, n, out); }

void add_scaled_row(const float* a, const float* b, float scale, std::int64_t n, float* out) {
  dispatch<add_scaled_row_loop>(a, b, scale, n, out);
}

}  // namespace cleave::kernels
