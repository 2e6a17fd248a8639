// Vectors, dot products in double, and bounds.
#include "projection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cleave/base/error.hpp"
#include "clones.hpp"

namespace cleave::kernels::projection {

namespace {

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

}  // namespace

Vector random_signs(std::int64_t n, const Random& random, std::uint32_t part) {
  Vector x(static_cast<std::size_t>(n));
  for (std::int64_t j = 0; j < n; j += 64) {
    const std::uint64_t bits =
        random.bits((static_cast<std::uint64_t>(part) << 32) + static_cast<std::uint64_t>(j / 64));
    for (std::int64_t l = j; l < std::min(n, j + 64); ++l) x[l] = ((bits >> (l - j)) & 1) != 0 ? 1.0 : -1.0;
  }
  return x;
}

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

CLEAVE_CLONES void add_column(const float* column, double x, std::int64_t n, double* y, double* squares) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(column[i]);
    y[i] += value * x;
    squares[i] += value * value;
  }
}

double growth(std::int64_t depth, std::int64_t blocks) {
  const double added = blocks > 1 ? std::sqrt(static_cast<double>(blocks)) : 0.0;
  return kSafety * (std::sqrt(static_cast<double>(depth)) + added + 1);
}

double rounding_safety(std::int64_t n) { return std::min(kRoundingSafety, std::sqrt(static_cast<double>(n))); }

double rounding_error(DType result, std::int64_t n, double square) {
  const Rounding rounding = rounding_of(result);
  return rounding_safety(n) *
         (rounding.relative * std::sqrt(square) + rounding.absolute * std::sqrt(static_cast<double>(n)));
}

double ratio_of(double error, double bound) {
  if (error == 0) return 0;
  const double ratio = std::abs(error) / bound;
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

}  // namespace cleave::kernels::projection
