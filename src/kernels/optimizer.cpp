// AdamW and sums of squares over flat tensors.
#include "cleave/kernels/optimizer.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "lanes.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements

using FourDoubles = double __attribute__((vector_size(32)));
using FourFloats = float __attribute__((vector_size(16)));
using DoublesOfEight = double __attribute__((vector_size(64)));
using EightFloats = float __attribute__((vector_size(32)));

constexpr int kSums = 16;

/// A chunk's sums, lane by lane, in vectors as wide as the processor's: of wider ones GCC keeps the pieces in memory.
template <class Doubles>
struct SquareSums {
  static constexpr int kWidth = sizeof(Doubles) / sizeof(double), kVectors = kSums / kWidth;
  Doubles vectors[kVectors] = {};
};

template <class Floats, class Doubles>
CLEAVE_INLINE void add_squares(SquareSums<Doubles>& sums, const float* x) {
#pragma GCC unroll 4
  for (int v = 0; v < SquareSums<Doubles>::kVectors; ++v) {
    Floats narrow;
    __builtin_memcpy(&narrow, x + SquareSums<Doubles>::kWidth * v, sizeof narrow);
    const Doubles wide = __builtin_convertvector(narrow, Doubles);
    sums.vectors[v] += wide * wide;
  }
}

/// The sum of a chunk's n elements, of which `sums` has those that fill all lanes; lanes are added in a fixed tree.
template <class Doubles>
CLEAVE_INLINE double add_rest(const SquareSums<Doubles>& sums, const float* x, std::int64_t n) {
  double v[kSums];
  __builtin_memcpy(v, sums.vectors, sizeof v);
  for (std::int64_t t = n / kSums * kSums; t < n; ++t)
    v[t % kSums] += static_cast<double>(x[t]) * static_cast<double>(x[t]);
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) v[l] += v[l + half];
  return v[0];
}

/// totals[c] = the sum of squares of chunk c of some chunks; element t of one goes to lane t mod 16, in double. As many
/// whole chunks as registers have sums for are read side by side, each line of what comes next asked for on the way.
template <class Doubles, class Floats>
CLEAVE_INLINE void sum_squares_chunks(const float* x, std::int64_t n, double* totals) {
  constexpr std::int64_t kAhead = 1024, kBeside = lanes::kStreams * SquareSums<DoublesOfEight>::kVectors /
                                                  SquareSums<Doubles>::kVectors;
  for (; n >= kBeside * kChunk; x += kBeside * kChunk, n -= kBeside * kChunk) {
    SquareSums<Doubles> sums[kBeside];
    for (std::int64_t t = 0; t < kChunk; t += kSums) {
#pragma GCC unroll 4
      for (std::int64_t c = 0; c < kBeside; ++c) {
        __builtin_prefetch(x + c * kChunk + t + kAhead, 0, 2);
        add_squares<Floats>(sums[c], x + c * kChunk + t);
      }
    }
    for (std::int64_t c = 0; c < kBeside; ++c) *totals++ = add_rest(sums[c], x + c * kChunk, kChunk);
  }
  for (; n > 0; x += kChunk, n -= kChunk) {
    const std::int64_t count = n < kChunk ? n : kChunk;
    SquareSums<Doubles> sums;
    for (std::int64_t t = 0; t + kSums <= count; t += kSums) {
      __builtin_prefetch(x + t + kAhead, 0, 2);
      add_squares<Floats>(sums, x + t);
    }
    *totals++ = add_rest(sums, x, count);
  }
}

struct AdamFactors {
  float keep, clip, beta1, new1, beta2, new2, step, root2, eps;
};

CLEAVE_INLINE void adamw_chunk(const AdamFactors& settings, const float* g, std::int64_t n, float* p, float* m,
                               float* v) {
  const AdamFactors f = settings;
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
  return parallel.sum_chunks_together(
      std::ssize(x), kChunk, lanes::kStreams, [&](std::int64_t begin, std::int64_t end, double* sums) {
        dispatch<sum_squares_chunks<FourDoubles, FourFloats>, sum_squares_chunks<DoublesOfEight, EightFloats>>(
            x.data() + begin, end - begin, sums);
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
  const AdamFactors factors{static_cast<float>(1 - settings.lr * settings.weight_decay),
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
