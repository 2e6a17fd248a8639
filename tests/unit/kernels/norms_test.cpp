// Norms against double-precision definitions, gradients against finite differences, the same bits for any threads.
#include "cleave/kernels/norms.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "past_caches.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;
using Doubles = std::vector<double>;

constexpr double kEps = 1e-5;

/// y of one row in double; rms: no mean, no bias.
Doubles norm_row(const Doubles& x, const Doubles& w, const Doubles& b, bool rms) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  if (!rms)
    for (const double v : x) mean += v / n;
  for (const double v : x) variance += (v - mean) * (v - mean) / n;
  const double rstd = 1 / std::sqrt(variance + kEps);
  Doubles y(x.size());
  for (std::size_t j = 0; j < x.size(); ++j) y[j] = (x[j] - mean) * rstd * w[j] + (rms ? 0 : b[j]);
  return y;
}

struct NormCase {
  std::int64_t rows, cols, ld;
  bool rms;
  Floats x, w, b, dy, y, mean, rstd, dx, dw, db;
  NormCase(std::int64_t r, std::int64_t c, bool is_rms, double offset = 0)
      : rows(r),
        cols(c),
        ld(c + 3),
        rms(is_rms),
        x(noise(r * (c + 3), 1, 1, offset)),
        w(noise(c, 2, 0.3, 1)),
        b(noise(c, 3, 0.5)),
        dy(noise(r * (c + 3), 4)),
        y(x.size(), 5.0f),
        mean(static_cast<std::size_t>(r)),
        rstd(static_cast<std::size_t>(r)),
        dx(x.size(), 5.0f),
        dw(static_cast<std::size_t>(c), 9.0f),
        db(static_cast<std::size_t>(c), 9.0f) {}
  void compute(Parallel& parallel) {
    const ConstRows input(x.data(), rows, cols, ld), gradient(dy.data(), rows, cols, ld);
    const Rows output(y.data(), rows, cols, ld), input_gradient(dx.data(), rows, cols, ld);
    if (rms) {
      rms_norm(parallel, input, w.data(), kEps, output, rstd.data());
      rms_norm_backward(parallel, input, w.data(), rstd.data(), gradient, input_gradient, dw.data());
    } else {
      layer_norm(parallel, input, w.data(), b.data(), kEps, output, mean.data(), rstd.data());
      layer_norm_backward(parallel, input, w.data(), mean.data(), rstd.data(), gradient, input_gradient, dw.data(),
                          db.data());
    }
  }
  [[nodiscard]] Doubles row(const Floats& of, std::int64_t i) const {
    return {of.begin() + i * ld, of.begin() + i * ld + cols};
  }
};

class Norms : public testing::TestWithParam<bool> {};

TEST_P(Norms, ForwardMatchesTheDefinition) {
  for (const std::int64_t cols : {1, 3, 16, 17, 512, 769, 1600}) {
    NormCase c(70, cols, GetParam(), 3);
    Parallel two(2);
    c.compute(two);
    for (std::int64_t i = 0; i < c.rows; ++i) {
      const Doubles exact = norm_row(c.row(c.x, i), {c.w.begin(), c.w.end()}, {c.b.begin(), c.b.end()}, c.rms);
      const Doubles got = c.row(c.y, i);
      for (std::int64_t j = 0; j < cols; ++j) ASSERT_NEAR(got[j], exact[j], 6e-6 * (1 + std::abs(exact[j]))) << cols;
      ASSERT_EQ(c.y[static_cast<std::size_t>(i * c.ld + cols)], 5.0f);  // outside the view
    }
  }
}

TEST_P(Norms, GradientsMatchFiniteDifferences) {
  NormCase c(67, 19, GetParam(), 1);  // more rows than one chunk sums
  Parallel two(2);
  c.compute(two);
  const Doubles w(c.w.begin(), c.w.end()), b(c.b.begin(), c.b.end());
  const auto loss = [&](std::int64_t i, const Doubles& x, const Doubles& w1, const Doubles& b1) {
    const Doubles y = norm_row(x, w1, b1, c.rms), dy = c.row(c.dy, i);
    double sum = 0;
    for (std::size_t j = 0; j < y.size(); ++j) sum += y[j] * dy[j];
    return sum;
  };
  const auto derivative = [](Doubles at, std::int64_t j, const std::function<double(const Doubles&)>& f) {
    constexpr double kStep = 1e-5;
    const double middle = at[j];
    at[j] = middle + kStep;
    const double up = f(at);
    at[j] = middle - kStep;
    return (up - f(at)) / (2 * kStep);
  };
  for (std::int64_t j = 0; j < c.cols; ++j) {
    double dw = 0, db = 0;
    for (std::int64_t i = 0; i < c.rows; ++i) {
      const Doubles x = c.row(c.x, i);
      const double dx = derivative(x, j, [&](const Doubles& moved) { return loss(i, moved, w, b); });
      ASSERT_NEAR(c.dx[static_cast<std::size_t>(i * c.ld + j)], dx, 3e-6 * (1 + std::abs(dx)));
      dw += derivative(w, j, [&](const Doubles& moved) { return loss(i, x, moved, b); });
      db += derivative(b, j, [&](const Doubles& moved) { return loss(i, x, w, moved); });
    }
    EXPECT_NEAR(c.dw[j], dw, 1e-5 * (1 + std::abs(dw)));
    if (!c.rms) { EXPECT_NEAR(c.db[j], db, 1e-5 * (1 + std::abs(db))); }
  }
}

TEST_P(Norms, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads([&](Parallel& parallel) {
    NormCase c(700, 333, GetParam());
    c.compute(parallel);
    Floats all = c.y;
    for (const auto& part : {c.rstd, c.mean, c.dx, c.dw, c.db}) append(all, part);
    return all;
  });
}

/// Rows over some floats, the first of which lies `shift` floats behind the beginning of a cache line.
Rows rows_at(Floats& memory, std::int64_t shift, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
  constexpr std::int64_t kLine = 16;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) / sizeof(float);
  const auto beyond = static_cast<std::int64_t>(address % kLine);
  return {memory.data() + (kLine - beyond) % kLine + shift, rows, cols, ld};
}

TEST_P(Norms, LargeResultsPastTheCachesHaveTheSameBits) {
  constexpr std::int64_t kRows = 8201, kCols = 1029, kStride = 1040;  // 32 MiB; rows end within a line
  constexpr auto kSize = static_cast<std::size_t>(kRows * kStride + 32);
  Floats x(kSize), dy(kSize);
  const Floats some = noise(4099, 1), others = noise(4093, 2);
  for (std::size_t i = 0; i < kSize; ++i) {
    x[i] = some[i % some.size()];
    dy[i] = others[i % others.size()];
  }
  const Floats w = noise(kCols, 3, 0.3, 1), b = noise(kCols, 4, 0.5);
  Parallel two(2);
  const auto results = [&](std::int64_t shift) {
    Floats y(kSize, 5), dx(kSize, 5), mean(kRows), rstd(kRows), dw(kCols), db(kCols);
    const ConstRows input(x.data(), kRows, kCols, kStride), gradient(dy.data(), kRows, kCols, kStride);
    const Rows output = rows_at(y, shift, kRows, kCols, kStride), d_input = rows_at(dx, shift, kRows, kCols, kStride);
    EXPECT_EQ(passes_caches(output, input), shift == 0);
    EXPECT_EQ(passes_caches(d_input, gradient), shift == 0);
    if (GetParam()) {
      rms_norm(two, input, w.data(), kEps, output, rstd.data());
      rms_norm_backward(two, input, w.data(), rstd.data(), gradient, d_input, dw.data());
    } else {
      layer_norm(two, input, w.data(), b.data(), kEps, output, mean.data(), rstd.data());
      layer_norm_backward(two, input, w.data(), mean.data(), rstd.data(), gradient, d_input, dw.data(), db.data());
    }
    Floats all;
    for (const Rows& rows : {output, d_input})
      all.insert(all.end(), rows.data, rows.data + (kRows - 1) * kStride + kCols + 1);  // and a float behind the end
    for (const Floats& part : {rstd, dw, db}) append(all, part);
    return all;
  };
  EXPECT_TRUE(testing_tools::same_bits(results(0), results(1)));
}

TEST(PastCaches, OnlyLargeResultsOfTheirOwnThatBeginLines) {
  alignas(64) float result[16] = {}, other[16] = {};  // nothing is read
  const auto passes = [&](std::int64_t rows, std::int64_t cols, std::int64_t ld, const float* of) {
    return passes_caches(Rows(result, rows, cols, ld), ConstRows(of, rows, cols, ld));
  };
  EXPECT_TRUE(passes(2048, 4096, 4096, other));
  EXPECT_FALSE(passes(2047, 4096, 4096, other));                            // may still be in a cache
  EXPECT_FALSE(passes(2048, 4096, 4096, result));                           // in place
  EXPECT_FALSE(passes(2049, 4096, 4097, other));                            // rows begin anywhere
  EXPECT_FALSE(passes_caches(Rows(), ConstRows(other, 2048, 4096, 4096)));  // not wanted
}

INSTANTIATE_TEST_SUITE_P(Kinds, Norms, testing::Bool(),
                         [](const auto& test) { return test.param ? "RMSNorm" : "LayerNorm"; });

}  // namespace
}  // namespace cleave::kernels
