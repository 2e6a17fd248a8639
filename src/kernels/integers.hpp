// Floating-point numbers to integers and back, element by element, written so that loops of them become vector code
// with the same bits on every instruction set: where a set has no conversion between floating-point numbers and 64-bit
// integers, adding powers of two ("magic numbers") does it, exactly or with the same single rounding.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "versions.hpp"

namespace cleave::kernels::quantize {

/// The nearest integer, ties to even, of |x| <= 2^62 with 24 significant bits.
CLEAVE_INLINE std::int64_t nearest_by_magic(double x) {
  constexpr double kUnits = 0x1.8p52;      // adding it rounds |x| < 2^51 to an integer, left in the low bits
  constexpr double kHighUnits = 0x1.8p84;  // the same for multiples of 2^32
  // x = high * 2^32 + low with |low| <= 2^31, both exact as x has 24 bits. The high part is even, so rounding the low
  // one rounds x.
  const double shifted = x + kHighUnits;
  const double low = x - (shifted - kHighUnits);
  const std::uint64_t high_bits = std::bit_cast<std::uint64_t>(shifted) - std::bit_cast<std::uint64_t>(kHighUnits);
  const std::uint64_t low_bits = std::bit_cast<std::uint64_t>(low + kUnits) - std::bit_cast<std::uint64_t>(kUnits);
  return static_cast<std::int64_t>((high_bits << 32) + low_bits);
}

/// x rounded to a whole number, ties to even. From 2^23 on every float is whole.
CLEAVE_INLINE float whole(float x) {
  const float shift = std::copysign(0x1p23f, x);
  return std::abs(x) < 0x1p23f ? (x + shift) - shift : x;
}

CLEAVE_INLINE void nearest(float x, std::int32_t& q) { q = static_cast<std::int32_t>(whole(x)); }
CLEAVE_INLINE void nearest(float x, std::int64_t& q) { q = nearest_by_magic(static_cast<double>(x)); }

CLEAVE_INLINE double to_double(std::int32_t q) { return static_cast<double>(q); }
CLEAVE_INLINE double to_double(std::int64_t q) {
  // The halves of q under the mantissas of 2^84 and 2^52: the subtraction is exact, the addition rounds once.
  const auto bits = static_cast<std::uint64_t>(q);
  const double low = std::bit_cast<double>((bits & 0xffffffffu) | 0x4330000000000000u);
  const double high = std::bit_cast<double>(((bits >> 32) ^ 0x80000000u) | 0x4530000000000000u);
  return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

/// Sums of honest results cannot overflow, but what others sent may: wrap around.
template <class Int>
CLEAVE_INLINE Int wrapping_add(Int a, Int b) {
  using Unsigned = std::make_unsigned_t<Int>;
  return static_cast<Int>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
}

}  // namespace cleave::kernels::quantize
