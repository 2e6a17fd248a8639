// Conversions to and from 16 bits against their definition: the nearest representable value, ties to even.
#include "cleave/base/half.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cleave/base/random.hpp"

namespace cleave {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The value that a half stands for, by the formula of IEEE 754.
double value_of_f16(int bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? HUGE_VAL : NAN)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) ? -magnitude : magnitude;
}

TEST(Half, EveryF16HasItsValueAndComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f16_to_f32(half);
    if (std::isnan(value_of_f16(bits))) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), value_of_f16(bits)) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    ASSERT_EQ(f32_to_f16(value), half) << bits;
  }
}

TEST(Half, BetweenTwoF16TheNearerOneAndTheEvenOneOnATie) {
  for (int bits = 0; bits < 0x7BFF; ++bits) {
    const double low = value_of_f16(bits), high = value_of_f16(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact: one bit more
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(f32_to_f16(middle), even) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, kInfinity)), bits + 1) << bits;
    ASSERT_EQ(f32_to_f16(-middle), even | 0x8000) << bits;
  }
}

TEST(Half, F16PastTheRange) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(kInfinity), 0x7C00);
  EXPECT_EQ(f32_to_f16(-kInfinity), 0xFC00);
  EXPECT_EQ(f32_to_f16(-1e-30f), 0x8000);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Half, EveryBf16ComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      ASSERT_EQ(f32_to_bf16(value), bits);
    }
  }
}

TEST(Half, Bf16RoundsToTheNearestAndToEvenOnATie) {
  for (int bits = 0; bits < 0x7F80; ++bits) {
    const auto middle = std::bit_cast<float>((static_cast<std::uint32_t>(bits) << 16) | 0x8000u);
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(f32_to_bf16(middle), even) << bits;
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, kInfinity)), bits + 1) << bits;
  }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Half, NanWithItsBitsInTheLowerHalfStaysNan) {
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0xFFFFFFFFu)))));
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Half, ErrorIsAtMostHalfAUnit) {
  const Random random(3, Purpose::test);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const auto value = static_cast<float>(random.normal(i) * std::exp2(static_cast<double>(random.below(i, 24)) - 12));
    EXPECT_LE(std::abs(f16_to_f32(f32_to_f16(value)) - value), std::max(std::abs(value) * 0x1.0p-11f, 0x1.0p-25f));
    EXPECT_LE(std::abs(bf16_to_f32(f32_to_bf16(value)) - value), std::abs(value) * 0x1.0p-8f);
  }
}

}  // namespace
}  // namespace cleave
