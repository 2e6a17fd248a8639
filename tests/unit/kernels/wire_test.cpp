// 16-bit wire types: every half there and back, ties to even, overflow, NaN, and bulk loops like the single
// conversions. mxint8 beside its definition.
#include "cleave/kernels/wire.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"

namespace cleave::kernels {
namespace {

/// The value of a 16-bit float, from its definition.
double value_of(std::uint16_t h, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (h >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = h & ((1 << mantissa_bits) - 1);
  const double sign = (h & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Format {
  DType type;
  int exponent_bits;
  std::uint16_t (*to)(float);
  float (*from)(std::uint16_t);
};
const Format kFormats[] = {{DType::bf16, 8, to_bf16, from_bf16}, {DType::f16, 5, to_f16, from_f16}};

TEST(Wire, Every16BitValueThereAndBack) {
  for (const auto& format : kFormats)
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto h = static_cast<std::uint16_t>(bits);
      const double value = value_of(h, format.exponent_bits);
      const float x = format.from(h);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(x));
        EXPECT_TRUE(std::isnan(format.from(format.to(x))));
        EXPECT_EQ(std::signbit(x), (h & 0x8000) != 0);
      } else {
        ASSERT_EQ(static_cast<double>(x), value) << bits;
        ASSERT_EQ(format.to(x), h) << bits;
      }
    }
}

/// Between neighbouring 16-bit values: nearer one wins, the tie goes to the even one.
TEST(Wire, RoundsToNearestEven) {
  for (const auto& format : kFormats) {
    const auto infinity = static_cast<std::uint32_t>(format.to(std::numeric_limits<float>::infinity()));
    for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {
      const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
      const double a = value_of(low, format.exponent_bits), b = value_of(high, format.exponent_bits);
      const auto middle = static_cast<float>((a + b) / 2);
      if (static_cast<double>(middle) != (a + b) / 2) continue;  // bf16 subnormals' middles are still exact; be sure
      ASSERT_EQ(format.to(middle), bits % 2 == 0 ? low : high) << bits;
      ASSERT_EQ(format.to(std::nextafter(middle, 0.0f)), low) << bits;
      ASSERT_EQ(format.to(std::nextafter(middle, std::numeric_limits<float>::infinity())), high) << bits;
      ASSERT_EQ(format.to(-middle), (bits % 2 == 0 ? low : high) | 0x8000) << bits;
    }
  }
}

TEST(Wire, Edges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_f16(to_f16(65504.0f)), 65504.0f);
  EXPECT_EQ(from_f16(to_f16(65519.99f)), 65504.0f);
  EXPECT_EQ(from_f16(to_f16(65520.0f)), kInfinity);
  EXPECT_EQ(from_f16(to_f16(-1e30f)), -kInfinity);
  EXPECT_EQ(from_bf16(to_bf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(to_f16(0x1p-25f), 0);
  EXPECT_EQ(to_f16(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(to_f16(-0.0f), 0x8000);
  for (const auto& format : kFormats)  // a NaN whose payload would be cut off must not become infinity
    EXPECT_TRUE(std::isnan(format.from(format.to(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Wire, BulkLoopsMatchSingleConversions) {
  const std::int64_t rows = 37, cols = 101, ld = 120;
  const Random random(3, Purpose::test);
  std::vector<float> x(static_cast<std::size_t>(rows * ld), -1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits(i)));
  for (const auto& format : kFormats) {
    std::vector<std::uint16_t> h(static_cast<std::size_t>(rows * 110), 12345);
    std::vector<float> back(x.size(), -1.0f), rounded = x;
    narrow(format.type, {x.data(), rows, cols, ld}, h.data(), 110);
    widen(format.type, h.data(), 110, {back.data(), rows, cols, ld});
    round_to(format.type, {rounded.data(), rows, cols, ld});
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < ld; ++j) {
        const auto at = static_cast<std::size_t>(i * ld + j);
        if (j < cols) {
          const std::uint16_t expected = format.to(x[at]);
          ASSERT_EQ(h[static_cast<std::size_t>(i * 110 + j)], expected);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(back[at]), std::bit_cast<std::uint32_t>(format.from(expected)));
          ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded[at]), std::bit_cast<std::uint32_t>(back[at]));
        } else {
          ASSERT_EQ(back[at], -1.0f);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded[at]), std::bit_cast<std::uint32_t>(x[at]));
        }
      }
    EXPECT_EQ(h[105], 12345);
  }
  EXPECT_THROW(round_to(DType::i32, {x.data(), rows, cols, ld}), Bug);
}

/// Element j of a row in mxint8, from the definition in cleave/kernels/wire.hpp.
double mx_value(const std::vector<float>& row, std::size_t j) {
  const std::size_t first = j / kMxBlock * kMxBlock, end = std::min(row.size(), first + kMxBlock);
  double top = 0;
  for (std::size_t i = first; i < end; ++i) top = std::max(top, std::abs(static_cast<double>(row[i])));
  const int exponent = std::max(top > 0 ? std::ilogb(top) : -1000, -120);
  const double n = std::nearbyint(std::ldexp(static_cast<double>(row[j]), 6 - exponent));
  return std::ldexp(std::clamp(n, -127.0, 127.0), exponent - 6);
}

TEST(Wire, Mxint8IsAsItsDefinitionSays) {
  const Random random(5, Purpose::test);
  std::uint64_t draw = 0;
  for (const std::int64_t cols : {1, 5, 31, 32, 33, 64, 100, 384}) {
    for (int scale = -36; scale <= 36; ++scale) {
      std::vector<float> row(static_cast<std::size_t>(cols));
      for (float& x : row)  // some blocks have elements of very different size, some ties
        x = std::ldexp(static_cast<float>(std::nearbyint(512 * (random.uniform(draw) - 0.5))),
                       3 * scale + static_cast<int>(random.bits(draw + 1) % 9));
      for (std::size_t j = 0; j < row.size(); ++j, draw += 2) row[j] *= j % 7 == 3 ? 0.0F : 1.0F;
      std::vector<float> rounded = row;
      round_to(DType::mxint8, {rounded.data(), 1, cols});
      for (std::size_t j = 0; j < row.size(); ++j) ASSERT_EQ(rounded[j], mx_value(row, j)) << cols << ' ' << j;
    }
  }
}

TEST(Wire, Mxint8TravelsAndRoundsAlike) {
  const std::int64_t rows = 9, cols = 101, ld = 120;
  const Random random(6, Purpose::test);
  std::vector<float> x(static_cast<std::size_t>(rows * ld), -1.0F);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::ldexp(static_cast<float>(random.uniform(i) - 0.5), static_cast<int>(i / 32 % 50) - 25);
  const std::int64_t bytes = row_bytes(DType::mxint8, cols);
  EXPECT_EQ(bytes, 108);  // 101 elements, 4 blocks, up to a multiple of four
  EXPECT_EQ(row_bytes(DType::mxint8, 5120), 5280);
  std::vector<std::byte> sent(static_cast<std::size_t>(rows * bytes), std::byte{0xEE});
  std::vector<float> came(x.size(), -1.0F), rounded = x, again;
  to_wire(DType::mxint8, {x.data(), rows, cols, ld}, sent.data());
  EXPECT_TRUE(all_finite(DType::mxint8, sent.data(), rows, cols));
  from_wire(DType::mxint8, sent.data(), {came.data(), rows, cols, ld});
  round_to(DType::mxint8, {rounded.data(), rows, cols, ld});
  again = rounded;
  round_to(DType::mxint8, {again.data(), rows, cols, ld});
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < ld; ++j) {
      const auto at = static_cast<std::size_t>(i * ld + j);
      const float expected = j < cols ? rounded[at] : -1.0F;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(came[at]), std::bit_cast<std::uint32_t>(expected));
      ASSERT_EQ(again[at], rounded[at]);
      if (j >= cols) { ASSERT_EQ(rounded[at], x[at]); }
    }
  }
  // Columns from a multiple of the block on give the same.
  std::vector<float> part = x;
  for (std::int64_t i = 0; i < rows; ++i) round_to(DType::mxint8, {part.data() + i * ld + 64, 1, cols - 64});
  for (std::int64_t j = 64; j < cols; ++j)
    ASSERT_EQ(part[static_cast<std::size_t>(j)], rounded[static_cast<std::size_t>(j)]);
}

TEST(Wire, Mxint8RefusesWhatNobodySends) {
  const std::int64_t cols = 70, bytes = row_bytes(DType::mxint8, cols);
  std::vector<float> x(static_cast<std::size_t>(cols), 0.5F);
  std::vector<std::byte> sent(static_cast<std::size_t>(bytes));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    x[40] = bad;
    to_wire(DType::mxint8, {x.data(), 1, cols}, sent.data());
    EXPECT_FALSE(all_finite(DType::mxint8, sent.data(), 1, cols));
    std::vector<float> came(x.size()), rounded = x;
    from_wire(DType::mxint8, sent.data(), {came.data(), 1, cols});
    round_to(DType::mxint8, {rounded.data(), 1, cols});
    for (std::size_t j = 0; j < x.size(); ++j) {  // of its block all, of others none
      EXPECT_EQ(std::isnan(came[j]), j >= 32 && j < 64);
      EXPECT_EQ(std::isnan(rounded[j]), j >= 32 && j < 64);
    }
  }
  x[40] = 0.5F;
  to_wire(DType::mxint8, {x.data(), 1, cols}, sent.data());
  ASSERT_TRUE(all_finite(DType::mxint8, sent.data(), 1, cols));
  const auto refused = [&](std::int64_t at, int value) {
    std::vector<std::byte> other = sent;
    other[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
    return !all_finite(DType::mxint8, other.data(), 1, cols);
  };
  EXPECT_TRUE(refused(3, 0x80));
  EXPECT_FALSE(refused(3, 0x81));
  EXPECT_TRUE(refused(cols, 255));
  EXPECT_FALSE(refused(cols, 254));
  EXPECT_TRUE(refused(cols + 2, 6));
  EXPECT_TRUE(refused(bytes - 1, 1));  // beyond the third block's scale
}

}  // namespace
}  // namespace cleave::kernels
