// Freivalds' check: B x, then A (B x) beside C x row by row, in double.
#include "cleave/kernels/product_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cleave/base/error.hpp"
#include "clones.hpp"
#include "quantize.hpp"

namespace cleave::kernels {
namespace {

constexpr double kSafety = 4, kRoundingSafety = 8;  // product_check.hpp says why
constexpr double kUnit = 0x1p-24;

using Vector = std::vector<double>;

/// n values of +1 or -1.
Vector random_signs(std::int64_t n, const Random& random) {
  Vector x(static_cast<std::size_t>(n));
  for (std::int64_t j = 0; j < n; j += 64) {
    const std::uint64_t bits = random.bits(static_cast<std::uint64_t>(j / 64));
    for (std::int64_t l = j; l < std::min(n, j + 64); ++l) x[l] = ((bits >> (l - j)) & 1) != 0 ? 1.0 : -1.0;
  }
  return x;
}

/// Sum of row[j] * x[j] into *product and of row[j]^2 into *square, in 8 lanes.
CLEAVE_CLONES void dot_row(const float* row, const double* x, std::int64_t n, double* product, double* square) {
  using Doubles = double __attribute__((vector_size(64)));
  using EightFloats = float __attribute__((vector_size(32)));
  Doubles products = {}, squares = {};
  std::int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    EightFloats narrow;
    Doubles weights;
    __builtin_memcpy(&narrow, row + j, sizeof narrow);
    __builtin_memcpy(&weights, x + j, sizeof weights);
    const Doubles values = __builtin_convertvector(narrow, Doubles);
    products += values * weights;
    squares += values * values;
  }
  double total = 0, total_square = 0;
  for (int l = 0; l < 8; ++l) {
    total += products[l];
    total_square += squares[l];
  }
  for (; j < n; ++j) {
    const auto value = static_cast<double>(row[j]);
    total += value * x[j];
    total_square += value * value;
  }
  *product = total;
  *square = total_square;
}

/// y[i] += column[i] * x, squares[i] += column[i]^2.
CLEAVE_CLONES void add_column(const float* column, double x, std::int64_t n, double* y, double* squares) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(column[i]);
    y[i] += value * x;
    squares[i] += value * value;
  }
}

/// y = M x for M[rows x cols], walking through memory in its order; squares[i] = |M_i|^2.
Vector times(ConstMatrix matrix, std::int64_t rows, std::int64_t cols, const Vector& x, Vector& squares) {
  Vector y(static_cast<std::size_t>(rows));
  squares.assign(static_cast<std::size_t>(rows), 0.0);
  if (matrix.col_stride == 1) {
    for (std::int64_t i = 0; i < rows; ++i) dot_row(&matrix(i, 0), x.data(), cols, &y[i], &squares[i]);
  } else if (matrix.row_stride == 1) {
    for (std::int64_t j = 0; j < cols; ++j) add_column(&matrix(0, j), x[j], rows, y.data(), squares.data());
  } else {
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) row[j] = matrix(i, j);
      dot_row(row.data(), x.data(), cols, &y[i], &squares[i]);
    }
  }
  return y;
}

double sum(const Vector& x) {
  double total = 0;
  for (const double value : x) total += value;
  return total;
}

/// Largest relative error that one rounding to the type makes, and the largest error where its numbers are subnormal.
struct Rounding {
  double relative = 0, absolute = 0;
};
Rounding rounding_of(DType type) {
  switch (type) {
    case DType::f32: return {0, 0};
    case DType::bf16: return {0x1p-8, 0};
    case DType::f16: return {0x1p-11, 0x1p-25};
    default: break;
  }
  CLEAVE_ASSERT(false, "results of type {}", name_of(type));
}

/// What both checks share: expected = A (B x), and per row the bound on the error of honest rounding.
struct Expected {
  Vector x, values, bounds;
};
Expected expect(GemmShape shape, ConstMatrix a, ConstMatrix b, const Random& random) {
  Expected expected;
  expected.x = random_signs(shape.n, random);
  Vector b_squares, a_squares;
  const Vector bx = times(b, shape.k, shape.n, expected.x, b_squares);
  expected.values = times(a, shape.m, shape.k, bx, a_squares);
  const double growth = std::sqrt(static_cast<double>(std::min(shape.k, kBlockK))) + 1;
  const double b_norm = std::sqrt(sum(b_squares));
  for (const double square : a_squares)
    expected.bounds.push_back(kSafety * kUnit * growth * std::sqrt(square) * b_norm);
  return expected;
}

/// How far n errors with random signs may add up beyond the root of their squares; never beyond the sum of n of them.
double rounding_safety(std::int64_t n) { return std::min(kRoundingSafety, std::sqrt(static_cast<double>(n))); }

/// error / bound, where an error without need is as bad as can be and NaN is worse than anything.
double ratio_of(double error, double bound) {
  if (error == 0) return 0;
  const double ratio = std::abs(error) / bound;
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

}  // namespace

double check_product(GemmShape shape, ConstMatrix a, ConstMatrix b, ConstMatrix c, DType result, const Random& random) {
  const Rounding rounding = rounding_of(result);
  const Expected expected = expect(shape, a, b, random);
  Vector c_squares;
  const Vector cx = times(c, shape.m, shape.n, expected.x, c_squares);
  double worst = 0;
  for (std::int64_t i = 0; i < shape.m; ++i) {
    const double rounded =
        rounding.relative * std::sqrt(c_squares[i]) + rounding.absolute * std::sqrt(static_cast<double>(shape.n));
    worst =
        std::max(worst, ratio_of(cx[i] - expected.values[i], expected.bounds[i] + rounding_safety(shape.n) * rounded));
  }
  return worst;
}

double check_partial_sums(GemmShape shape, ConstMatrix a, ConstMatrix b, ConstPartialSums sums,
                          std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                          const Random& random) {
  CLEAVE_ASSERT(std::ssize(row_exponents) >= shape.m && std::ssize(col_exponents) >= shape.n,
                "{} row and {} column exponents for {} x {}", row_exponents.size(), col_exponents.size(), shape.m,
                shape.n);
  CLEAVE_ASSERT(sums.type == DType::i32 || sums.type == DType::i64, "partial sums of type {}", name_of(sums.type));
  const Expected expected = expect(shape, a, b, random);
  // Column j weighs 2^f_j x_j, row i 2^(e_i - p).
  Vector weights(static_cast<std::size_t>(shape.n));
  double weight_squares = 0;
  for (std::int64_t j = 0; j < shape.n; ++j) {
    const double scale = quantize::power_of_two(col_exponents[j]);
    weights[j] = scale * expected.x[j];
    weight_squares += scale * scale;
  }
  const auto row_times_weights = [&](const auto* row) {
    double total = 0;
    for (std::int64_t j = 0; j < shape.n; ++j) total += static_cast<double>(row[j]) * weights[j];
    return total;
  };
  const double quanta = 0.5 * static_cast<double>(k_blocks(shape.k)) * std::sqrt(weight_squares);
  const bool narrow = sums.type == DType::i32;
  double worst = 0;
  for (std::int64_t i = 0; i < shape.m; ++i) {
    const int bits = narrow ? quantize::kScaleBits<std::int32_t> : quantize::kScaleBits<std::int64_t>;
    const double scale = quantize::power_of_two(row_exponents[i] - bits);
    const double value = narrow ? row_times_weights(static_cast<const std::int32_t*>(sums.data) + i * sums.ld)
                                : row_times_weights(static_cast<const std::int64_t*>(sums.data) + i * sums.ld);
    worst = std::max(worst, ratio_of(value * scale - expected.values[i],
                                     expected.bounds[i] + rounding_safety(shape.n) * quanta * scale));
  }
  return worst;
}

}  // namespace cleave::kernels
