// What the machine can do at most: multiplications from registers, bytes through memory. The kernels' benchmarks divide
// by these.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cleave/kernels/parallel.hpp"

namespace cleave::bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

namespace detail {

// Independent chains of fused multiply-adds that stay in registers: enough for two units of four cycles each.
constexpr int kChains = 12;

template <class Lanes>
[[gnu::always_inline]] inline float chains(std::int64_t rounds) {
  constexpr int kLanes = sizeof(Lanes) / sizeof(float);
  Lanes sums[kChains], factor = Lanes{} + 1.0001F, term = Lanes{} + 1e-6F;
  for (Lanes& sum : sums) sum = term;
  asm volatile("" : "+x"(factor), "+x"(term));
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (Lanes& sum : sums) sum = sum * factor + term;
  }
  float total = 0;
  for (const Lanes& sum : sums) {
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  }
  return total;
}

using Wide = float __attribute__((vector_size(64)));
using Half = float __attribute__((vector_size(32)));
using Plain = float __attribute__((vector_size(16)));

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"), noinline, optimize("fp-contract=fast"))) inline float wide(std::int64_t rounds) {
  return chains<Wide>(rounds);
}
__attribute__((target("avx2,fma"), noinline, optimize("fp-contract=fast"))) inline float half(std::int64_t rounds) {
  return chains<Half>(rounds);
}
inline int lanes() { return __builtin_cpu_supports("avx512f") ? 16 : __builtin_cpu_supports("fma") ? 8 : 4; }
inline float multiply_add(std::int64_t rounds) {
  return lanes() == 16 ? wide(rounds) : lanes() == 8 ? half(rounds) : chains<Plain>(rounds);
}
#else
inline int lanes() { return 4; }
inline float multiply_add(std::int64_t rounds) { return chains<Plain>(rounds); }
#endif

}  // namespace detail

/// FLOP/s of one core on fp32 numbers that are in registers: the best of some runs.
inline double peak_flops() {
  static const double peak = [] {
    constexpr std::int64_t kRounds = 2'000'000;
    double best = 0;
    for (int run = 0; run < 20; ++run) {
      const double start = seconds_now();
      volatile float keep = detail::multiply_add(kRounds);
      (void)keep;
      best = std::max(best, 2.0 * detail::lanes() * detail::kChains * kRounds / (seconds_now() - start));
    }
    return best;
  }();
  return peak;
}

/// Bytes that `threads` threads read and write each second in a[i] = b[i] + s c[i] over arrays far larger than the
/// caches, the line of a counted as read before it is written (STREAM's triad as the memory sees it): the median of
/// some runs.
inline double memory_bandwidth(kernels::Parallel& parallel) {
  constexpr std::int64_t kLength = std::int64_t{48} << 20;
  std::vector<float> a(kLength, 0), b(kLength, 1), c(kLength, 2);
  std::vector<double> rates;
  for (int run = 0; run < 7; ++run) {
    const double start = seconds_now();
    parallel.for_chunks(kLength, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      float *to = a.data(), *left = b.data(), *right = c.data();
      for (std::int64_t i = begin; i < end; ++i) to[i] = left[i] + 3.0F * right[i];
    });
    if (run > 0) rates.push_back(4.0 * sizeof(float) * kLength / (seconds_now() - start));
  }
  return median(rates);
}

/// Bytes that memcpy copies each second on one thread, each counted once, in blocks of `block` bytes.
inline double copy_bandwidth(std::int64_t block) {
  const std::int64_t total = std::max<std::int64_t>(std::int64_t{256} << 20, block);
  std::vector<char> from(static_cast<std::size_t>(block), 1), to(static_cast<std::size_t>(block), 2);
  std::vector<double> rates;
  for (int run = 0; run < 7; ++run) {
    const double start = seconds_now();
    for (std::int64_t done = 0; done < total; done += block) {
      std::memcpy(to.data(), from.data(), static_cast<std::size_t>(block));
      asm volatile("" : : "r"(to.data()) : "memory");
    }
    if (run > 0) rates.push_back(static_cast<double>(total) / (seconds_now() - start));
  }
  return median(rates);
}

}  // namespace cleave::bench
