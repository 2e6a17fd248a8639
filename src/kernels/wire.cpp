// Conversions by integer arithmetic without branches, so that they become vector code on any instruction set.
#include "cleave/kernels/wire.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cleave/base/error.hpp"
#include "cleave/kernels/product_check.hpp"
#include "mxint8.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

using std::bit_cast;

struct Bf16Bits {
  CLEAVE_INLINE static std::uint16_t narrow(float x) {
    const auto bits = bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
  CLEAVE_INLINE static float widen(std::uint16_t h) {
    const std::uint32_t bits = static_cast<std::uint32_t>(h) << 16;
    return bit_cast<float>((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : bits);
  }
};

struct F16Bits {
  CLEAVE_INLINE static std::uint16_t narrow(float x) {
    const auto bits = bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Normal result: exponent bias 127 to 15, round the 13 bits that go; the carry may run into the exponent, up to
    // infinity.
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14 results are multiples of 2^-24, which is the last place of 0.5: adding 0.5 rounds to them.
    const std::uint32_t subnormal =
        bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - bit_cast<std::uint32_t>(0.5f);
    const std::uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    std::uint32_t h = magnitude < 0x38800000u ? subnormal : normal;
    h = magnitude >= 0x47800000u ? 0x7c00u : h;  // 65536 and above
    h = magnitude > 0x7f800000u ? quiet_nan : h;
    return static_cast<std::uint16_t>(sign | h);
  }
  CLEAVE_INLINE static float widen(std::uint16_t h) {
    const std::uint32_t sign = (static_cast<std::uint32_t>(h) & 0x8000u) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(h) & 0x7fffu;
    // The bits as those of an fp32 number, 2^112 too small; exact, subnormals too.
    const auto finite = bit_cast<std::uint32_t>(bit_cast<float>(magnitude << 13) * 0x1p112f);
    const std::uint32_t special = 0x7f800000u | (magnitude << 13);
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return bit_cast<float>(sign | (magnitude >= 0x7c00u ? special | quiet : finite));
  }
};

CLEAVE_INLINE void narrow_bf16(const float* from, std::int64_t n, std::uint16_t* to) {
  for (std::int64_t j = 0; j < n; ++j) to[j] = Bf16Bits::narrow(from[j]);
}
CLEAVE_INLINE void narrow_f16(const float* from, std::int64_t n, std::uint16_t* to) {
  for (std::int64_t j = 0; j < n; ++j) to[j] = F16Bits::narrow(from[j]);
}
CLEAVE_INLINE void widen_bf16(const std::uint16_t* from, std::int64_t n, float* to) {
  for (std::int64_t j = 0; j < n; ++j) to[j] = Bf16Bits::widen(from[j]);
}
CLEAVE_INLINE void widen_f16(const std::uint16_t* from, std::int64_t n, float* to) {
  for (std::int64_t j = 0; j < n; ++j) to[j] = F16Bits::widen(from[j]);
}
CLEAVE_INLINE void round_bf16(float* x, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) x[j] = Bf16Bits::widen(Bf16Bits::narrow(x[j]));
}
CLEAVE_INLINE void round_f16(float* x, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) x[j] = F16Bits::widen(F16Bits::narrow(x[j]));
}

void check_narrow(DType type) {
  CLEAVE_ASSERT(type == DType::bf16 || type == DType::f16, "{} is not a 16-bit type", name_of(type));
}

}  // namespace

std::uint16_t to_bf16(float x) { return Bf16Bits::narrow(x); }
std::uint16_t to_f16(float x) { return F16Bits::narrow(x); }
float from_bf16(std::uint16_t bits) { return Bf16Bits::widen(bits); }
float from_f16(std::uint16_t bits) { return F16Bits::widen(bits); }

void narrow(DType type, ConstRows from, std::uint16_t* to, std::int64_t to_ld) {
  check_narrow(type);
  const auto convert = type == DType::bf16 ? narrow_bf16 : narrow_f16;
  for (std::int64_t i = 0; i < from.rows; ++i) convert(from.row(i), from.cols, to + i * to_ld);
}

void widen(DType type, const std::uint16_t* from, std::int64_t from_ld, Rows to) {
  check_narrow(type);
  const auto convert = type == DType::bf16 ? widen_bf16 : widen_f16;
  for (std::int64_t i = 0; i < to.rows; ++i) convert(from + i * from_ld, to.cols, to.row(i));
}

void round_to(DType type, Rows x) {
  if (type == DType::f32) return;
  if (type == DType::mxint8) {
    for (std::int64_t i = 0; i < x.rows; ++i) mxint8::round_row(x.row(i), x.cols);
    return;
  }
  check_narrow(type);
  const auto convert = type == DType::bf16 ? round_bf16 : round_f16;
  for (std::int64_t i = 0; i < x.rows; ++i) convert(x.row(i), x.cols);
}

void to_wire(DType type, ConstRows from, std::byte* to) {
  if (type == DType::mxint8) {
    for (std::int64_t i = 0; i < from.rows; ++i, to += row_bytes(type, from.cols))
      mxint8::encode_row(from.row(i), from.cols, to);
    return;
  }
  if (type != DType::f32) return narrow(type, from, reinterpret_cast<std::uint16_t*>(to), from.cols);
  const auto bytes = static_cast<std::size_t>(from.cols) * sizeof(float);
  for (std::int64_t i = 0; i < from.rows; ++i, to += bytes) std::memcpy(to, from.row(i), bytes);
}

void from_wire(DType type, const std::byte* from, Rows to) {
  if (type == DType::mxint8) {
    for (std::int64_t i = 0; i < to.rows; ++i, from += row_bytes(type, to.cols))
      mxint8::decode_row(from, to.cols, to.row(i));
    return;
  }
  if (type != DType::f32) return widen(type, reinterpret_cast<const std::uint16_t*>(from), to.cols, to);
  const auto bytes = static_cast<std::size_t>(to.cols) * sizeof(float);
  for (std::int64_t i = 0; i < to.rows; ++i, from += bytes) std::memcpy(to.row(i), from, bytes);
}

bool all_finite(DType type, const std::byte* from, std::int64_t rows, std::int64_t columns) {
  if (type != DType::mxint8) return all_representable(type, from, rows * columns);
  for (std::int64_t i = 0; i < rows; ++i, from += row_bytes(type, columns)) {
    if (!mxint8::is_well_formed(from, columns)) return false;
  }
  return true;
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

}  // namespace cleave::kernels
