// The counter-based generator: published vectors, and that a value depends on nothing but its address.
#include "cleave/base/random.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace cleave {
namespace {

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, StreamsDiffer) {
  const Random a(1, Purpose::churn), b(1, Purpose::jitter), c(2, Purpose::churn), d(1, Purpose::churn, 1);
  EXPECT_NE(a.bits(0), b.bits(0));
  EXPECT_NE(a.bits(0), c.bits(0));
  EXPECT_NE(a.bits(0), d.bits(0));
  EXPECT_EQ(a.bits(7), Random(1, Purpose::churn).bits(7));
}

TEST(Random, Moments) {
  const Random r(42, Purpose::test);
  double mean = 0, square = 0, uniform = 0, exponential = 0;
  constexpr int kCount = 200000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    mean += r.normal(i);
    square += r.normal(i) * r.normal(i);
    uniform += r.uniform(i);
    exponential += r.exponential(i);
    ASSERT_LT(r.below(i, 10), 10U);
  }
  EXPECT_NEAR(mean / kCount, 0.0, 0.01);
  EXPECT_NEAR(square / kCount, 1.0, 0.02);
  EXPECT_NEAR(uniform / kCount, 0.5, 0.005);
  EXPECT_NEAR(exponential / kCount, 1.0, 0.01);
}

}  // namespace
}  // namespace cleave
