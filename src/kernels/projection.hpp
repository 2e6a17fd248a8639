// What checks of products by random vectors share: the vectors, sums in double, and how much honest rounding may err.
#pragma once

#include <cstdint>
#include <span>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/random.hpp"
#include "cleave/base/shapes.hpp"

namespace cleave::kernels::projection {

using Vector = KeptVector<double>;

/// Unit roundoff of fp32.
inline constexpr double kUnit = 0x1p-24;
/// product_check.hpp says where these two come from.
inline constexpr double kSafety = 4, kRoundingSafety = 8;

/// n values of +1 or -1. `part` tells apart several vectors of one stream.
[[nodiscard]] Vector random_signs(std::int64_t n, const Random& random, std::uint32_t part = 0);

/// *product = sum of row[j] * x[j], *square = sum of row[j]^2, j < n.
void dot_row(const float* row, const double* x, std::int64_t n, double* product, double* square);

/// products[i] = sum of M_ij x_j, squares[i] = sum of M_ij^2 (of integers: worthless), j < cols, for the rows i < rows
/// of M, whose elements have type f32, bf16, f16, i32 or i64 and whose rows lie `ld` elements apart.
void dot_rows(DType type, const void* matrix, std::int64_t ld, std::int64_t rows, std::int64_t cols, const double* x,
              double* products, double* squares);

/// y[j] += sum of weights[i] M_ij, squares[j] += sum of M_ij^2, i < rows, j < cols, for contiguous M of type f32, bf16
/// or f16.
void add_rows(DType type, const void* matrix, std::int64_t rows, std::int64_t cols, const double* weights, double* y,
              double* squares);

/// y[i] += column[i] * x, squares[i] += column[i]^2, i < n.
void add_column(const float* column, double x, std::int64_t n, double* y, double* squares);

/// Honest error of a row of n elements of one product, as a multiple of kUnit |A_i| |B|_F:
///   kSafety (sqrt(additions one after the other) + sqrt(block results that are added in fp32) + 1).
/// `depth`: of one block; `blocks`: added in fp32 (0 or 1: nothing is added, or in integers).
[[nodiscard]] double growth(std::int64_t depth, std::int64_t blocks);

/// Honest error from rounding a row of n elements with this sum of squares to the result's type.
[[nodiscard]] double rounding_error(DType result, std::int64_t n, double square);

/// How far n errors with random signs may add up beyond the root of their squares; never beyond the sum of n of them.
[[nodiscard]] double rounding_safety(std::int64_t n);

/// error / bound, where an error without need is as bad as can be and NaN is worse than anything.
[[nodiscard]] double ratio_of(double error, double bound);

}  // namespace cleave::kernels::projection
