// Attention against a plain double-precision version, its gradients against finite differences of that version, and
// the independence of a pair from its neighbours.
#include "cleave/kernels/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;

using Doubles = std::vector<double>;

struct Gradients {
  Doubles q, k, v;
};

/// Forward in double; with d_o also the gradients, written out from the definition.
Doubles reference(PairShape s, const Doubles& q, const Doubles& k, const Doubles& v, const Doubles* d_o = nullptr,
                  Gradients* gradients = nullptr) {
  const std::int64_t T = s.seq, D = s.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  Doubles o(q.size(), 0.0);
  if (gradients != nullptr) *gradients = {Doubles(q.size()), Doubles(k.size()), Doubles(v.size())};
  for (std::int64_t h = 0; h < s.heads; ++h)
    for (std::int64_t t = 0; t < T; ++t) {
      const std::int64_t at = (h * T + t) * D;
      Doubles p(static_cast<std::size_t>(t + 1));
      double top = -1e300, total = 0;
      for (std::int64_t j = 0; j <= t; ++j) {
        for (std::int64_t d = 0; d < D; ++d) p[j] += q[at + d] * k[j * D + d] * scale;
        top = std::max(top, p[j]);
      }
      for (auto& x : p) total += x = std::exp(x - top);
      for (auto& x : p) x /= total;
      for (std::int64_t j = 0; j <= t; ++j)
        for (std::int64_t d = 0; d < D; ++d) o[at + d] += p[j] * v[j * D + d];
      if (gradients == nullptr) continue;
      Doubles dp(p.size());
      double mean = 0;
      for (std::int64_t j = 0; j <= t; ++j) {
        for (std::int64_t d = 0; d < D; ++d) dp[j] += (*d_o)[at + d] * v[j * D + d];
        mean += p[j] * dp[j];
      }
      for (std::int64_t j = 0; j <= t; ++j)
        for (std::int64_t d = 0; d < D; ++d) {
          const double ds = p[j] * (dp[j] - mean) * scale;
          gradients->q[at + d] += ds * k[j * D + d];
          gradients->k[j * D + d] += ds * q[at + d];
          gradients->v[j * D + d] += p[j] * (*d_o)[at + d];
        }
    }
  return o;
}

Doubles wide(const Floats& x) { return {x.begin(), x.end()}; }

double distance(const Floats& x, const Doubles& exact) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - exact[i]) * (x[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

struct AttentionCase {
  PairShape shape;
  Floats q, k, v, d_o, o, dq, dk, dv;
  explicit AttentionCase(PairShape s, std::uint32_t seed = 0)
      : shape(s),
        q(noise(s.heads * s.seq * s.head_dim, seed + 1, 1.5)),
        k(noise(s.seq * s.head_dim, seed + 2, 1.5)),
        v(noise(s.seq * s.head_dim, seed + 3)),
        d_o(noise(s.heads * s.seq * s.head_dim, seed + 4)),
        o(q.size()),
        dq(q.size()),
        dk(k.size()),
        dv(v.size()) {}
  void compute() {
    Floats scratch(static_cast<std::size_t>(attention_forward_scratch(shape).value()) / sizeof(float));
    attention_forward(shape, q.data(), k.data(), v.data(), o.data(), scratch);
    scratch.resize(static_cast<std::size_t>(attention_backward_scratch(shape).value()) / sizeof(float));
    attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), dq.data(), dk.data(), dv.data(), scratch);
  }
};

TEST(Attention, MatchesTheDefinition) {
  const PairShape shapes[] = {{1, 1, 4},    {1, 5, 4},    {2, 33, 16},   {4, 130, 64},
                              {1, 300, 24}, {2, 1000, 8}, {1, 1600, 16}, {1, 140, 800}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.heads << " heads, seq " << shape.seq << ", hd " << shape.head_dim);
    AttentionCase c(shape);
    c.compute();
    Gradients exact;
    const Doubles d_o = wide(c.d_o);
    const Doubles o = reference(shape, wide(c.q), wide(c.k), wide(c.v), &d_o, &exact);
    EXPECT_LT(distance(c.o, o), 2e-6);
    EXPECT_LT(distance(c.dv, exact.v), 2e-6);
    if (shape.seq == 1) continue;  // dq = dk = 0 exactly
    EXPECT_LT(distance(c.dq, exact.q), 4e-6);
    EXPECT_LT(distance(c.dk, exact.k), 4e-6);
  }
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  const PairShape shape{2, 7, 6};
  AttentionCase c(shape);
  c.compute();
  const Doubles q = wide(c.q), k = wide(c.k), v = wide(c.v);
  const auto loss = [&](const Doubles& q1, const Doubles& k1, const Doubles& v1) {
    const Doubles o = reference(shape, q1, k1, v1);
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * c.d_o[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < q.size(); ++i) {
    Doubles up = q, down = q;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR(c.dq[i], (loss(up, k, v) - loss(down, k, v)) / (2 * kStep), 2e-6);
  }
  for (std::size_t i = 0; i < k.size(); ++i) {
    Doubles up = k, down = k;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR(c.dk[i], (loss(q, up, v) - loss(q, down, v)) / (2 * kStep), 4e-6);
    up = down = v;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR(c.dv[i], (loss(q, k, up) - loss(q, k, down)) / (2 * kStep), 4e-6);
  }
}

TEST(Attention, APairHasTheSameBitsInAnyCompanyAndScratch) {
  const PairShape shape{3, 200, 32};
  AttentionCase a(shape), b(shape), other(shape, 50);
  a.compute();
  other.compute();
  Floats scratch(static_cast<std::size_t>(attention_backward_scratch(shape).value()) / sizeof(float) + 999,
                 std::nanf(""));  // what is left from before must not matter
  attention_forward(shape, b.q.data(), b.k.data(), b.v.data(), b.o.data(), scratch);
  attention_backward(shape, b.q.data(), b.k.data(), b.v.data(), b.d_o.data(), b.dq.data(), b.dk.data(), b.dv.data(),
                     scratch);
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

TEST(Attention, TheFutureDoesNotMatter) {
  const PairShape shape{1, 150, 16};
  AttentionCase a(shape), b(shape);
  for (std::int64_t i = 140 * 16; i < 150 * 16; ++i) b.k[i] = b.v[i] = b.q[i] = 9;
  a.compute();
  b.compute();
  EXPECT_TRUE(std::equal(a.o.begin(), a.o.begin() + 140 * 16, b.o.begin()));
  EXPECT_NE(a.o, b.o);
}

TEST(Attention, LargeScoresStayFiniteAndNaNShows) {
  const PairShape shape{1, 40, 8};
  AttentionCase c(shape);
  for (auto& x : c.q) x *= 1000;
  c.compute();
  for (const float x : c.o) ASSERT_TRUE(std::isfinite(x));
  for (const float x : c.dk) ASSERT_TRUE(std::isfinite(x));
  c.k[5 * 8 + 3] = std::nanf("");
  c.compute();
  EXPECT_FALSE(std::isnan(c.o[4 * 8]));
  EXPECT_TRUE(std::isnan(c.o[5 * 8]));
}

TEST(Attention, RefusesTooLittleScratch) {
  AttentionCase c({1, 40, 8});
  Floats scratch(10);
  EXPECT_THROW(attention_forward(c.shape, c.q.data(), c.k.data(), c.v.data(), c.o.data(), scratch), Bug);
}

}  // namespace
}  // namespace cleave::kernels
