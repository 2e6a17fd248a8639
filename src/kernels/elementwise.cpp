// Additions and rotations.
#include "cleave/kernels/elementwise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cleave/base/error.hpp"
#include "lanes.hpp"
#include "row_chunks.hpp"
#include "row_ops.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

/// Columns of a chunk of bias_gradient: of wide matrices 4 KiB of each row, since every row begins on a page of its own
/// there; of others fewer, so that there is some for each thread.
constexpr std::int64_t kMostSumCols = 1024;
std::int64_t sum_cols(std::int64_t cols) { return std::clamp<std::int64_t>(cols / 4, 256, kMostSumCols); }

/// totals[j] += sum of rows of dy in fp32, for n <= kMostSumCols columns. Four rows at a time, one after the other into
/// each sum; a column of rows is no stream that the processor recognises, so those that come next are asked for.
CLEAVE_INLINE void add_rows_to(const float* dy, std::int64_t rows, std::int64_t ld, std::int64_t n, double* totals) {
  float sums[kMostSumCols] = {};
  std::int64_t i = 0;
  for (; i + lanes::kStreams <= rows; i += lanes::kStreams) {
    const float *const row0 = dy + i * ld, *const row1 = row0 + ld, *const row2 = row1 + ld, *const row3 = row2 + ld;
    std::int64_t j = 0;
    for (; j + lanes::kLanes <= n; j += lanes::kLanes) {
      for (std::int64_t s = 0; s < lanes::kStreams; ++s) __builtin_prefetch(row3 + (1 + s) * ld + j, 0, 2);
      for (std::int64_t c = j; c < j + lanes::kLanes; ++c) sums[c] = sums[c] + row0[c] + row1[c] + row2[c] + row3[c];
    }
    for (; j < n; ++j) sums[j] = sums[j] + row0[j] + row1[j] + row2[j] + row3[j];
  }
  for (; i < rows; ++i)
    for (std::int64_t j = 0; j < n; ++j) sums[j] += dy[i * ld + j];
  for (std::int64_t j = 0; j < n; ++j) totals[j] += static_cast<double>(sums[j]);
}

CLEAVE_INLINE void rotate_head(float* x, std::int64_t half, const float* cosines, const float* sines, float sign) {
  float* y = x + half;
  for (std::int64_t i = 0; i < half; ++i) {
    const float sine = sign * sines[i], first = x[i], second = y[i];
    x[i] = first * cosines[i] - second * sine;
    y[i] = second * cosines[i] + first * sine;
  }
}

}  // namespace

void add_bias(Parallel& parallel, Rows x, const float* bias) {
  for_rows(parallel, x.rows, x.cols, [&](std::int64_t i) { add_row(x.row(i), bias, x.cols, x.row(i)); });
}

void bias_gradient(Parallel& parallel, ConstRows dy, float* d_bias) {
  parallel.for_chunks(dy.cols, sum_cols(dy.cols), [&](std::int64_t begin, std::int64_t end) {
    double totals[kMostSumCols] = {};
    for (std::int64_t i = 0; i < dy.rows; i += kSumRows)
      dispatch<add_rows_to>(dy.row(i) + begin, std::min(kSumRows, dy.rows - i), dy.ld, end - begin, totals);
    for (std::int64_t j = begin; j < end; ++j) d_bias[j] = static_cast<float>(totals[j - begin]);
  });
}

void add(Parallel& parallel, ConstRows a, ConstRows b, Rows out) {
  for_rows(parallel, a.rows, a.cols, [&](std::int64_t i) { add_row(a.row(i), b.row(i), a.cols, out.row(i)); });
}

void accumulate(Parallel& parallel, ConstRows x, Rows into) { add(parallel, into, x, into); }

RopeTable::RopeTable(std::int64_t seq, std::int64_t head_dim, double theta)
    : seq_(seq), half_(head_dim / 2), theta_(theta) {
  CLEAVE_ASSERT(head_dim % 2 == 0, "head_dim {} is odd", head_dim);
  cosines_.reserve(static_cast<std::size_t>(seq * half_));
  sines_.reserve(static_cast<std::size_t>(seq * half_));
  for (std::int64_t t = 0; t < seq; ++t)
    for (std::int64_t i = 0; i < half_; ++i) {
      const double frequency = std::pow(theta, -static_cast<double>(2 * i) / static_cast<double>(head_dim));
      const double angle = static_cast<double>(t) * frequency;
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
}

void rope(Parallel& parallel, const RopeTable& table, Rotate direction, Rows x, std::int64_t first) {
  CLEAVE_ASSERT(x.cols % table.head_dim() == 0, "{} columns in heads of {}", x.cols, table.head_dim());
  const float sign = direction == Rotate::forward ? 1.0f : -1.0f;
  for_rows(parallel, x.rows, x.cols, [&](std::int64_t i) {
    const std::int64_t t = (first + i) % table.seq();
    for (float* head = x.row(i); head != x.row(i) + x.cols; head += table.head_dim())
      dispatch<rotate_head>(head, table.head_dim() / 2, table.cosines(t), table.sines(t), sign);
  });
}

}  // namespace cleave::kernels
