// AdamW against its definition in double over several steps, sums of squares, same bits for any threads.
#include "cleave/kernels/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cleave/base/error.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;

TEST(AdamWUpdate, FollowsTheDefinition) {
  const std::int64_t n = 40001;
  Floats p = noise(n, 1), m(p.size()), v(p.size());
  std::vector<double> p64(p.begin(), p.end()), m64(p.size()), v64(p.size());
  Parallel two(2);
  for (std::int64_t k = 1; k <= 8; ++k) {
    const Floats g = noise(n, static_cast<std::uint32_t>(10 + k), 0.3);
    const AdamW s{.lr = 3e-3 / static_cast<double>(k),
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-8,
                  .weight_decay = 0.3,
                  .clip = 0.25,
                  .step = k};
    adamw_update(two, s, g, p, m, v);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double gradient = s.clip * g[i];
      p64[i] *= 1 - s.lr * s.weight_decay;
      m64[i] = s.beta1 * m64[i] + (1 - s.beta1) * gradient;
      v64[i] = s.beta2 * v64[i] + (1 - s.beta2) * gradient * gradient;
      const double m_hat = m64[i] / (1 - std::pow(s.beta1, k)), v_hat = v64[i] / (1 - std::pow(s.beta2, k));
      p64[i] -= s.lr * m_hat / (std::sqrt(v_hat) + s.eps);
    }
  }
  double worst_p = 0, worst_m = 0, worst_v = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    worst_p = std::max(worst_p, std::abs(p[i] - p64[i]) / (1 + std::abs(p64[i])));
    worst_m = std::max(worst_m, std::abs(m[i] - m64[i]));
    worst_v = std::max(worst_v, std::abs(v[i] - v64[i]) / v64[i]);
  }
  EXPECT_LT(worst_p, 4e-7);
  EXPECT_LT(worst_m, 4e-8);
  EXPECT_LT(worst_v, 1.5e-6);
}

TEST(AdamWUpdate, EpsIsOutsideTheRoot) {
  Parallel one;
  Floats p{0.0f}, m{0.0f}, v{0.0f};
  adamw_update(one, {.lr = 1, .eps = 1e-3, .step = 1}, Floats{1e-3f}, p, m, v);
  EXPECT_NEAR(p[0], -0.5, 1e-6);  // m_hat = sqrt(v_hat) = eps
}

TEST(AdamWUpdate, DecaysParametersWithoutGradient) {
  Parallel one;
  Floats p{2.0f}, m{0.0f}, v{0.0f};
  adamw_update(one, {.lr = 0.1, .weight_decay = 0.5, .step = 1}, Floats{0.0f}, p, m, v);
  EXPECT_FLOAT_EQ(p[0], 1.9f);
}

TEST(AdamWUpdate, CountsUpdatesFromOne) {
  Parallel one;
  Floats p(1), m(1), v(1);
  EXPECT_THROW(adamw_update(one, {.step = 0}, Floats{0.0f}, p, m, v), Bug);
}

TEST(AdamWUpdate, RefusesTensorsOfDifferentSizes) {
  Parallel one;
  Floats p{2.0f}, m{0.0f}, v{0.0f, 0.0f};
  EXPECT_THROW(adamw_update(one, {}, Floats{0.0f}, p, m, v), Bug);
}

// Chunks of 16384 elements, element t of one in lane t mod 16; lanes are added in halves, chunks in order.
TEST(SumSquares, HasTheBitsOfTheDefinition) {
  Parallel two(2);
  for (const std::int64_t n : {1, 16384, 16385, 4 * 16384, 4 * 16384 + 17, 7 * 16384 + 5, 9 * 16384}) {
    const Floats x = noise(n, 4, 100);
    double expected = 0;
    for (std::int64_t chunk = 0; chunk < n; chunk += 16384) {
      double lanes[16] = {};
      for (std::int64_t t = chunk; t < std::min<std::int64_t>(n, chunk + 16384); ++t) {
        const auto value = static_cast<double>(x[static_cast<std::size_t>(t)]);
        lanes[(t - chunk) % 16] += value * value;
      }
      for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      expected += lanes[0];
    }
    EXPECT_EQ(sum_squares(two, x), expected) << n << " elements";
  }
}

TEST(SumSquares, MatchesTheDefinition) {
  Parallel two(2);
  for (const std::int64_t n : {0, 1, 15, 16, 17, 16384, 16385, 100003}) {
    const Floats x = noise(n, 3, 100);
    double exact = 0;
    for (const float value : x) exact += static_cast<double>(value) * value;
    EXPECT_NEAR(sum_squares(two, x), exact, 1e-12 * exact);
  }
  EXPECT_TRUE(std::isinf(sum_squares(two, Floats{INFINITY})));
}

TEST(OptimizerKernels, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads([](Parallel& parallel) {
    Floats p = noise(90001, 5), m = noise(90001, 6), v(p.size(), 0.01f);
    adamw_update(parallel, {.lr = 1e-3, .weight_decay = 0.1, .clip = 0.7, .step = 12}, noise(90001, 7), p, m, v);
    const double sum = sum_squares(parallel, p);
    append(p, m);
    append(p, v);
    p.push_back(static_cast<float>(sum));
    p.push_back(static_cast<float>(sum - static_cast<double>(static_cast<float>(sum))));
    return p;
  });
}

}  // namespace
}  // namespace cleave::kernels
