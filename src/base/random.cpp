// Philox4x32-10 and the distributions on top of it.
#include "cleave/base/random.hpp"

#include <cmath>
#include <numbers>

namespace cleave {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = kMultiplier0 * counter[0], p1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::uint64_t Random::bits(std::uint64_t index) const {
  const auto block = philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), stream_,
                             static_cast<std::uint32_t>(purpose_)},
                            {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  return (static_cast<std::uint64_t>(block[1]) << 32) | block[0];
}

double Random::uniform(std::uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1.0p-53; }

std::uint64_t Random::below(std::uint64_t index, std::uint64_t bound) const {
  // Multiply-shift: the bias is bound / 2^64, below anything that could be noticed.
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(bits(index)) * bound) >> 64);
}

double Random::normal(std::uint64_t index) const {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(2 * index)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(2 * index + 1));
}

double Random::exponential(std::uint64_t index) const { return -std::log(1.0 - uniform(index)); }

}  // namespace cleave
