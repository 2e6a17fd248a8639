// exp and the logistic function in fp32, to the same bits on every machine: IEEE additions and multiplications only, so
// that neither the version of the C library nor the instruction set shows in a trained parameter.
//
// Branch-free, to be inlined into loops that the compiler turns into vector code.
#pragma once

#include <bit>
#include <cstdint>

#include "versions.hpp"

namespace cleave::kernels {

/// Below it e^x is no normal number.
inline constexpr float kLeastExponent = -87.33f;

/// e^x with a relative error below 1.5e-7 (1.3 units in the last place). NaN stays NaN.
/// Requires: kLeastExponent <= x <= 88.37, or NaN.
CLEAVE_INLINE float exp_within(float x) {
  // x = n ln2 + r, |r| <= ln2/2. n comes from adding 1.5 * 2^23, which rounds to a whole number; ln2 is split so that
  // n * kLn2High is exact.
  constexpr float kLog2E = 1.44269504088896341f, kRound = 0x1.8p23f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440054690583e-4f;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
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
  return p * std::bit_cast<float>(power);
}

/// e^x for x <= 0, as exactly; 0 below kLeastExponent (no subnormal results).
CLEAVE_INLINE float exp_of_negative(float x) {
  const float y = exp_within(x < kLeastExponent ? kLeastExponent : x);
  return x < kLeastExponent ? 0.0f : y;
}

/// s = 1 / (1 + e^-x) and 1 - s, the latter without cancellation. tanh(x) = 2 s(2x) - 1.
/// Below x = -80 they are those of -80, above 87 those of 87: s is 1.8e-35 or more, so that products with it stay free
/// of infinity times zero, and 1 - s is 1.6e-38 or more.
struct Sigmoid {
  float value, complement;
};
CLEAVE_INLINE Sigmoid sigmoid_of(float x) {
  const float low = x < -80.0f ? -80.0f : x;
  const float e = exp_within(-(low > 87.0f ? 87.0f : low));
  const float value = 1.0f / (1.0f + e);
  return {value, e * value};
}

}  // namespace cleave::kernels
