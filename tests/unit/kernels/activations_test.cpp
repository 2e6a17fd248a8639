// Activations against their formulas in double, gradients against finite differences of those, same bits for any
// threads.
#include "cleave/kernels/activations.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;

double exact_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double exact_silu(double x) { return x / (1 + std::exp(-x)); }

template <class Function>
double slope(const Function& f, double x) {
  constexpr double kStep = 1e-5;
  return (f(x + kStep) - f(x - kStep)) / (2 * kStep);
}

constexpr std::int64_t kRows = 9, kCols = 211, kLd = 220;

/// Values over the whole interesting range, with rows apart.
Floats inputs() {
  Floats x = noise(kRows * kLd, 1, 2.5);
  const float special[] = {0.0f, -0.0f, 1e-30f, -1e-4f, 12.0f, -12.0f, 100.0f, -100.0f, 1e4f, -1e4f};
  for (std::size_t i = 0; i < std::size(special); ++i) x[i] = special[i];
  return x;
}
ConstRows view(const Floats& x) { return {x.data(), kRows, kCols, kLd}; }
Rows view(Floats& x) { return {x.data(), kRows, kCols, kLd}; }

template <class Check>
void for_each_element(const Check& check) {
  for (std::int64_t i = 0; i < kRows; ++i)
    for (std::int64_t j = 0; j < kCols; ++j) check(static_cast<std::size_t>(i * kLd + j));
}

TEST(Activations, Gelu) {
  const Floats x = inputs(), dy = noise(kRows * kLd, 2);
  Floats y(x.size(), 7.0f), dx(x.size(), 7.0f);
  Parallel two(2);
  gelu_new(two, view(x), view(y));
  gelu_new_backward(two, view(x), view(dy), view(dx));
  for_each_element([&](std::size_t i) {
    ASSERT_NEAR(y[i], exact_gelu(x[i]), 5e-7 * (1 + std::abs(x[i]))) << x[i];
    ASSERT_NEAR(dx[i], dy[i] * slope(exact_gelu, x[i]), 2e-6) << x[i];
  });
  EXPECT_EQ(y[kCols], 7.0f);
}

TEST(Activations, Relu) {
  Floats x = inputs();
  x[20] = std::numeric_limits<float>::quiet_NaN();
  const Floats dy = noise(kRows * kLd, 2);
  Floats y(x.size()), dx(x.size());
  Parallel two(2);
  relu(two, view(x), view(y));
  relu_backward(two, view(x), view(dy), view(dx));
  EXPECT_TRUE(std::isnan(y[20]));
  for_each_element([&](std::size_t i) {
    if (i == 20) return;
    ASSERT_EQ(y[i], std::max(x[i], 0.0f));
    ASSERT_EQ(dx[i], x[i] > 0 ? dy[i] : 0.0f);
  });
}

TEST(Activations, SwiGlu) {
  const Floats gate = inputs(), up = noise(kRows * kLd, 3), dy = noise(kRows * kLd, 2);
  Floats y(gate.size()), d_gate(gate.size()), d_up(gate.size());
  Parallel two(2);
  swiglu(two, view(gate), view(up), view(y));
  swiglu_backward(two, view(gate), view(up), view(dy), view(d_gate), view(d_up));
  for_each_element([&](std::size_t i) {
    const double silu = exact_silu(gate[i]);
    ASSERT_NEAR(y[i], silu * up[i], 1e-6 * (1 + std::abs(silu * up[i]))) << gate[i];
    ASSERT_NEAR(d_up[i], dy[i] * silu, 1e-6 * (1 + std::abs(dy[i] * silu))) << gate[i];
    ASSERT_NEAR(d_gate[i], dy[i] * up[i] * slope(exact_silu, gate[i]), 4e-6) << gate[i];
  });
}

TEST(Activations, InPlaceAndAnyThreadsGiveTheSameBits) {
  const Floats x = noise(300 * 400, 5, 2), up = noise(300 * 400, 6), dy = noise(300 * 400, 7);
  const auto rows = [](Floats& of) { return Rows(of.data(), 300, 400); };
  const auto const_rows = [](const Floats& of) { return ConstRows(of.data(), 300, 400); };
  expect_same_bits_for_any_threads([&](Parallel& parallel) {
    Floats a(x.size()), b(x.size()), c(x.size()), d(x.size());
    gelu_new(parallel, const_rows(x), rows(a));
    gelu_new_backward(parallel, const_rows(x), const_rows(dy), rows(b));
    swiglu(parallel, const_rows(x), const_rows(up), rows(c));
    append(a, b);
    append(a, c);
    swiglu_backward(parallel, const_rows(x), const_rows(up), const_rows(dy), rows(c), rows(d));
    append(a, c);
    append(a, d);
    return a;
  });
  Parallel one;
  Floats apart(x.size()), in_place = dy;
  gelu_new_backward(one, const_rows(x), const_rows(dy), rows(apart));
  gelu_new_backward(one, const_rows(x), const_rows(in_place), rows(in_place));
  EXPECT_TRUE(same_bits(apart, in_place));
}

}  // namespace
}  // namespace cleave::kernels
