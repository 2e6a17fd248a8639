// LayerNorm and RMSNorm. The backward pass reads each row once: it writes dx and adds to the column sums of its chunk,
// and the chunks' sums are added in order at the end.
#include "cleave/kernels/norms.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "clones.hpp"
#include "lanes.hpp"
#include "row_chunks.hpp"

namespace cleave::kernels {
namespace {

CLEAVE_CLONES void layer_norm_row(const float* x, std::int64_t n, const float* w, const float* b, double eps, float* y,
                                  float* mean_out, float* rstd_out) {
  const auto mean = static_cast<float>(lanes::sum(x, n) / static_cast<double>(n));
  const double variance = lanes::sum(n,
                                     [x, mean](std::int64_t t, std::int64_t count, lanes::Floats& out) CLEAVE_TERM {
                                       lanes::load(out, x + t, count, mean);
                                       out -= mean;
                                       out *= out;
                                     }) /
                          static_cast<double>(n);
  const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + eps));
  for (std::int64_t j = 0; j < n; ++j) y[j] = (x[j] - mean) * rstd * w[j] + b[j];
  *mean_out = mean;
  *rstd_out = rstd;
}

CLEAVE_CLONES void rms_norm_row(const float* x, std::int64_t n, const float* w, double eps, float* y, float* rstd_out) {
  const auto rstd = static_cast<float>(1.0 / std::sqrt(lanes::dot(x, x, n) / static_cast<double>(n) + eps));
  for (std::int64_t j = 0; j < n; ++j) y[j] = x[j] * rstd * w[j];
  *rstd_out = rstd;
}

/// Sums over one row that its dx needs: of g = dy * w and of g * n, n = (x - mean) * rstd. Adds the row to the chunk's
/// dw and, where kBias, db.
template <bool kBias>
CLEAVE_INLINE void add_row_sums(const float* x, std::int64_t n, const float* w, float mean, float rstd, const float* dy,
                                float* dw, float* db, double* g_sum, double* gn_sum) {
  using lanes::Floats;
  *g_sum = *gn_sum = 0;
  for (std::int64_t block = 0; block < n; block += lanes::kBlock) {
    const std::int64_t end = n - block < lanes::kBlock ? n : block + lanes::kBlock;
    Floats g_lanes = {}, gn_lanes = {};
    const auto take = [&](std::int64_t t, std::int64_t count) CLEAVE_TERM {
      Floats normed, upstream, g, sum;
      lanes::load_streamed(normed, x + t, count);
      lanes::load_streamed(upstream, dy + t, count);
      lanes::load(g, w + t, count);
      normed = (normed - mean) * rstd;
      g *= upstream;
      lanes::load(sum, dw + t, count);
      sum += upstream * normed;
      lanes::store(dw + t, sum, count);
      if constexpr (kBias) {
        lanes::load(sum, db + t, count);
        sum += upstream;
        lanes::store(db + t, sum, count);
        g_lanes += g;
      }
      gn_lanes += g * normed;
    };
    std::int64_t t = block;
    for (; t + lanes::kLanes <= end; t += lanes::kLanes) take(t, lanes::kLanes);
    if (t < end) take(t, end - t);  // beyond the end g is 0
    *g_sum += static_cast<double>(lanes::add_up(g_lanes));
    *gn_sum += static_cast<double>(lanes::add_up(gn_lanes));
  }
}

/// One row of either backward pass; a null db stands for RMSNorm, where no mean was taken off. A null dx is not wanted.
CLEAVE_CLONES void norm_backward_row(const float* x, std::int64_t n, const float* w, float mean, float rstd,
                                     const float* dy, float* dx, float* dw, float* db) {
  double g_sum = 0, gn_sum = 0;
  if (db == nullptr)
    add_row_sums<false>(x, n, w, mean, rstd, dy, dw, db, &g_sum, &gn_sum);
  else
    add_row_sums<true>(x, n, w, mean, rstd, dy, dw, db, &g_sum, &gn_sum);
  if (dx == nullptr) return;
  const auto g_mean = static_cast<float>(g_sum / static_cast<double>(n));
  const auto gn_mean = static_cast<float>(gn_sum / static_cast<double>(n));
  for (std::int64_t j = 0; j < n; ++j) dx[j] = rstd * (dy[j] * w[j] - g_mean - (x[j] - mean) * rstd * gn_mean);
}

/// out[j] = sum over chunks of partial[chunk * stride + j], in double.
void add_chunks(Parallel& parallel, const float* partial, std::int64_t chunks, std::int64_t stride, std::int64_t n,
                float* out) {
  parallel.for_chunks(n, 1024, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      double sum = 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += static_cast<double>(partial[chunk * stride + j]);
      out[j] = static_cast<float>(sum);
    }
  });
}

/// Keeps dw and db of a chunk from lying a multiple of 4 KiB apart, where the processor takes a load from one for a
/// load of what was just stored in the other.
constexpr std::int64_t kApart = 80;

void norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* mean, const float* rstd, ConstRows dy,
                   Rows dx, float* dw, float* db) {
  const std::int64_t n = x.cols, chunks = (x.rows + kSumRows - 1) / kSumRows, column_sums = n + kApart,
                     stride = 2 * column_sums;
  const bool wanted = dx.data != nullptr;
  CLEAVE_ASSERT(dy.rows == x.rows && dy.cols == n && (!wanted || (dx.rows == x.rows && dx.cols == n)),
                "shapes differ from {} x {}", x.rows, n);
  thread_local std::vector<float> memory;  // kept: fresh pages would cost more than the sums
  memory.assign(static_cast<std::size_t>(chunks * stride), 0.0F);
  float* const partial = memory.data();
  parallel.for_chunks(x.rows, kSumRows, [&](std::int64_t begin, std::int64_t end) {
    float* sums = partial + begin / kSumRows * stride;
    for (std::int64_t i = begin; i < end; ++i)
      norm_backward_row(x.row(i), n, w, mean == nullptr ? 0.0f : mean[i], rstd[i], dy.row(i),
                        wanted ? dx.row(i) : nullptr, sums, db == nullptr ? nullptr : sums + column_sums);
  });
  add_chunks(parallel, partial, chunks, stride, n, dw);
  if (db != nullptr) add_chunks(parallel, partial + column_sums, chunks, stride, n, db);
}

}  // namespace

void layer_norm(Parallel& parallel, ConstRows x, const float* w, const float* b, double eps, Rows y, float* mean,
                float* rstd) {
  for_rows(parallel, x.rows, x.cols,
           [&](std::int64_t i) { layer_norm_row(x.row(i), x.cols, w, b, eps, y.row(i), mean + i, rstd + i); });
}

void layer_norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* mean, const float* rstd,
                         ConstRows dy, Rows dx, float* dw, float* db) {
  norm_backward(parallel, x, w, mean, rstd, dy, dx, dw, db);
}

void rms_norm(Parallel& parallel, ConstRows x, const float* w, double eps, Rows y, float* rstd) {
  for_rows(parallel, x.rows, x.cols,
           [&](std::int64_t i) { rms_norm_row(x.row(i), x.cols, w, eps, y.row(i), rstd + i); });
}

void rms_norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* rstd, ConstRows dy, Rows dx,
                       float* dw) {
  norm_backward(parallel, x, w, nullptr, rstd, dy, dx, dw, nullptr);
}

}  // namespace cleave::kernels
