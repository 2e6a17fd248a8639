// Exponents of row norms. By definition squares are summed in double: element t of a row goes to lane t mod 16,
// whatever the storage, so the exponents do not depend on whether rows or columns lie together in memory.
//
// All but a few in ten thousand exponents are the same for every sum within the error of adding in fp32, in any order.
// So that is done first, in half the time; rows that it does not settle, those of zeros among them, are summed
// in double.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm.hpp"
#include "lanes.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

using lanes::kLanes;
// Rows that advance together where rows are neighbours in memory: a page of each depth, of which every one begins on a
// page of its own where matrices are wide; of narrow ones fewer, so that there is some for each thread.
constexpr std::int64_t kMostRowsTogether = 1024, kRowsTogether = 256;
std::int64_t rows_together(std::int64_t rows) { return std::clamp(rows / 4, kRowsTogether, kMostRowsTogether); }
// Rows among these that may be summed in double one by one where rows are neighbours; more are summed together.
constexpr std::int64_t kFewRows = 8;

using EightDoubles = double __attribute__((vector_size(64)));
using EightSingles = float __attribute__((vector_size(32)));

/// sums[i] = about the sum over t of A[i,t]^2, in fp32, for `rows` <= kMostRowsTogether rows that are neighbours in
/// memory. Some depths are read side by side, and each line of as many next ones asked for on the way: a column of runs
/// is no stream that the processor recognises.
template <class Floats>
CLEAVE_INLINE void quick_sums_across(const float* a, std::int64_t depth_stride, std::int64_t rows, std::int64_t depth,
                                     float* sums) {
  for (std::int64_t i = 0; i < rows; ++i) sums[i] = 0;
  Floats sum, x;
  for (std::int64_t t = 0; t < depth; t += lanes::kStreams, a += lanes::kStreams * depth_stride) {
    const std::int64_t count = depth - t < lanes::kStreams ? depth - t : lanes::kStreams;
    std::int64_t i = 0;
    if (count == lanes::kStreams)
      for (; i + kLanes <= rows; i += kLanes) {
        lanes::load_all(sum, sums + i);
#pragma GCC unroll 4
        for (std::int64_t s = 0; s < lanes::kStreams; ++s) {
          __builtin_prefetch(a + (lanes::kStreams + s) * depth_stride + i, 0, 2);
          lanes::load_all(x, a + s * depth_stride + i);
          sum += x * x;
        }
        lanes::store_all(sums + i, sum);
      }
    for (std::int64_t s = 0; s < count; ++s)
      for (std::int64_t j = i; j < rows; ++j) sums[j] += a[s * depth_stride + j] * a[s * depth_stride + j];
  }
}

/// The same for rows whose elements are neighbours: lanes::kStreams rows side by side, each line of the next ones asked
/// for on the way. A row's sum is the same with any rows beside it.
template <class Floats>
CLEAVE_INLINE void quick_sums_along(const float* a, std::int64_t row_stride, std::int64_t depth, float* sums) {
  constexpr std::int64_t kStreams = lanes::kStreams;
  Floats lanes_of[kStreams] = {}, x;
  const float* const next = a + kStreams * row_stride;
  std::int64_t t = 0;
  for (; t + kLanes <= depth; t += kLanes) {
#pragma GCC unroll 4
    for (std::int64_t s = 0; s < kStreams; ++s) {
      __builtin_prefetch(next + s * row_stride + t, 0, 2);
      lanes::load_all(x, a + s * row_stride + t);
      lanes_of[s] += x * x;
    }
  }
#pragma GCC unroll 4
  for (std::int64_t s = 0; s < kStreams; ++s) {
    if (t < depth) {
      lanes::load(x, a + s * row_stride + t, depth - t);
      lanes_of[s] += x * x;
    }
    sums[s] = lanes::add_up(lanes_of[s]);
  }
}

/// Adds the squares of depths [0, kLanes) times `rounds` of eight rows, which are neighbours in memory, to their lanes.
CLEAVE_INLINE void add_eight_rows(const float* from, std::int64_t depth_stride, std::int64_t rounds, double* lanes,
                                  std::int64_t rows) {
  EightDoubles sums[kLanes];
#pragma GCC unroll 16
  for (std::int64_t l = 0; l < kLanes; ++l) __builtin_memcpy(&sums[l], lanes + l * rows, sizeof sums[l]);
  for (std::int64_t round = 0; round < rounds; ++round, from += kLanes * depth_stride) {
#pragma GCC unroll 16
    for (std::int64_t l = 0; l < kLanes; ++l) {
      EightSingles eight;
      __builtin_memcpy(&eight, from + l * depth_stride, sizeof eight);
      const EightDoubles x = __builtin_convertvector(eight, EightDoubles);
      sums[l] += x * x;
    }
  }
#pragma GCC unroll 16
  for (std::int64_t l = 0; l < kLanes; ++l) __builtin_memcpy(lanes + l * rows, &sums[l], sizeof sums[l]);
}

/// lanes[l * rows + i] += A[i,t]^2 for t = l, l + 16, ...; rows are neighbours in memory. Some depths of all rows pass
/// together, so that lines are used whole and sums stay in registers for a while; and those that come next are asked
/// for: the processor would not, from run to run.
CLEAVE_INLINE void add_squares_across(const float* a, std::int64_t depth_stride, std::int64_t rows, std::int64_t depth,
                                      double* lanes) {
  constexpr std::int64_t kRounds = 2, kTogether = kRounds * kLanes, kLine = 16;
  const std::int64_t eights = rows / 8 * 8, whole = depth / kTogether * kTogether;
  for (std::int64_t t0 = 0; t0 < whole; t0 += kTogether) {
    const float* const from = a + t0 * depth_stride;
    for (std::int64_t i = 0; i < eights; i += 8) {
      if (i % kLine == 0) {
        for (std::int64_t t = kTogether; t < 2 * kTogether; ++t) __builtin_prefetch(from + t * depth_stride + i, 0, 2);
      }
      add_eight_rows(from + i, depth_stride, kRounds, lanes + i, rows);
    }
  }
  for (std::int64_t t = 0; t < depth; ++t) {  // what is left: the last depths, the last rows
    double* const sums = lanes + t % kLanes * rows;
    for (std::int64_t i = t < whole ? eights : 0; i < rows; ++i) {
      const auto x = static_cast<double>(a[t * depth_stride + i]);
      sums[i] += x * x;
    }
  }
}

/// lanes[l] += a[t]^2 for t = l, l + 16, ...
CLEAVE_INLINE void add_squares_along(const float* a, std::int64_t stride, std::int64_t depth, double* lanes) {
  std::int64_t t = 0;
  if (stride == 1) {
    EightDoubles low = {}, high = {};
    for (; t + kLanes <= depth; t += kLanes) {
      EightSingles x[2];
      __builtin_memcpy(x, a + t, sizeof x);
      const EightDoubles x0 = __builtin_convertvector(x[0], EightDoubles),
                         x1 = __builtin_convertvector(x[1], EightDoubles);
      low += x0 * x0;
      high += x1 * x1;
    }
    __builtin_memcpy(lanes, &low, sizeof low);
    __builtin_memcpy(lanes + 8, &high, sizeof high);
  }
  for (; t < depth; ++t) {
    const auto x = static_cast<double>(a[t * stride]);
    lanes[t % kLanes] += x * x;
  }
}

double add_up(double* lanes, std::int64_t stride) {
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) lanes[l * stride] += lanes[(l + half) * stride];
  return lanes[0];
}

/// The least e for which sum <= 2^(2e), given that the sum was rounded up enough.
std::int16_t exponent_of(double sum_of_squares) {
  if (sum_of_squares == 0) return kZeroExponent;
  constexpr double kRoundingRoom = 1 + 0x1p-30;  // beyond the rounding of the sum itself for any depth below 2^22
  int exponent = 0;
  const double fraction = std::frexp(sum_of_squares * kRoundingRoom, &exponent);  // sum <= 2^exponent
  if (fraction == 0.5) --exponent;
  return static_cast<std::int16_t>((exponent + 1) >> 1);
}

/// The exponent of a row from its sum in fp32, unless sums within its error have several.
/// Additions of n terms of one sign in any order, squares rounded, are wrong by less than (n + 1) u / (1 - (n + 1) u)
/// of the sum, u = 2^-24 (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 4.2); twice
/// that also covers squares below fp32's normal numbers, for sums above 2^-100, and what the sum in double rounds.
std::optional<std::int16_t> exponent_if_settled(float quick_sum, std::int64_t depth) {
  constexpr float kSmallest = 0x1p-100F;
  constexpr double kLargestError = 0x1p-8;
  const auto sum = static_cast<double>(quick_sum);
  const double error = static_cast<double>(depth + 2) * 0x1p-23;
  if (!(quick_sum >= kSmallest) || !std::isfinite(sum) || error > kLargestError) return std::nullopt;
  const std::int16_t low = exponent_of(sum * (1 - error)), high = exponent_of(sum * (1 + error));
  return low == high ? std::optional(low) : std::nullopt;
}

}  // namespace

std::int16_t exponent_of_bound(double bound) {
  int exponent = 0;
  (void)std::frexp(bound, &exponent);
  return static_cast<std::int16_t>(exponent);
}

ProductStatus norm_exponents(Parallel& parallel, ConstMatrix a, std::int64_t rows, std::int64_t depth,
                             std::span<std::int16_t> exponents) {
  CLEAVE_ASSERT(std::ssize(exponents) >= rows, "{} exponents for {} rows", exponents.size(), rows);
  std::atomic<bool> bad{false};
  const auto store = [&](std::int64_t i, double sum) {
    if (!std::isfinite(sum)) {
      bad = true;
      sum = 0;
    }
    exponents[static_cast<std::size_t>(i)] = exponent_of(sum);
  };
  // Whether the exponent is known from a sum in fp32.
  const auto settle = [&](std::int64_t i, float quick_sum) {
    const std::optional<std::int16_t> exponent = exponent_if_settled(quick_sum, depth);
    if (exponent) exponents[static_cast<std::size_t>(i)] = *exponent;
    return exponent.has_value();
  };
  const auto sum_exactly = [&](std::int64_t i) {
    double lanes[kLanes] = {};
    dispatch<add_squares_along>(a.data + i * a.row_stride, a.col_stride, depth, lanes);
    store(i, add_up(lanes, 1));
  };
  const auto sum_rows = [&](std::int64_t begin, std::int64_t end) {
    std::int64_t i = begin;
    for (; a.col_stride == 1 && i + lanes::kStreams <= end; i += lanes::kStreams) {
      float quick[lanes::kStreams];
      CLEAVE_DISPATCH_LANES(quick_sums_along)(a.data + i * a.row_stride, a.row_stride, depth, quick);
      for (std::int64_t s = 0; s < lanes::kStreams; ++s)
        if (!settle(i + s, quick[s])) sum_exactly(i + s);
    }
    for (; i < end; ++i) sum_exactly(i);
  };
  // At most kRowsTogether of them, of which some are open.
  const auto sum_open = [&](std::int64_t begin, std::int64_t end, std::span<const std::int64_t> open) {
    if (std::ssize(open) <= kFewRows) {
      std::ranges::for_each(open, sum_exactly);
      return;
    }
    alignas(64) double lanes[kLanes * kRowsTogether] = {};
    dispatch<add_squares_across>(a.data + begin, a.col_stride, end - begin, depth, lanes);
    for (std::int64_t i = begin; i < end; ++i) store(i, add_up(lanes + (i - begin), end - begin));
  };
  const auto sum_neighbours = [&](std::int64_t begin, std::int64_t end) {
    float quick[kMostRowsTogether];
    CLEAVE_DISPATCH_LANES(quick_sums_across)(a.data + begin, a.col_stride, end - begin, depth, quick);
    for (std::int64_t first = begin; first < end; first += kRowsTogether) {
      const std::int64_t last = std::min(first + kRowsTogether, end);
      std::int64_t open[kRowsTogether], count = 0;
      for (std::int64_t i = first; i < last; ++i)
        if (!settle(i, quick[i - begin])) open[count++] = i;
      sum_open(first, last, {open, static_cast<std::size_t>(count)});
    }
  };
  if (a.row_stride == 1 && a.col_stride != 1) {
    parallel.for_chunks(rows, rows_together(rows), sum_neighbours);
  } else {
    parallel.for_chunks(rows, kRowsTogether, sum_rows);
  }
  return bad ? ProductStatus::not_representable : ProductStatus::ok;
}

}  // namespace cleave::kernels
