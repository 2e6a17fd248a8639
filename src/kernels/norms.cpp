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

/// One row of either backward pass; a null db stands for RMSNorm, whose mean is 0 and whose g has no mean taken off.
/// normed and g are scratch of n floats; dw and db are the chunk's sums.
CLEAVE_CLONES void norm_backward_row(const float* x, std::int64_t n, const float* w, float mean, float rstd,
                                     const float* dy, float* dx, float* normed, float* g, float* dw, float* db) {
  for (std::int64_t j = 0; j < n; ++j) {
    normed[j] = (x[j] - mean) * rstd;
    g[j] = dy[j] * w[j];
    dw[j] += dy[j] * normed[j];
  }
  if (db != nullptr)
    for (std::int64_t j = 0; j < n; ++j) db[j] += dy[j];
  const auto size = static_cast<double>(n);
  const float g_mean = db == nullptr ? 0.0f : static_cast<float>(lanes::sum(g, n) / size);
  const auto gn_mean = static_cast<float>(lanes::dot(g, normed, n) / size);
  for (std::int64_t j = 0; j < n; ++j) dx[j] = rstd * (g[j] - g_mean - normed[j] * gn_mean);
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

void norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* mean, const float* rstd, ConstRows dy,
                   Rows dx, float* dw, float* db) {
  const std::int64_t n = x.cols, chunks = (x.rows + kSumRows - 1) / kSumRows, stride = 2 * n;
  CLEAVE_ASSERT(dy.rows == x.rows && dx.rows == x.rows && dy.cols == n && dx.cols == n, "shapes differ from {} x {}",
                x.rows, n);
  std::vector<float> partial(static_cast<std::size_t>(chunks * stride));
  parallel.for_chunks(x.rows, kSumRows, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<float> scratch;
    scratch.resize(static_cast<std::size_t>(2 * n));
    float* sums = partial.data() + begin / kSumRows * stride;
    for (std::int64_t i = begin; i < end; ++i)
      norm_backward_row(x.row(i), n, w, mean == nullptr ? 0.0f : mean[i], rstd[i], dy.row(i), dx.row(i), scratch.data(),
                        scratch.data() + n, sums, db == nullptr ? nullptr : sums + n);
  });
  add_chunks(parallel, partial.data(), chunks, stride, n, dw);
  if (db != nullptr) add_chunks(parallel, partial.data() + n, chunks, stride, n, db);
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
