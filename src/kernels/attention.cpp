// Attention in blocks of kRows query rows: scores of a block against all keys up to its last row, softmax, products.
#include "cleave/kernels/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_parts.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm.hpp"
#include "clones.hpp"
#include "fast_math.hpp"
#include "lanes.hpp"
#include "row_ops.hpp"

namespace cleave::kernels {

using namespace attention_parts;

namespace {

/// s[0,n) = softmax(scale * s[0,n)), s[n,end) = 0.
CLEAVE_CLONES void softmax_row(float* s, std::int64_t n, std::int64_t end, float scale) {
  const float top = lanes::largest(s, n);
  for (std::int64_t j = 0; j < n; ++j) s[j] = exp_of((s[j] - top) * scale);
  const auto inverse = static_cast<float>(1.0 / lanes::sum(s, n));
  for (std::int64_t j = 0; j < n; ++j) s[j] *= inverse;
  for (std::int64_t j = n; j < end; ++j) s[j] = 0;
}

/// dp[0,n) = p * (dp - sum of p * dp) * scale, dp[n,end) = 0.
CLEAVE_CLONES void softmax_row_backward(const float* p, float* dp, std::int64_t n, std::int64_t end, float scale) {
  const auto mean = static_cast<float>(lanes::dot(p, dp, n));
  for (std::int64_t j = 0; j < n; ++j) dp[j] = p[j] * (dp[j] - mean) * scale;
  for (std::int64_t j = n; j < end; ++j) dp[j] = 0;
}

/// C (+)= A B for any depth, in K blocks, one after another. `c` is contiguous m x n.
void multiply(GemmShape shape, ConstMatrix a, ConstMatrix b, float* c, Accumulate accumulate = Accumulate::no) {
  for (std::int64_t k0 = 0; k0 < shape.k; k0 += kBlockK) {
    gemm_block({shape.m, shape.n, std::min(kBlockK, shape.k - k0)}, a.from(0, k0), b.from(k0, 0), {c, shape.n},
               k0 > 0 ? Accumulate::yes : accumulate);
  }
}

float score_scale(PairShape shape) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))); }

}  // namespace

namespace attention_parts {

std::int64_t block_rows(PairShape shape) { return std::min(kRows, shape.seq); }
std::int64_t forward_floats(PairShape shape) { return block_rows(shape) * shape.seq; }
std::int64_t backward_floats(PairShape shape) { return 2 * block_rows(shape) * shape.seq; }

void probabilities_of(PairShape shape, const float* q, const float* k, std::int64_t t0, std::int64_t rows,
                      float* probabilities) {
  const std::int64_t hd = shape.head_dim, keys = t0 + rows;
  multiply({rows, keys, hd}, {q + t0 * hd, hd}, ConstMatrix(k, hd).transposed(), probabilities);
  for (std::int64_t i = 0; i < rows; ++i) softmax_row(probabilities + i * keys, t0 + i + 1, keys, score_scale(shape));
}

void score_gradients_of(PairShape shape, const float* v, const float* d_o, std::int64_t t0, std::int64_t rows,
                        const float* probabilities, float* gradients) {
  const std::int64_t hd = shape.head_dim, keys = t0 + rows;
  multiply({rows, keys, hd}, {d_o + t0 * hd, hd}, ConstMatrix(v, hd).transposed(), gradients);
  for (std::int64_t i = 0; i < rows; ++i)
    softmax_row_backward(probabilities + i * keys, gradients + i * keys, t0 + i + 1, keys, score_scale(shape));
}

}  // namespace attention_parts

Bytes attention_forward_scratch(PairShape shape) {
  return Bytes(forward_floats(shape) * static_cast<std::int64_t>(sizeof(float)));
}
Bytes attention_backward_scratch(PairShape shape) {
  return Bytes(backward_floats(shape) * static_cast<std::int64_t>(sizeof(float)));
}

void attention_forward(PairShape shape, const float* q, const float* k, const float* v, float* o,
                       std::span<float> scratch) {
  CLEAVE_ASSERT(std::ssize(scratch) >= forward_floats(shape), "scratch of {} floats", scratch.size());
  const std::int64_t seq = shape.seq, hd = shape.head_dim;
  float* probabilities = scratch.data();
  for (std::int64_t head = 0; head < shape.heads; ++head)
    for (std::int64_t t0 = 0; t0 < seq; t0 += kRows) {
      const std::int64_t rows = std::min(kRows, seq - t0), keys = t0 + rows;
      probabilities_of(shape, q + head * seq * hd, k, t0, rows, probabilities);
      multiply({rows, hd, keys}, {probabilities, keys}, {v, hd}, o + (head * seq + t0) * hd);
    }
}

void attention_backward(PairShape shape, const float* q, const float* k, const float* v, const float* d_o, float* dq,
                        float* dk, float* dv, std::span<float> scratch) {
  CLEAVE_ASSERT(std::ssize(scratch) >= backward_floats(shape), "scratch of {} floats", scratch.size());
  const std::int64_t seq = shape.seq, hd = shape.head_dim;
  float* probabilities = scratch.data();
  float* scores = probabilities + block_rows(shape) * seq;  // dP, then dS
  std::fill_n(dk, seq * hd, 0.0f);
  std::fill_n(dv, seq * hd, 0.0f);
  for (std::int64_t head = 0; head < shape.heads; ++head)
    for (std::int64_t t0 = 0; t0 < seq; t0 += kRows) {
      const std::int64_t rows = std::min(kRows, seq - t0), keys = t0 + rows, first = (head * seq + t0) * hd;
      probabilities_of(shape, q + head * seq * hd, k, t0, rows, probabilities);
      const ConstMatrix p(probabilities, keys), ds(scores, keys), dout(d_o + first, hd);
      score_gradients_of(shape, v, d_o + head * seq * hd, t0, rows, probabilities, scores);
      multiply({rows, hd, keys}, ds, {k, hd}, dq + first);
      multiply({keys, hd, rows}, ds.transposed(), {q + first, hd}, dk, Accumulate::yes);
      multiply({keys, hd, rows}, p.transposed(), dout, dv, Accumulate::yes);
    }
}

}  // namespace cleave::kernels
