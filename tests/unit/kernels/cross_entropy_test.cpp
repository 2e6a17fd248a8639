// Cross-entropy against its definition in double, its gradient against finite differences, same bits for any threads.
#include "cleave/kernels/cross_entropy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cleave/base/error.hpp"
#include "cleave/base/shapes.hpp"
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
  for (const std::int32_t target : {4, -1})
    EXPECT_THROW((void)cross_entropy(one, {logits.data(), 1, 4}, std::vector<std::int32_t>{target}), Bug);
}

// Devices may have some blocks of the vocabulary each: their maxima and sums are joined, and each makes the gradient of
// its columns, beside which it has others.
TEST(CrossEntropy, PartsOfTheVocabularyGiveTheBitsOfTheWhole) {
  const std::int64_t rows = 6, vocabulary = 2 * kVocabularyBlock + 100, ld = vocabulary + 1;
  const std::int64_t border = kVocabularyBlock;
  const Floats logits = noise(rows * ld, 4, 3);
  const std::vector<std::int32_t> targets{0,
                                          static_cast<std::int32_t>(border - 1),
                                          static_cast<std::int32_t>(border),
                                          static_cast<std::int32_t>(vocabulary - 1),
                                          5,
                                          static_cast<std::int32_t>(border + 1)};
  Parallel two(2);
  Floats top(rows), whole = logits;
  Doubles sum(rows), loss(rows);
  const double total = cross_entropy_backward(two, {whole.data(), rows, vocabulary, ld}, targets, 0.5f);
  cross_entropy_rows(two, {logits.data(), rows, vocabulary, ld}, targets, top, sum, loss);
  EXPECT_NEAR(std::accumulate(loss.begin(), loss.end(), 0.0), total, 1e-12 * total);

  const std::int64_t of_first = 1, of_second = 2;  // blocks
  Floats tops_first(rows * of_first), sums_first(rows * of_first), tops_second(rows * of_second),
      sums_second(rows * of_second);
  cross_entropy_blocks(two, {logits.data(), rows, border, ld}, tops_first, sums_first);
  cross_entropy_blocks(two, {logits.data() + border, rows, vocabulary - border, ld}, tops_second, sums_second);
  for (std::int64_t i = 0; i < rows; ++i) {
    const Floats tops{tops_first[i], tops_second[2 * i], tops_second[2 * i + 1]};
    const Floats sums{sums_first[i], sums_second[2 * i], sums_second[2 * i + 1]};
    float joined = 0;
    EXPECT_EQ(join_blocks(tops, sums, joined), sum[i]) << i;
    EXPECT_EQ(joined, top[i]);
    const auto target = static_cast<std::size_t>(i * ld + targets[static_cast<std::size_t>(i)]);
    EXPECT_EQ(loss_of(logits[target], joined, sum[i]), loss[i]);
  }
  Floats parts = logits;
  const Rows first(parts.data(), rows, border, ld), second(parts.data() + border, rows, vocabulary - border, ld);
  cross_entropy_columns(two, first, 0, targets, top, sum, 0.5f);
  for (std::int64_t i = 0; i < rows; ++i)  // what lies beside its columns stays, the targets of others among it
    EXPECT_TRUE(std::equal(second.row(i), second.row(i) + second.cols, logits.data() + i * ld + border)) << i;
  cross_entropy_columns(two, second, border, targets, top, sum, 0.5f);
  EXPECT_EQ(parts, whole);
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
