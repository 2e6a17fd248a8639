// Sums of gradients in units: without the scale of the loss, and refused where units do not reach.
#include "cleave/kernels/token_sums.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace cleave::kernels {
namespace {

TEST(TokenSums, AreAddedInUnitsWithoutTheScaleOfTheLoss) {
  const std::array<float, 3> values{1.5f, -0.25f, 0x1p-50f};
  std::array<std::int64_t, 3> sums{0, 0, 5};
  ASSERT_EQ(add_to_token_sums(values, sums), ProductStatus::ok);
  EXPECT_EQ(sums, (std::array<std::int64_t, 3>{std::int64_t{3} << 49, -(std::int64_t{1} << 48), 6}));
  const std::array<float, 3> scaled{1.5f * 1024, -0.25f * 1024, 0x1p-40f};
  ASSERT_EQ(add_to_token_sums(scaled, sums, 10), ProductStatus::ok);
  std::array<float, 3> finished{};
  finish_token_sums(sums, finished);
  EXPECT_EQ(finished, (std::array<float, 3>{3.0f, -0.5f, 7 * 0x1p-50f}));
}

TEST(TokenSums, RefuseWhatUnitsDoNotReach) {
  for (const float large : {1024.0f, -1024.0f, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::array<std::int64_t, 1> sum{7};
    EXPECT_EQ(add_to_token_sums(std::array<float, 1>{large}, sum), ProductStatus::not_representable) << large;
    EXPECT_EQ(sum[0], 7);
  }
  std::array<std::int64_t, 1> sum{0};
  EXPECT_EQ(add_to_token_sums(std::array<float, 1>{1023.0f}, sum), ProductStatus::ok);
  EXPECT_EQ(add_to_token_sums(std::array<float, 1>{2046.0f}, sum, 1), ProductStatus::ok);  // without its scale
}

}  // namespace
}  // namespace cleave::kernels
