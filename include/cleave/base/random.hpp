// Counter-based random numbers: a pure function of (seed, purpose, index), never of call order or thread.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Every use has a Purpose of
// its own, so that adding a draw in one place changes no draw in another.
#pragma once

#include <array>
#include <cstdint>

namespace cleave {

/// What a stream is for. Values are part of the same-bits guarantee: append, never renumber.
enum class Purpose : std::uint32_t {
  parameter_init = 1,
  batch_offset = 2,
  device_profile = 3,
  churn = 4,
  verification = 5,
  generation = 6,
  jitter = 7,
  test = 8,
  evaluation = 9,
  rivals = 10,
  planning = 11,
};

/// The Philox4x32-10 block function: 128 bits of output for a 128-bit counter and a 64-bit key.
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key);

/// A stream of random values addressed by index.
class Random {
 public:
  /// `stream` tells apart several streams of one purpose (a tensor, a device, a step).
  constexpr Random(std::uint64_t seed, Purpose purpose, std::uint32_t stream = 0)
      : seed_(seed), purpose_(purpose), stream_(stream) {}

  [[nodiscard]] std::uint64_t bits(std::uint64_t index) const;                        ///< 64 random bits
  [[nodiscard]] double uniform(std::uint64_t index) const;                            ///< in [0, 1), 53 bits
  [[nodiscard]] std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;  ///< in [0, bound); bound > 0
  [[nodiscard]] double normal(std::uint64_t index) const;       ///< mean 0, variance 1 (Box-Muller)
  [[nodiscard]] double exponential(std::uint64_t index) const;  ///< mean 1

 private:
  std::uint64_t seed_;
  Purpose purpose_;
  std::uint32_t stream_;
};

}  // namespace cleave
