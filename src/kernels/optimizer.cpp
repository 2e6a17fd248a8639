// AdamW and sums of squares over flat tensors.
#include "cleave/kernels/optimizer.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements

using FourDoubles = double __attribute__((vector_size(32)));
using FourFloats = float __attribute__((vector_size(16)));
using EightDoubles = double __attribute__((vector_size(64)));
using EightFloats = float __attribute__((vector_size(32)));

/// Element t goes to lane t mod 16, in double; lanes are added in a fixed tree. The vectors are as wide as the
/// processor's: of wider ones GCC keeps the pieces in memory.
template <class Doubles, class Floats>
CLEAVE_INLINE double sum_squares_chunk(const float* x, std::int64_t n) {
  constexpr int kSums = 16, kWidth = sizeof(Doubles) / sizeof(double), kVectors = kSums / kWidth;
  Doubles sums[kVectors] = {};
  std::int64_t t = 0;
  for (; t + kSums <= n; t += kSums) {
    __builtin_prefetch(x + t + 1024, 0, 2);  // one stream alone: fetch more of it than the processor does by itself
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Floats narrow;
      __builtin_memcpy(&narrow, x + t + kWidth * v, sizeof narrow);
      const Doubles wide = __builtin_convertvector(narrow, Doubles);
      sums[v] += wide * wide;
    }
  }
  double v[kSums];
  __builtin_memcpy(v, sums, sizeof v);
  for (; t < n; ++t) v[t % kSums] += static_cast<double>(x[t]) * static_cast<double>(x[t]);
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) v[l] += v[l + half];
  return v[0];
}

struct Factors {
  float keep, clip, beta1, new1, beta2, new2, step, root2, eps;
};

CLEAVE_INLINE void adamw_chunk(const Factors& settings, const float* g, std::int64_t n, float* p, float* m, float* v) {
  const Factors f = settings;
  for (std::int64_t i = 0; i < n; ++i) {
    const float gradient = f.clip * g[i];
    const float first = f.beta1 * m[i] + f.new1 * gradient;
    const float second = f.beta2 * v[i] + f.new2 * (gradient * gradient);
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * f.keep - f.step * (first / (__builtin_sqrtf(second) * f.root2 + f.eps));
  }
}

/// base^exponent by squaring: the same bits with any C library.
double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

}  // namespace

double sum_squares(Parallel& parallel, std::span<const float> x) {
  return parallel.sum_chunks(std::ssize(x), kChunk, [&](std::int64_t begin, std::int64_t end) {
    return dispatch<sum_squares_chunk<FourDoubles, FourFloats>, sum_squares_chunk<EightDoubles, EightFloats>>(
        x.data() + begin, end - begin);
  });
}

void adamw_update(Parallel& parallel, const AdamW& settings, std::span<const float> gradient,
                  std::span<float> parameter, std::span<float> exp_avg, std::span<float> exp_avg_sq) {
  CLEAVE_ASSERT(gradient.size() == parameter.size() && exp_avg.size() == parameter.size() &&
                    exp_avg_sq.size() == parameter.size(),
                "tensors of {}, {}, {} and {} elements", gradient.size(), parameter.size(), exp_avg.size(),
                exp_avg_sq.size());
  CLEAVE_ASSERT(settings.step >= 1, "step {}", settings.step);
  const double correction1 = 1 - power(settings.beta1, settings.step);
  const double correction2 = 1 - power(settings.beta2, settings.step);
  const Factors factors{static_cast<float>(1 - settings.lr * settings.weight_decay),
                        static_cast<float>(settings.clip),
                        static_cast<float>(settings.beta1),
                        static_cast<float>(1 - settings.beta1),
                        static_cast<float>(settings.beta2),
                        static_cast<float>(1 - settings.beta2),
                        static_cast<float>(settings.lr / correction1),
                        static_cast<float>(1 / std::sqrt(correction2)),
                        static_cast<float>(settings.eps)};
  parallel.for_chunks(std::ssize(parameter), kChunk, [&](std::int64_t begin, std::int64_t end) {
    dispatch<adamw_chunk>(factors, gradient.data() + begin, end - begin, parameter.data() + begin,
                          exp_avg.data() + begin, exp_avg_sq.data() + begin);
  });
}

}  // namespace cleave::kernels
