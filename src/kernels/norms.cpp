// LayerNorm and RMSNorm. The backward pass reads each row once: it writes dx and adds to the column sums of its chunk,
// and the chunks' sums are added in order at the end.
#include "cleave/kernels/norms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "lanes.hpp"
#include "past_caches.hpp"
#include "row_chunks.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

/// write(t, count) for every t, and the sum of what `term` makes of the next row's elements; 0 where there is none.
template <class Floats, class Write, class Term>
CLEAVE_INLINE double write_and_sum(const float* next, std::int64_t n, const Write& write, const Term& term) {
  if (next == nullptr) {
    lanes::for_each(n, write);
    return 0;
  }
  return lanes::sum<Floats>(n, [&](std::int64_t t, std::int64_t count, Floats& out) CLEAVE_TERM {
    write(t, count);
    lanes::load_streamed(out, next + t, count);
    term(out);
  });
}

/// Of the rows of a chunk: a row's result is written while the next row is summed, so that memory is read and written
/// at the same time. `past_caches`: whether results are stored past the caches.
template <class Floats>
CLEAVE_INLINE void layer_norm_rows(ConstRows x, const float* w, const float* b, double eps, Rows y, float* mean,
                                   float* rstd, bool past_caches) {
  const std::int64_t n = x.cols;
  double sum = x.rows > 0 ? lanes::sum<Floats>(x.row(0), n) : 0.0;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const float *const row = x.row(i), mean_i = static_cast<float>(sum / static_cast<double>(n));
    float* const to = y.row(i);
    const float* const next = i + 1 < x.rows ? x.row(i + 1) : nullptr;
    const float* const wanted_soon = past_caches && next != nullptr ? next : to;
    const double squares = lanes::sum<Floats>(n, [&](std::int64_t t, std::int64_t count, Floats& out) CLEAVE_TERM {
      lanes::fetch(wanted_soon + t);  // memory has nothing else to do
      lanes::load(out, row + t, count, mean_i);
      out -= mean_i;
      out *= out;
    });
    const auto rstd_i = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + eps));
    const auto write = [&](std::int64_t t, std::int64_t count) CLEAVE_TERM {
      Floats out, weight, bias;
      lanes::load(out, row + t, count);
      lanes::load(weight, w + t, count);
      lanes::load(bias, b + t, count);
      out = (out - mean_i) * rstd_i * weight + bias;
      store_result(to + t, out, count, past_caches);
    };
    sum = write_and_sum<Floats>(next, n, write, [](Floats&) CLEAVE_TERM {});
    mean[i] = mean_i;
    rstd[i] = rstd_i;
  }
  finish_stores_past_caches();
}

template <class Floats>
CLEAVE_INLINE void rms_norm_rows(ConstRows x, const float* w, double eps, Rows y, float* rstd, bool past_caches) {
  const std::int64_t n = x.cols;
  double squares = x.rows > 0 ? lanes::dot<Floats>(x.row(0), x.row(0), n) : 0.0;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const float* const row = x.row(i);
    float* const to = y.row(i);
    const auto rstd_i = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + eps));
    const auto write = [&](std::int64_t t, std::int64_t count) CLEAVE_TERM {
      Floats out, weight;
      lanes::load(out, row + t, count);
      lanes::load(weight, w + t, count);
      out = out * rstd_i * weight;
      store_result(to + t, out, count, past_caches);
    };
    squares = write_and_sum<Floats>(i + 1 < x.rows ? x.row(i + 1) : nullptr, n, write,
                                    [](Floats& out) CLEAVE_TERM { out *= out; });
    rstd[i] = rstd_i;
  }
  finish_stores_past_caches();
}

/// Rows that are worked on together, so that weights and column sums are read and written once for all of them: for
/// rows of some thousand elements these do not stay in the first-level cache beside the rows. As many as the processor
/// has registers for the sums of.
template <class Floats>
inline constexpr int kRowsAtOnce = 2;
template <>
inline constexpr int kRowsAtOnce<lanes::Whole> = 4;

/// A row in its backward pass. `mean` is 0 for RMSNorm, where none was taken off; dx is null where it is not wanted,
/// and stored past the caches where `past_caches`.
struct NormedRow {
  const float *x, *dy;
  float mean, rstd;
  float* dx;
  bool past_caches;
};

/// Sums over each row that its dx needs: of g = dy * w and of g * n, n = (x - mean) * rstd. Adds the rows, in order, to
/// the chunk's dw and, where kBias, db. Meanwhile the x of the `next` rows, if any, are fetched.
template <class Floats, bool kBias, int kRows>
CLEAVE_INLINE void add_row_sums(const NormedRow* rows, const NormedRow* next, std::int64_t n, const float* w, float* dw,
                                float* db, double* g_sum, double* gn_sum) {
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
        if (next != nullptr) lanes::fetch(next[r].x + t);
        Floats normed, upstream;
        lanes::load(normed, rows[r].x + t, count);
        lanes::load(upstream, rows[r].dy + t, count);
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

/// kRows rows of either backward pass; a null db stands for RMSNorm. Half of the rows that follow, null where there are
/// none, is fetched while these are summed, half while dx is written, so that memory is never idle.
template <class Floats, int kRows>
CLEAVE_INLINE void norm_backward_of(const NormedRow* rows, const NormedRow* next, std::int64_t n, const float* w,
                                    float* dw, float* db) {
  double g_sum[kRows], gn_sum[kRows];
  if (db == nullptr)
    add_row_sums<Floats, false, kRows>(rows, next, n, w, dw, db, g_sum, gn_sum);
  else
    add_row_sums<Floats, true, kRows>(rows, next, n, w, dw, db, g_sum, gn_sum);
  for (int r = 0; r < kRows; ++r) {
    const NormedRow row = rows[r];
    if (row.dx == nullptr) continue;
    const auto g_mean = static_cast<float>(g_sum[r] / static_cast<double>(n));
    const auto gn_mean = static_cast<float>(gn_sum[r] / static_cast<double>(n));
    const float* const next_dy = next == nullptr ? nullptr : next[r].dy;
    lanes::for_each(n, [&](std::int64_t t, std::int64_t count) CLEAVE_TERM {
      if (next_dy != nullptr) lanes::fetch(next_dy + t);
      Floats normed, upstream, weight;
      lanes::load(normed, row.x + t, count);
      lanes::load(upstream, row.dy + t, count);
      lanes::load(weight, w + t, count);
      normed = (normed - row.mean) * row.rstd;
      const Floats dx = (upstream * weight - g_mean - normed * gn_mean) * row.rstd;
      store_result(row.dx + t, dx, count, row.past_caches);
    });
  }
}

/// The rows of a chunk.
template <class Floats>
CLEAVE_INLINE void norm_backward_rows(const NormedRow* rows, std::int64_t count, std::int64_t n, const float* w,
                                      float* dw, float* db) {
  constexpr int kRows = kRowsAtOnce<Floats>;
  std::int64_t r = 0;
  for (; r + kRows <= count; r += kRows)
    norm_backward_of<Floats, kRows>(rows + r, r + 2 * kRows <= count ? rows + r + kRows : nullptr, n, w, dw, db);
  for (; r < count; ++r) norm_backward_of<Floats, 1>(rows + r, r + 1 < count ? rows + r + 1 : nullptr, n, w, dw, db);
  finish_stores_past_caches();
}

/// out[j] = sum over chunks of partial[chunk * stride + j], in double.
CLEAVE_INLINE void add_chunks_of(const float* partial, std::int64_t chunks, std::int64_t stride, std::int64_t n,
                                 float* out) {
  constexpr std::int64_t kColumns = 64;  // a few lines of each chunk at a time
  for (std::int64_t first = 0; first < n; first += kColumns) {
    const std::int64_t count = n - first < kColumns ? n - first : kColumns;
    double sums[kColumns] = {};
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* const from = partial + chunk * stride + first;
      for (std::int64_t j = 0; j < count; ++j) sums[j] += static_cast<double>(from[j]);
    }
    for (std::int64_t j = 0; j < count; ++j) out[first + j] = static_cast<float>(sums[j]);
  }
}
void add_chunks(Parallel& parallel, const float* partial, std::int64_t chunks, std::int64_t stride, std::int64_t n,
                float* out) {
  parallel.for_chunks(n, 1024, [&](std::int64_t begin, std::int64_t end) {
    dispatch<add_chunks_of>(partial + begin, chunks, stride, end - begin, out + begin);
  });
}

/// Keeps dw and db of a chunk from lying a multiple of 4 KiB apart, where the processor takes a load from one for a
/// load of what was just stored in the other.
constexpr std::int64_t kApart = 80;

void norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* mean, const float* rstd, ConstRows dy,
                   Rows dx, float* dw, float* db) {
  const std::int64_t n = x.cols, chunks = (x.rows + kSumRows - 1) / kSumRows, column_sums = n + kApart,
                     stride = 2 * column_sums;
  const bool wanted = dx.data != nullptr, past_caches = passes_caches(dx, dy);
  CLEAVE_ASSERT(dy.rows == x.rows && dy.cols == n && (!wanted || (dx.rows == x.rows && dx.cols == n)),
                "shapes differ from {} x {}", x.rows, n);
  thread_local std::vector<float> memory;  // kept: fresh pages would cost more than the sums
  memory.assign(static_cast<std::size_t>(chunks * stride), 0.0F);
  float* const partial = memory.data();
  parallel.for_chunks(x.rows, kSumRows, [&](std::int64_t begin, std::int64_t end) {
    NormedRow rows[kSumRows];
    for (std::int64_t i = begin; i < end; ++i)
      rows[i - begin] = {x.row(i),   dy.row(i), mean == nullptr ? 0.0F : mean[i], rstd[i], wanted ? dx.row(i) : nullptr,
                         past_caches};
    float* const sums = partial + begin / kSumRows * stride;
    CLEAVE_DISPATCH_LANES(norm_backward_rows)
    (rows, end - begin, n, w, sums, db == nullptr ? nullptr : sums + column_sums);
  });
  add_chunks(parallel, partial, chunks, stride, n, dw);
  if (db != nullptr) add_chunks(parallel, partial + column_sums, chunks, stride, n, db);
}

/// More rows than other kernels take at a time, since the first of a chunk is summed alone.
std::int64_t rows_of_chunk(std::int64_t cols) { return 4 * rows_per_chunk(cols); }

}  // namespace

void layer_norm(Parallel& parallel, ConstRows x, const float* w, const float* b, double eps, Rows y, float* mean,
                float* rstd) {
  const bool past_caches = passes_caches(y, x);
  parallel.for_chunks(x.rows, rows_of_chunk(x.cols), [&](std::int64_t begin, std::int64_t end) {
    CLEAVE_DISPATCH_LANES(layer_norm_rows)
    (x.band(begin, end), w, b, eps, y.band(begin, end), mean + begin, rstd + begin, past_caches);
  });
}

void layer_norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* mean, const float* rstd,
                         ConstRows dy, Rows dx, float* dw, float* db) {
  norm_backward(parallel, x, w, mean, rstd, dy, dx, dw, db);
}

void rms_norm(Parallel& parallel, ConstRows x, const float* w, double eps, Rows y, float* rstd) {
  const bool past_caches = passes_caches(y, x);
  parallel.for_chunks(x.rows, rows_of_chunk(x.cols), [&](std::int64_t begin, std::int64_t end) {
    CLEAVE_DISPATCH_LANES(rms_norm_rows)
    (x.band(begin, end), w, eps, y.band(begin, end), rstd + begin, past_caches);
  });
}

void rms_norm_backward(Parallel& parallel, ConstRows x, const float* w, const float* rstd, ConstRows dy, Rows dx,
                       float* dw) {
  norm_backward(parallel, x, w, nullptr, rstd, dy, dx, dw, nullptr);
}

}  // namespace cleave::kernels
