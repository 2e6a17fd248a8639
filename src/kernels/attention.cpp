// Attention in blocks of kRows query rows: scores of a block against all keys up to its last row, softmax, products.
#include "cleave/kernels/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_parts.hpp"
#include "cleave/base/error.hpp"
#include "fast_math.hpp"
#include "lanes.hpp"
#include "row_ops.hpp"
#include "triangle.hpp"
#include "versions.hpp"

namespace cleave::kernels {

using namespace attention_parts;

namespace {

/// The end of the lanes that n elements reach into, where a row has room for them: a loop over whole registers has no
/// rest, which takes longer than they do. What stands in for the rest changes no sum.
CLEAVE_INLINE std::int64_t whole_lanes(std::int64_t n, std::int64_t end) {
  const std::int64_t whole = (n + lanes::kLanes - 1) / lanes::kLanes * lanes::kLanes;
  return whole < end ? whole : end;
}

/// s[0,n) = softmax(scale * s[0,n)), s[n,end) = 0.
template <class Floats>
CLEAVE_INLINE void softmax_row(float* s, std::int64_t n, std::int64_t end, float scale) {
  const std::int64_t whole = whole_lanes(n, end);
  for (std::int64_t j = n; j < whole; ++j) s[j] = -std::numeric_limits<float>::infinity();  // whose exponential is 0
  const float top = largest_of_row(s, whole);
  for (std::int64_t j = 0; j < whole; ++j) s[j] = exp_of_negative((s[j] - top) * scale);
  const auto inverse = static_cast<float>(1.0 / lanes::sum<Floats>(s, whole));
  for (std::int64_t j = 0; j < whole; ++j) s[j] *= inverse;
  for (std::int64_t j = n; j < end; ++j) s[j] = 0;
}

/// dp[0,n) = p * (dp - sum of p * dp) * scale, dp[n,end) = 0. Requires: p[n,end) = 0.
template <class Floats>
CLEAVE_INLINE void softmax_row_backward(const float* p, float* dp, std::int64_t n, std::int64_t end, float scale) {
  const std::int64_t whole = whole_lanes(n, end);
  for (std::int64_t j = n; j < whole; ++j) dp[j] = 0;
  const auto mean = static_cast<float>(lanes::dot<Floats>(p, dp, whole));
  for (std::int64_t j = 0; j < whole; ++j) dp[j] = p[j] * (dp[j] - mean) * scale;
  for (std::int64_t j = n; j < end; ++j) dp[j] = 0;
}

/// What the calling thread packs operands of a pair into, kept from pair to pair: of whole pairs, by columns of C, and
/// of a block of query rows.
struct PackedFactors {
  using enum triangle::Side;
  triangle::Factor keys{columns}, values{columns}, across{columns};
  triangle::Factor block{rows}, triangular{rows}, turned{rows}, block_across{columns};
};
PackedFactors& factors() {
  thread_local PackedFactors memory;
  return memory;
}

float score_scale(PairShape shape) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))); }

}  // namespace

namespace attention_parts {

std::int64_t block_rows(PairShape shape) { return std::min(kRows, shape.seq); }
std::int64_t forward_floats(PairShape shape) { return block_rows(shape) * shape.seq; }
std::int64_t backward_floats(PairShape shape) { return 2 * block_rows(shape) * shape.seq; }

Scores::Scores(PairShape shape, std::int64_t keys, const float* k, const float* v) : shape_(shape) {
  factors().keys.pack({k, shape.head_dim}, keys, shape.head_dim);
  if (v != nullptr) factors().values.pack({v, shape.head_dim}, keys, shape.head_dim);
}

void Scores::probabilities(const float* q, std::int64_t t0, std::int64_t rows, float* probabilities) const {
  const std::int64_t hd = shape_.head_dim, keys = t0 + rows;
  PackedFactors& packed = factors();
  packed.block.pack({q, hd}, rows, hd);
  triangle::multiply_below(packed.block, packed.keys, t0, {probabilities, keys});
  for (std::int64_t i = 0; i < rows; ++i)
    CLEAVE_DISPATCH_LANES(softmax_row)(probabilities + i * keys, t0 + i + 1, keys, score_scale(shape_));
}

void Scores::gradients(const float* d_o, std::int64_t t0, std::int64_t rows, const float* probabilities,
                       float* gradients) const {
  const std::int64_t hd = shape_.head_dim, keys = t0 + rows;
  PackedFactors& packed = factors();
  packed.block.pack({d_o, hd}, rows, hd);
  triangle::multiply_below(packed.block, packed.values, t0, {gradients, keys});
  for (std::int64_t i = 0; i < rows; ++i) CLEAVE_DISPATCH_LANES(softmax_row_backward)
  (probabilities + i * keys, gradients + i * keys, t0 + i + 1, keys, score_scale(shape_));
}

}  // namespace attention_parts

namespace {

void check_chunk(PairShape shape, std::int64_t t0, std::int64_t rows) {
  CLEAVE_ASSERT(t0 % kRows == 0 && (rows % kRows == 0 || t0 + rows == shape.seq), "rows {} to {} of {}", t0, t0 + rows,
                shape.seq);
}

/// One head's block of query rows in its backward pass: q, d_o and dq of its rows; adds to dk and dv. `packed.across`
/// has K.
void block_backward(const Scores& scores, std::int64_t hd, std::int64_t t0, std::int64_t rows, const float* q,
                    const float* d_o, float* dq, float* dk, float* dv, float* probabilities, float* gradients) {
  const std::int64_t keys = t0 + rows;
  PackedFactors& packed = factors();
  scores.probabilities(q, t0, rows, probabilities);
  scores.gradients(d_o, t0, rows, probabilities, gradients);
  packed.triangular.pack_below({gradients, keys}, rows, packed.across.depth(), t0);
  triangle::multiply_lower(packed.triangular, packed.across, t0, {dq, hd});
  const auto add_turned = [&](const float* of, const float* by, float* to) {  // to += of^T by
    packed.turned.pack(ConstMatrix(of, keys).transposed(), keys, rows);
    packed.block_across.pack(ConstMatrix(by, hd).transposed(), hd, rows);
    triangle::add_upper(packed.turned, packed.block_across, t0, {to, hd});
  };
  add_turned(gradients, q, dk);
  add_turned(probabilities, d_o, dv);
}

}  // namespace

Bytes attention_forward_scratch(PairShape shape) {
  return Bytes(forward_floats(shape) * static_cast<std::int64_t>(sizeof(float)));
}
Bytes attention_backward_scratch(PairShape shape) {
  return Bytes(backward_floats(shape) * static_cast<std::int64_t>(sizeof(float)));
}

void attention_forward_chunk(PairShape shape, std::int64_t t0, std::int64_t rows, const float* q, const float* k,
                             const float* v, float* o, std::span<float> scratch) {
  CLEAVE_ASSERT(std::ssize(scratch) >= forward_floats(shape), "scratch of {} floats", scratch.size());
  check_chunk(shape, t0, rows);
  const std::int64_t hd = shape.head_dim, end = t0 + rows;
  float* probabilities = scratch.data();
  const Scores scores(shape, end, k);
  PackedFactors& packed = factors();
  packed.across.pack(ConstMatrix(v, hd).transposed(), hd, end);
  for (std::int64_t head = 0; head < shape.heads; ++head)
    for (std::int64_t b0 = t0; b0 < end; b0 += kRows) {
      const std::int64_t count = std::min(kRows, end - b0), first = (head * rows + b0 - t0) * hd;
      scores.probabilities(q + first, b0, count, probabilities);
      packed.triangular.pack_below({probabilities, b0 + count}, count, end, b0);
      triangle::multiply_lower(packed.triangular, packed.across, b0, {o + first, hd});
    }
}

void attention_backward_chunk(PairShape shape, std::int64_t t0, std::int64_t rows, const float* q, const float* k,
                              const float* v, const float* d_o, float* dq, float* dk, float* dv,
                              std::span<float> scratch) {
  CLEAVE_ASSERT(std::ssize(scratch) >= backward_floats(shape), "scratch of {} floats", scratch.size());
  check_chunk(shape, t0, rows);
  const std::int64_t hd = shape.head_dim, end = t0 + rows;
  float* probabilities = scratch.data();
  float* gradients = probabilities + block_rows(shape) * shape.seq;
  const Scores scores(shape, end, k, v);
  factors().across.pack(ConstMatrix(k, hd).transposed(), hd, end);
  const std::int64_t last = (end - 1) / kRows * kRows;
  for (std::int64_t b0 = last; b0 >= t0; b0 -= kRows)
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t count = std::min(kRows, end - b0), first = (head * rows + b0 - t0) * hd;
      block_backward(scores, hd, b0, count, q + first, d_o + first, dq + first, dk, dv, probabilities, gradients);
    }
}

void attention_forward(PairShape shape, const float* q, const float* k, const float* v, float* o,
                       std::span<float> scratch) {
  attention_forward_chunk(shape, 0, shape.seq, q, k, v, o, scratch);
}

void attention_backward(PairShape shape, const float* q, const float* k, const float* v, const float* d_o, float* dq,
                        float* dk, float* dv, std::span<float> scratch) {
  CLEAVE_ASSERT(std::ssize(scratch) >= backward_floats(shape), "scratch of {} floats", scratch.size());
  const std::int64_t seq = shape.seq, hd = shape.head_dim;
  float* probabilities = scratch.data();
  float* gradients = probabilities + block_rows(shape) * seq;  // dP, then dS
  const Scores scores(shape, seq, k, v);
  factors().across.pack(ConstMatrix(k, hd).transposed(), hd, seq);
  std::fill_n(dk, seq * hd, 0.0f);
  std::fill_n(dv, seq * hd, 0.0f);
  for (std::int64_t t0 = (seq - 1) / kRows * kRows; t0 >= 0; t0 -= kRows)  // as chunks come
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t rows = std::min(kRows, seq - t0), first = (head * seq + t0) * hd;
      block_backward(scores, hd, t0, rows, q + first, d_o + first, dq + first, dk, dv, probabilities, gradients);
    }
}

}  // namespace cleave::kernels
