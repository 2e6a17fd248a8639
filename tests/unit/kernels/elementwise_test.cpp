// Additions, biases and rotary embedding.
#include "cleave/kernels/elementwise.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cleave/base/error.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;

TEST(Elementwise, BiasAndResidual) {
  const std::int64_t rows = 41, cols = 133, ld = 140;
  const Floats x = noise(rows * ld, 1), y = noise(rows * ld, 2), bias = noise(cols, 3);
  Floats biased = x, sum(x.size(), 7.0f), into = x;
  Parallel two(2);
  add_bias(two, {biased.data(), rows, cols, ld}, bias.data());
  add(two, ConstRows(x.data(), rows, cols, ld), ConstRows(y.data(), rows, cols, ld), {sum.data(), rows, cols, ld});
  accumulate(two, ConstRows(y.data(), rows, cols, ld), {into.data(), rows, cols, ld});
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < ld; ++j) {
      const auto at = static_cast<std::size_t>(i * ld + j);
      ASSERT_EQ(biased[at], j < cols ? x[at] + bias[static_cast<std::size_t>(j)] : x[at]);
      ASSERT_EQ(sum[at], j < cols ? x[at] + y[at] : 7.0f);
      ASSERT_EQ(into[at], j < cols ? x[at] + y[at] : x[at]);
    }
}

TEST(Elementwise, BiasGradientSumsColumns) {
  for (const std::int64_t rows : {0, 1, 64, 65, 5000}) {
    const std::int64_t cols = 301, ld = 303;
    const Floats dy = noise(rows * ld, 4, 1, 0.5);
    Floats d_bias(static_cast<std::size_t>(cols), 9.0f);
    Parallel two(2);
    bias_gradient(two, {dy.data(), rows, cols, ld}, d_bias.data());
    for (std::int64_t j = 0; j < cols; ++j) {
      double exact = 0, size = 0;
      for (std::int64_t i = 0; i < rows; ++i) {
        exact += dy[static_cast<std::size_t>(i * ld + j)];
        size += std::abs(dy[static_cast<std::size_t>(i * ld + j)]);
      }
      ASSERT_NEAR(d_bias[static_cast<std::size_t>(j)], exact, 3e-7 * size + 1e-30);
    }
  }
  expect_same_bits_for_any_threads([](Parallel& parallel) {
    const Floats dy = noise(500 * 1100, 5);
    Floats d_bias(1100);
    bias_gradient(parallel, {dy.data(), 500, 1100}, d_bias.data());
    return d_bias;
  });
}

// 64 rows at a time one after the other in fp32, these sums in double.
TEST(Elementwise, BiasGradientHasTheBitsOfTheDefinition) {
  const std::int64_t cols = 1301, ld = 1310;
  for (const std::int64_t rows : {1, 3, 4, 7, 63, 64, 67, 330}) {
    const Floats dy = noise(rows * ld, 6, 1, 0.5);
    Floats expected(static_cast<std::size_t>(cols)), d_bias(expected);
    for (std::int64_t j = 0; j < cols; ++j) {
      double total = 0;
      for (std::int64_t block = 0; block < rows; block += 64) {
        float sum = 0;
        for (std::int64_t i = block; i < std::min(rows, block + 64); ++i)
          sum += dy[static_cast<std::size_t>(i * ld + j)];
        total += static_cast<double>(sum);
      }
      expected[static_cast<std::size_t>(j)] = static_cast<float>(total);
    }
    Parallel two(2);
    bias_gradient(two, {dy.data(), rows, cols, ld}, d_bias.data());
    EXPECT_EQ(d_bias, expected) << rows << " rows";
  }
}

TEST(Elementwise, RopeRotatesPairsOfHalves) {
  const std::int64_t seq = 50, batch = 3, heads = 4, hd = 12, ld = heads * hd + 5;
  const double theta = 10000;
  const Floats x = noise(batch * seq * ld, 6);
  Floats y = x;
  const RopeTable table(seq, hd, theta);
  Parallel two(2);
  rope(two, table, Rotate::forward, {y.data(), batch * seq, heads * hd, ld});
  for (std::int64_t r = 0; r < batch * seq; ++r)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < hd / 2; ++i) {
        const double angle = static_cast<double>(r % seq) * std::pow(theta, -2.0 * static_cast<double>(i) / hd);
        const auto first = static_cast<std::size_t>(r * ld + h * hd + i), second = first + hd / 2;
        ASSERT_NEAR(y[first], x[first] * std::cos(angle) - x[second] * std::sin(angle), 1e-6);
        ASSERT_NEAR(y[second], x[second] * std::cos(angle) + x[first] * std::sin(angle), 1e-6);
      }
  EXPECT_EQ(y[heads * hd], x[heads * hd]);  // outside the view
  // The backward rotation is the transpose: <rope(x), d> = <x, rope_backward(d)>, and undoes the forward one.
  Floats d = noise(batch * seq * ld, 7), back = y;
  const Floats before = d;
  rope(two, table, Rotate::backward, {d.data(), batch * seq, heads * hd, ld});
  rope(two, table, Rotate::backward, {back.data(), batch * seq, heads * hd, ld});
  double left = 0, right = 0;
  for (std::int64_t r = 0; r < batch * seq; ++r)
    for (std::int64_t j = 0; j < heads * hd; ++j) {
      const auto at = static_cast<std::size_t>(r * ld + j);
      left += static_cast<double>(y[at]) * before[at];
      right += static_cast<double>(x[at]) * d[at];
      ASSERT_NEAR(back[at], x[at], 1e-6);
    }
  EXPECT_NEAR(left, right, 1e-5 * std::abs(left) + 1e-4);
  EXPECT_THROW(rope(two, table, Rotate::forward, {y.data(), 1, 13, ld}), Bug);
  EXPECT_THROW(RopeTable(4, 7, theta), Bug);
}

TEST(Elementwise, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads([](Parallel& parallel) {
    Floats x = noise(600 * 256, 8);
    rope(parallel, RopeTable(100, 64, 500), Rotate::forward, {x.data(), 600, 256});
    add_bias(parallel, {x.data(), 600, 256}, noise(256, 9).data());
    return x;
  });
}

}  // namespace
}  // namespace cleave::kernels
