// Exponents of row norms. Squares are summed in double: element t of a row goes to lane t mod 16, whatever the storage,
// so the exponents do not depend on whether rows or columns lie together in memory.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm.hpp"
#include "clones.hpp"

namespace cleave::kernels {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kRowsTogether = 128;  // rows that advance together where rows are neighbours in memory

/// lanes[l * rows + i] += A[i,t]^2 for t = l, l + 16, ...; rows are neighbours in memory.
CLEAVE_CLONES void add_squares_across(const float* a, std::int64_t depth_stride, std::int64_t rows, std::int64_t depth,
                                      double* lanes) {
  for (std::int64_t t = 0; t < depth; ++t) {
    const float* line = a + t * depth_stride;
    double* lane = lanes + t % kLanes * rows;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto x = static_cast<double>(line[i]);
      lane[i] += x * x;
    }
  }
}

/// lanes[l] += a[t]^2 for t = l, l + 16, ...
CLEAVE_CLONES void add_squares_along(const float* a, std::int64_t stride, std::int64_t depth, double* lanes) {
  using Eight = double __attribute__((vector_size(64)));
  using EightFloats = float __attribute__((vector_size(32)));
  std::int64_t t = 0;
  if (stride == 1) {
    Eight low = {}, high = {};
    for (; t + kLanes <= depth; t += kLanes) {
      EightFloats x[2];
      __builtin_memcpy(x, a + t, sizeof x);
      const Eight x0 = __builtin_convertvector(x[0], Eight), x1 = __builtin_convertvector(x[1], Eight);
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

}  // namespace

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
  parallel.for_chunks(rows, kRowsTogether, [&](std::int64_t begin, std::int64_t end) {
    if (a.row_stride == 1 && a.col_stride != 1) {
      double lanes[kLanes * kRowsTogether] = {};
      add_squares_across(a.data + begin, a.col_stride, end - begin, depth, lanes);
      for (std::int64_t i = begin; i < end; ++i) store(i, add_up(lanes + (i - begin), end - begin));
    } else {
      for (std::int64_t i = begin; i < end; ++i) {
        double lanes[kLanes] = {};
        add_squares_along(a.data + i * a.row_stride, a.col_stride, depth, lanes);
        store(i, add_up(lanes, 1));
      }
    }
  });
  return bad ? ProductStatus::not_representable : ProductStatus::ok;
}

}  // namespace cleave::kernels
