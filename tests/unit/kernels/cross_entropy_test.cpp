// Cross-entropy against its definition in double, its gradient against finite differences, same bits for any threads.
#include "cleave/kernels/cross_entropy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cleave/base/error.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;
using Doubles = std::vector<double>;

double exact_loss(const Doubles& row, std::int32_t target) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const double x : row) sum += std::exp(x - top);
  return std::log(sum) + top - row[static_cast<std::size_t>(target)];
}

std::vector<std::int32_t> targets_for(std::int64_t rows, std::int64_t vocabulary) {
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < rows; ++i) targets.push_back(static_cast<std::int32_t>((i * 7919 + 3) % vocabulary));
  return targets;
}

TEST(CrossEntropy, LossMatchesTheDefinition) {
  for (const std::int64_t vocabulary : {1, 2, 15, 16, 257, 512, 513, 50257}) {
    const std::int64_t rows = 37, ld = vocabulary + 3;
    const Floats logits = noise(rows * ld, 1, 3, 2);
    const auto targets = targets_for(rows, vocabulary);
    double exact = 0;
    for (std::int64_t i = 0; i < rows; ++i)
      exact += exact_loss({logits.begin() + i * ld, logits.begin() + i * ld + vocabulary},
                          targets[static_cast<std::size_t>(i)]);
    Parallel two(2);
    EXPECT_NEAR(cross_entropy(two, {logits.data(), rows, vocabulary, ld}, targets), exact,
                2e-7 * static_cast<double>(rows) * (1 + exact / static_cast<double>(rows)));
    Floats gradient = logits;
    const double loss = cross_entropy_backward(two, {gradient.data(), rows, vocabulary, ld}, targets, 1.0f);
    EXPECT_EQ(loss, cross_entropy(two, {logits.data(), rows, vocabulary, ld}, targets));
    EXPECT_EQ(gradient[static_cast<std::size_t>(vocabulary)], logits[static_cast<std::size_t>(vocabulary)]);
  }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  const std::int64_t rows = 20, vocabulary = 29;
  const Floats logits = noise(rows * vocabulary, 2, 2);
  const auto targets = targets_for(rows, vocabulary);
  const float scale = 1.0f / static_cast<float>(rows);
  Floats gradient = logits;
  Parallel two(2);
  (void)cross_entropy_backward(two, {gradient.data(), rows, vocabulary}, targets, scale);
  for (std::int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < vocabulary; ++j) {
      Doubles up(logits.begin() + i * vocabulary, logits.begin() + (i + 1) * vocabulary), down = up;
      constexpr double kStep = 1e-5;
      up[static_cast<std::size_t>(j)] += kStep;
      down[static_cast<std::size_t>(j)] -= kStep;
      const std::int32_t target = targets[static_cast<std::size_t>(i)];
      const double slope =
          (exact_loss(up, target) - exact_loss(down, target)) / (2 * kStep) * static_cast<double>(scale);
      ASSERT_NEAR(gradient[static_cast<std::size_t>(i * vocabulary + j)], slope, 2e-8);
      sum += gradient[static_cast<std::size_t>(i * vocabulary + j)];
    }
    EXPECT_NEAR(sum, 0, 2e-8);
  }
}

TEST(CrossEntropy, ExtremeLogits) {
  Parallel one;
  Floats logits{-1e30f, 3e38f, 0.0f, 5.0f};
  EXPECT_EQ(cross_entropy(one, {logits.data(), 1, 4}, std::vector<std::int32_t>{1}), 0.0);
  logits = {0.0f, std::numeric_limits<float>::quiet_NaN(), 0.0f, 1.0f};
  EXPECT_TRUE(std::isnan(cross_entropy(one, {logits.data(), 1, 4}, std::vector<std::int32_t>{0})));
  logits = {0.0f, std::numeric_limits<float>::infinity(), 0.0f, 1.0f};
  EXPECT_FALSE(std::isfinite(cross_entropy(one, {logits.data(), 1, 4}, std::vector<std::int32_t>{0})));
  EXPECT_THROW((void)cross_entropy(one, {logits.data(), 1, 4}, std::vector<std::int32_t>{4}), Bug);
}

TEST(CrossEntropy, SameBitsForAnyThreads) {
  const std::int64_t rows = 333, vocabulary = 700;
  const auto targets = targets_for(rows, vocabulary);
  expect_same_bits_for_any_threads([&](Parallel& parallel) {
    Floats logits = noise(rows * vocabulary, 3, 2);
    const double loss = cross_entropy_backward(parallel, {logits.data(), rows, vocabulary}, targets, 0.01f);
    logits.push_back(static_cast<float>(loss));
    logits.push_back(static_cast<float>(loss - static_cast<double>(static_cast<float>(loss))));
    return logits;
  });
}

}  // namespace
}  // namespace cleave::kernels
