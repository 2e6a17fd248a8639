// What the machine can do at most: multiplications from registers, bytes through memory. The kernels' benchmarks divide
// by these.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cleave/base/block_pool.hpp"
#include "cleave/kernels/parallel.hpp"
#include "timing.hpp"

namespace cleave::bench {

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

/// For arrays that lie where the server's tensors do: in huge pages, where they are large.
template <class T>
struct LargeMemory {
  using value_type = T;
  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(large_memory().allocate(count * sizeof(T), kAlignment));
  }
  void deallocate(T* data, std::size_t count) { large_memory().deallocate(data, count * sizeof(T), kAlignment); }
  friend bool operator==(const LargeMemory&, const LargeMemory&) = default;

 private:
  static constexpr std::size_t kAlignment = 64;
};
using LargeArray = std::vector<float, LargeMemory<float>>;

/// What the memory gives: arrays far larger than the second-level caches, on the threads of a Parallel. Rates are of
/// one pass, in bytes a second.
class Memory {
 public:
  explicit Memory(std::int64_t length = std::int64_t{32} << 20)
      : a_(static_cast<std::size_t>(length), 0), b_(a_.size(), 1), c_(a_.size(), 2) {}

  /// STREAM's triad a[i] = b[i] + s c[i]; the line of a counts as read before it is written, as the memory sees it.
  double triad(kernels::Parallel& parallel) {
    const double start = seconds_now();
    parallel.for_chunks(static_cast<std::int64_t>(a_.size()), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      float *to = a_.data(), *left = b_.data(), *right = c_.data();
      for (std::int64_t i = begin; i < end; ++i) to[i] = left[i] + 3.0F * right[i];
    });
    return 4.0 * sizeof(float) * static_cast<double>(a_.size()) / (seconds_now() - start);
  }

  /// The sum of b and c, bits taken for integers: nothing is written, and a kernel that only reads can do no more. A
  /// chunk is read as kStreams runs side by side.
  double reading(kernels::Parallel& parallel) {
    constexpr std::int64_t kStreams = 4, kChunk = 1 << 16;
    const double start = seconds_now();
    std::atomic<std::uint64_t> all{0};
    for (const LargeArray* array : {&b_, &c_}) {
      parallel.for_chunks(std::ssize(*array), kChunk, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t run = (end - begin) / kStreams / 2;  // of pairs of floats
        std::uint64_t sums[kStreams] = {};
        for (std::int64_t i = 0; i < run; ++i)
          for (std::int64_t s = 0; s < kStreams; ++s) {
            std::uint64_t two;
            std::memcpy(&two, array->data() + begin + 2 * (s * run + i), sizeof two);
            sums[s] += two;
          }
        all += sums[0] + sums[1] + sums[2] + sums[3];
      });
    }
    read_ = all;
    return 2.0 * sizeof(float) * static_cast<double>(a_.size()) / (seconds_now() - start);
  }

 private:
  LargeArray a_, b_, c_;
  volatile std::uint64_t read_ = 0;
};

}  // namespace cleave::bench
