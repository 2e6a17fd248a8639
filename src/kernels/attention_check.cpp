// P and dS block by block, and the projections of what they are multiplied with.
#include "cleave/kernels/attention_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention_parts.hpp"
#include "cleave/base/error.hpp"
#include "projection.hpp"

namespace cleave::kernels {

using namespace attention_parts;

namespace {

using projection::Vector, projection::dot_row, projection::add_column;

/// M x for contiguous M[rows x hd], with the root of the sum of all squares.
struct Projected {
  Vector values;
  double norm = 0;
  Projected(const float* m, std::int64_t rows, const Vector& x) : values(static_cast<std::size_t>(rows)) {
    const std::int64_t hd = std::ssize(x);
    double total = 0, square = 0;
    for (std::int64_t i = 0; i < rows; ++i, total += square) dot_row(m + i * hd, x.data(), hd, &values[i], &square);
    norm = std::sqrt(total);
  }
};

/// What row i of a result should be when multiplied by x, and the row norms of its left factor.
struct Expected {
  Vector values, squares;
  explicit Expected(std::int64_t rows)
      : values(static_cast<std::size_t>(rows)), squares(static_cast<std::size_t>(rows)) {}
};

std::int64_t blocks_of(std::int64_t depth, std::int64_t block) { return (depth + block - 1) / block; }

/// Largest ratio over the rows of result C[rows x hd] = A B, |B|_F = b_norm, errors of A B growing as `growth`.
double worst_row(const float* c, const Vector& x, const Expected& expected, double b_norm, double growth,
                 DType result) {
  const std::int64_t hd = std::ssize(x);
  double worst = 0;
  for (std::int64_t i = 0; i < std::ssize(expected.values); ++i) {
    double value = 0, square = 0;
    dot_row(c + i * hd, x.data(), hd, &value, &square);
    const double bound = projection::kUnit * growth * std::sqrt(expected.squares[i]) * b_norm +
                         projection::rounding_error(result, hd, square);
    worst = std::max(worst, projection::ratio_of(value - expected.values[i], bound));
  }
  return worst;
}

double depth_growth(std::int64_t depth) {
  return projection::growth(std::min(depth, kBlockK), blocks_of(depth, kBlockK));
}

}  // namespace

double check_attention_forward(PairShape shape, const float* q, const float* k, const float* v, const float* o,
                               DType result, const Random& random, std::span<float> scratch) {
  CLEAVE_ASSERT(std::ssize(scratch) >= forward_floats(shape), "scratch of {} floats", scratch.size());
  const std::int64_t seq = shape.seq, hd = shape.head_dim;
  float* probabilities = scratch.data();
  const Vector x = projection::random_signs(hd, random);
  const Projected vx(v, seq, x);
  const Scores scores(shape, seq, k);
  Expected expected(shape.heads * seq);
  for (std::int64_t head = 0; head < shape.heads; ++head)
    for (std::int64_t t0 = 0; t0 < seq; t0 += kRows) {
      const std::int64_t rows = std::min(kRows, seq - t0), keys = t0 + rows;
      scores.probabilities(q + (head * seq + t0) * hd, t0, rows, probabilities);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t row = head * seq + t0 + i;
        dot_row(probabilities + i * keys, vx.values.data(), t0 + i + 1, &expected.values[row], &expected.squares[row]);
      }
    }
  return worst_row(o, x, expected, vx.norm, depth_growth(seq), result);
}

double check_attention_backward(PairShape shape, const float* q, const float* k, const float* v, const float* d_o,
                                const float* dq, const float* dk, const float* dv, DType result, const Random& random,
                                std::span<float> scratch) {
  CLEAVE_ASSERT(std::ssize(scratch) >= backward_floats(shape), "scratch of {} floats", scratch.size());
  const std::int64_t seq = shape.seq, hd = shape.head_dim, queries = shape.heads * seq;
  float* probabilities = scratch.data();
  float* gradients = probabilities + block_rows(shape) * seq;
  const Vector x_q = projection::random_signs(hd, random, 1), x_k = projection::random_signs(hd, random, 2),
               x_v = projection::random_signs(hd, random, 3);
  const Projected kx(k, seq, x_q), qx(q, queries, x_k), dox(d_o, queries, x_v);
  Expected expected_q(queries), expected_k(seq), expected_v(seq);
  const Scores scores(shape, seq, k, v);
  for (std::int64_t head = 0; head < shape.heads; ++head)
    for (std::int64_t t0 = 0; t0 < seq; t0 += kRows) {
      const std::int64_t rows = std::min(kRows, seq - t0), keys = t0 + rows, first = (head * seq + t0) * hd;
      scores.probabilities(q + first, t0, rows, probabilities);
      scores.gradients(d_o + first, t0, rows, probabilities, gradients);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t row = head * seq + t0 + i, seen = t0 + i + 1;
        const float *p = probabilities + i * keys, *ds = gradients + i * keys;
        dot_row(ds, kx.values.data(), seen, &expected_q.values[row], &expected_q.squares[row]);
        add_column(ds, qx.values[row], seen, expected_k.values.data(), expected_k.squares.data());
        add_column(p, dox.values[row], seen, expected_v.values.data(), expected_v.squares.data());
      }
    }
  const double summed = projection::growth(block_rows(shape), shape.heads * blocks_of(seq, kRows));
  return std::max({worst_row(dq, x_q, expected_q, kx.norm, depth_growth(seq), result),
                   worst_row(dk, x_k, expected_k, qx.norm, summed, result),
                   worst_row(dv, x_v, expected_v, dox.norm, summed, result)});
}

}  // namespace cleave::kernels
