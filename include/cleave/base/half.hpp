// One number at a time between fp32 and the two 16-bit float types, as bit patterns. Round to nearest, ties to even.
//
// For files and tests; `kernels` has what converts whole blocks. Infinities stay, NaNs stay NaNs of the same sign,
// values past the range become infinities, and values below it subnormals or zeros of the same sign.
#pragma once

#include <bit>
#include <cstdint>

namespace cleave {

/// bf16 is the upper half of an fp32: 8 exponent and 7 fraction bits.
constexpr std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  // Half a unit in the last place less one, and one more where that place is odd, carries just where rounding goes up.
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float bf16_to_f32(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// IEEE binary16: 5 exponent bits (bias 15) and 10 fraction bits.
constexpr std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  const auto signed_half = [sign](std::uint32_t half) { return static_cast<std::uint16_t>(sign | half); };
  if (magnitude > 0x7F800000u) return signed_half(0x7E00u);   // NaN
  if (magnitude >= 0x477FF000u) return signed_half(0x7C00u);  // 65520 and above round to infinity
  if (magnitude >= 0x38800000u) {                             // 2^-14 and above: a normal half
    const std::uint32_t rebased = magnitude - (112u << 23);   // exponent bias 127 to 15
    return signed_half((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13);
  }
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent < 102u) return signed_half(0);  // below 2^-25, half the smallest subnormal
  // A subnormal half counts units of 2^-24; the fp32 significand counts units of 2^(exponent - 150).
  const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u, shift = 126u - exponent;  // 14 to 24
  const std::uint32_t units = significand >> shift, rest = significand & ((1u << shift) - 1u);
  const std::uint32_t half_unit = 1u << (shift - 1u);
  return signed_half(units + (rest > half_unit || (rest == half_unit && (units & 1u)) ? 1u : 0u));
}

constexpr float f16_to_f32(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1Fu, fraction = value & 0x3FFu;
  if (exponent == 31u) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  if (exponent != 0u) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  const float units = static_cast<float>(fraction) * 0x1.0p-24f;  // zero or subnormal; exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(units));
}

}  // namespace cleave
