// The exponential that every softmax and activation uses: its stated error, its edges.
#include "fast_math.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace cleave::kernels {
namespace {

TEST(FastMath, ExpIsWithinItsStatedError) {
  double worst = 0;
  for (std::int64_t step = -1746600; step <= 1767400; ++step) {
    const auto x = static_cast<float>(step) * 5e-5f;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp_within(x) - exact) / exact);
    if (x <= 0) { ASSERT_EQ(exp_of_negative(x), exp_within(x)) << x; }
  }
  EXPECT_LT(worst, 1.5e-7);
}

TEST(FastMath, ExpAtTheEdges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of_negative(0.0f), 1.0f);
  EXPECT_EQ(exp_of_negative(-0.0f), 1.0f);
  EXPECT_EQ(exp_of_negative(-kInfinity), 0.0f);
  EXPECT_EQ(exp_of_negative(-88.0f), 0.0f);
  EXPECT_GT(exp_of_negative(-87.3f), 0.0f);
  EXPECT_TRUE(std::isnan(exp_of_negative(std::numeric_limits<float>::quiet_NaN())));
}

TEST(FastMath, Sigmoid) {
  for (double step = -79.9; step <= 85; step += 0.01) {
    const auto x = static_cast<float>(step);
    const double exact = 1 / (1 + std::exp(-static_cast<double>(x))), rest = 1 / (1 + std::exp(static_cast<double>(x)));
    EXPECT_NEAR(sigmoid_of(x).value, exact, 3e-7 * exact) << x;
    EXPECT_NEAR(sigmoid_of(x).complement, rest, 4e-7 * rest) << x;
  }
  EXPECT_LT(sigmoid_of(-1000.0f).value, 2e-35f);
  EXPECT_EQ(sigmoid_of(-1000.0f).complement, 1.0f);
  EXPECT_EQ(sigmoid_of(1000.0f).value, 1.0f);
  EXPECT_EQ(sigmoid_of(1000.0f).complement, sigmoid_of(87.0f).complement);
  EXPECT_LT(sigmoid_of(1000.0f).complement, 1.7e-38f);
  EXPECT_TRUE(std::isnan(sigmoid_of(std::numeric_limits<float>::quiet_NaN()).value));
}

}  // namespace
}  // namespace cleave::kernels
