// Blocks by integer arithmetic and multiplications by powers of two, which are exact: the same bits on any instruction
// set.
#include "mxint8.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "cleave/base/shapes.hpp"
#include "versions.hpp"

namespace cleave::kernels::mxint8 {

namespace {

using std::bit_cast;

constexpr std::uint32_t kNotFinite = 255;   // E of a block with an infinity or a NaN
constexpr std::uint32_t kLeast = 7;         // E: with less, 2^(E - 127 - 6) would be no normal number
constexpr std::uint32_t kFractionBits = 6;  // n counts 2^-6 of the block's power of two
constexpr float kNearest = 0x1.8p23F;       // adding and subtracting it rounds |x| < 2^22 to an integer
constexpr float kMost = 127;

// E of a block: the exponent field of its largest element.
CLEAVE_INLINE std::uint32_t exponent_of(const float* x, std::int64_t count) {
  std::uint32_t top = 0;
  for (std::int64_t j = 0; j < count; ++j) top = std::max(top, bit_cast<std::uint32_t>(x[j]) & 0x7fffffffU);
  return std::max(top >> 23U, kLeast);
}
// 2^(E - 127 - 6), and its inverse.
CLEAVE_INLINE float unit_of(std::uint32_t exponent) { return bit_cast<float>((exponent - kFractionBits) << 23U); }
CLEAVE_INLINE float inverse_of(std::uint32_t exponent) {
  return bit_cast<float>((254 + kFractionBits - exponent) << 23U);
}
CLEAVE_INLINE float counted(float x, float inverse) {
  const float n = x * inverse + kNearest - kNearest;
  return std::min(std::max(n, -kMost), kMost);
}

CLEAVE_INLINE void encode(const float* x, std::int64_t columns, std::int8_t* to, std::uint8_t* exponents) {
  for (std::int64_t first = 0; first < columns; first += kMxBlock) {
    const std::int64_t count = std::min(kMxBlock, columns - first);
    const std::uint32_t exponent = exponent_of(x + first, count);
    *exponents++ = static_cast<std::uint8_t>(exponent);
    const float inverse = exponent == kNotFinite ? 0.0F : inverse_of(exponent);
    for (std::int64_t j = first; j < first + count; ++j) {
      // A NaN of a block that is NaN anyway must not be converted.
      const float n = exponent == kNotFinite ? 0.0F : counted(x[j], inverse);
      to[j] = static_cast<std::int8_t>(static_cast<std::int32_t>(n));
    }
  }
}

CLEAVE_INLINE void decode(const std::int8_t* from, const std::uint8_t* exponents, std::int64_t columns, float* x) {
  for (std::int64_t first = 0; first < columns; first += kMxBlock) {
    const std::int64_t count = std::min(kMxBlock, columns - first);
    const std::uint32_t exponent = *exponents++;
    const float unit = exponent == kNotFinite ? std::numeric_limits<float>::quiet_NaN()
                                              : unit_of(std::max<std::uint32_t>(exponent, kLeast));
    for (std::int64_t j = first; j < first + count; ++j) x[j] = static_cast<float>(from[j]) * unit;
  }
}

CLEAVE_INLINE void round(float* x, std::int64_t columns) {
  for (std::int64_t first = 0; first < columns; first += kMxBlock) {
    const std::int64_t count = std::min(kMxBlock, columns - first);
    const std::uint32_t exponent = exponent_of(x + first, count);
    if (exponent == kNotFinite) {
      std::fill_n(x + first, count, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const float inverse = inverse_of(exponent), unit = unit_of(exponent);
    for (std::int64_t j = first; j < first + count; ++j) x[j] = counted(x[j], inverse) * unit;
  }
}

std::int64_t blocks_of(std::int64_t columns) { return (columns + kMxBlock - 1) / kMxBlock; }

}  // namespace

void encode_row(const float* x, std::int64_t columns, std::byte* to) {
  auto* const exponents = reinterpret_cast<std::uint8_t*>(to) + columns;
  dispatch<encode>(x, columns, reinterpret_cast<std::int8_t*>(to), exponents);
  std::uint8_t* const end = exponents + blocks_of(columns);
  std::fill(end, reinterpret_cast<std::uint8_t*>(to) + row_bytes(DType::mxint8, columns), std::uint8_t{0});
}

void decode_row(const std::byte* from, std::int64_t columns, float* x) {
  dispatch<decode>(reinterpret_cast<const std::int8_t*>(from), reinterpret_cast<const std::uint8_t*>(from) + columns,
                   columns, x);
}

void round_row(float* x, std::int64_t columns) { dispatch<round>(x, columns); }

bool is_well_formed(const std::byte* from, std::int64_t columns) {
  const std::byte* const exponents = from + columns;
  const std::byte* const end = exponents + blocks_of(columns);
  return std::none_of(from, exponents, [](std::byte n) { return n == std::byte{0x80}; }) &&
         std::none_of(exponents, end,
                      [](std::byte e) { return e == std::byte{kNotFinite} || e < std::byte{kLeast}; }) &&
         std::all_of(end, from + row_bytes(DType::mxint8, columns), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace cleave::kernels::mxint8
