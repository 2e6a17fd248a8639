// LayerNorm and RMSNorm. The backward pass reads each row once: it writes dx and adds to the column sums of its chunk,
// and the chunks' sums are added in order at the end.
#include "cleave/kernels/norms.hpp"

#include <fmt/format.h>

#include <algorithm>
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
                                     [x, y, mean](std::int64_t t, std::int64_t count, lanes::Floats& out) CLEAVE_TERM {
                                       __builtin_prefetch(y + t, 1, 2);  // memory has nothing else to do
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

/// Rows that are worked on together, so that weights and column sums are read and written once for all of them: for
/// rows of some thousand elements these do not stay in the first-level cache beside the rows.
constexpr int kTogether = 4;

/// What of a row its backward pass reads.
struct NormedRow {
  const float *x, *dy;
  float mean, rstd;
};

/// Sums over each row that its dx needs: of g = dy * w and of g * n, n = (x - mean) * rstd. Adds the rows, in order, to
/// the chunk's dw and, where kBias, db.
template <bool kBias, int kRows>
CLEAVE_INLINE void add_row_sums(const NormedRow* rows, std::int64_t n, const float* w, float* dw, float* db,
                                double* g_sum, double* gn_sum) {
  using lanes::Floats;
  for (int r = 0; r < kRows; ++r) g_sum[r] = gn_sum[r] = 0;
  for (std::int64_t block = 0; block < n; block += lanes::kBlock) {
    const std::int64_t end = n - block < lanes::kBlock ? n : block + lanes::kBlock;
    Floats g_lanes[kRows] = {}, gn_lanes[kRows] = {};
    const auto take = [&](std::int64_t t, std::int64_t count) CLEAVE_TERM {
      Floats weight, dw_lanes, db_lanes;
      lanes::load(weight, w + t, count);
      lanes::load(dw_lanes, dw + t, count);
      if constexpr (kBias) lanes::load(db_lanes, db + t, count);
      for (int r = 0; r < kRows; ++r) {
        Floats normed, upstream;
        lanes::load_streamed(normed, rows[r].x + t, count);
        lanes::load_streamed(upstream, rows[r].dy + t, count);
        normed = (normed - rows[r].mean) * rows[r].rstd;
        const Floats g = weight * upstream;
        dw_lanes += upstream * normed;
        if constexpr (kBias) {
          db_lanes += upstream;
          g_lanes[r] += g;
        }
        gn_lanes[r] += g * normed;
      }
      lanes::store(dw + t, dw_lanes, count);
      if constexpr (kBias) lanes::store(db + t, db_lanes, count);
    };
    std::int64_t t = block;
    for (; t + lanes::kLanes <= end; t += lanes::kLanes) take(t, lanes::kLanes);
    if (t < end) take(t, end - t);  // beyond the end g is 0
    for (int r = 0; r < kRows; ++r) {
      g_sum[r] += static_cast<double>(lanes::add_up(g_lanes[r]));
      gn_sum[r] += static_cast<double>(lanes::add_up(gn_lanes[r]));
    }
  }
}

/// One row, or kTogether, of either backward pass; a null db stands for RMSNorm, where no mean was taken off. dx[r] is
/// where a row's dx goes; a null one is not wanted.
template <int kRows>
CLEAVE_INLINE void norm_backward_of(const NormedRow* rows, std::int64_t n, const float* w, float* const* dx, float* dw,
                                    float* db) {
  double g_sum[kRows], gn_sum[kRows];
  if (db == nullptr)
    add_row_sums<false, kRows>(rows, n, w, dw, db, g_sum, gn_sum);
  else
    add_row_sums<true, kRows>(rows, n, w, dw, db, g_sum, gn_sum);
  for (int r = 0; r < kRows; ++r) {
    if (dx[r] == nullptr) continue;
    const auto g_mean = static_cast<float>(g_sum[r] / static_cast<double>(n));
    const auto gn_mean = static_cast<float>(gn_sum[r] / static_cast<double>(n));
    const float *x = rows[r].x, *dy = rows[r].dy, mean = rows[r].mean, rstd = rows[r].rstd;
    float* const to = dx[r];
    for (std::int64_t j = 0; j < n; ++j) to[j] = rstd * (dy[j] * w[j] - g_mean - (x[j] - mean) * rstd * gn_mean);
  }
}

CLEAVE_CLONES void norm_backward_rows(const NormedRow* rows, std::int64_t count, std::int64_t n, const float* w,
                                      float* const* dx, float* dw, float* db) {
  if (count == kTogether) return norm_backward_of<kTogether>(rows, n, w, dx, dw, db);
  for (std::int64_t r = 0; r < count; ++r) norm_backward_of<1>(rows + r, n, w, dx + r, dw, db);
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
    for (std::int64_t first = begin; first < end; first += kTogether) {
      const std::int64_t count = std::min<std::int64_t>(kTogether, end - first);
      NormedRow rows[kTogether];
      float* results[kTogether];
      for (std::int64_t r = 0; r < count; ++r) {
        const std::int64_t i = first + r;
        rows[r] = {x.row(i), dy.row(i), mean == nullptr ? 0.0f : mean[i], rstd[i]};
        results[r] = wanted ? dx.row(i) : nullptr;
      }
      norm_backward_rows(rows, count, n, w, results, sums, db == nullptr ? nullptr : sums + column_sums);
    }
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
