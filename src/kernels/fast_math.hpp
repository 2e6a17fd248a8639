// exp and the logistic function in fp32, to the same bits on every machine: IEEE additions and multiplications only, so
// that neither the version of the C library nor the instruction set shows in a trained parameter.
//
// Branch-free, to be inlined into loops that the compiler turns into vector code.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "clones.hpp"

namespace cleave::kernels {

/// e^x with a relative error below 1.5e-7 (1.3 units in the last place) where the result is a normal number.
/// Below -87.33 it is 0 (no subnormal results), above 88.37 infinity; NaN stays NaN.
CLEAVE_INLINE float exp_of(float x) {
  // x = n ln2 + r, |r| <= ln2/2. n comes from adding 1.5 * 2^23, which rounds to a whole number; ln2 is split so that
  // n * kLn2High is exact.
  constexpr float kLog2E = 1.44269504088896341f, kRound = 0x1.8p23f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440054690583e-4f;
  const float low = x < -87.33f ? -87.33f : x;
  const float bounded = low > 88.37f ? 88.37f : low;
  const float shifted = bounded * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * kLn2High) - n * kLn2Low;
  // Taylor's series to r^7: the next term is below 5.2e-9 for |r| <= ln2/2.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * (r * r) + r) + 1.0f;
  // 2^n: n is in the low bits of `shifted`, and goes into the exponent.
  const std::uint32_t power = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23;
  const float y = p * std::bit_cast<float>(power);
  const float not_small = x < -87.33f ? 0.0f : y;
  return x > 88.37f ? std::numeric_limits<float>::infinity() : not_small;
}

/// s = 1 / (1 + e^-x) and 1 - s, the latter without cancellation. tanh(x) = 2 s(2x) - 1.
/// Below x = -80 they are those of -80: s = 1.8e-35, so that products with s stay free of infinity times zero.
struct Sigmoid {
  float value, complement;
};
CLEAVE_INLINE Sigmoid sigmoid_of(float x) {
  const float e = exp_of(-(x < -80.0f ? -80.0f : x));
  const float value = 1.0f / (1.0f + e);
  return {value, e * value};
}

}  // namespace cleave::kernels
