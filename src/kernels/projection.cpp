// Vectors, dot products in double, and bounds.
#include "projection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cleave/base/error.hpp"
#include "projection_avx512.hpp"
#include "versions.hpp"

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

bool use_avx512() { return usable_instructions() >= Instructions::avx512; }

// Eight elements of a row as doubles. Vectors are never passed by value (lanes.hpp says why).
using Doubles = double __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(32)));
using Words = std::uint32_t __attribute__((vector_size(32)));
using Integers = std::int32_t __attribute__((vector_size(32)));
using LongIntegers = std::int64_t __attribute__((vector_size(64)));
using Halves = std::uint16_t __attribute__((vector_size(16)));

template <class T, class EightOfT>
struct Plain {
  using Element = T;
  CLEAVE_INLINE static void load(const T* from, Doubles& to) {
    EightOfT values;
    __builtin_memcpy(&values, from, sizeof values);
    to = __builtin_convertvector(values, Doubles);
  }
};

struct Bf16 {
  using Element = std::uint16_t;
  CLEAVE_INLINE static void load(const std::uint16_t* from, Doubles& to) {
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    Floats values;
    __builtin_memcpy(&values, &words, sizeof values);
    to = __builtin_convertvector(values, Doubles);
  }
};

struct F16 {
  using Element = std::uint16_t;
  CLEAVE_INLINE static void load(const std::uint16_t* from, Doubles& to) {
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words), magnitude = (words & 0x7fffU) << 13;
    // The bits as those of an fp32 number are 2^112 too small, exactly so for subnormals too (wire.cpp). What is not
    // finite has its exponent set to fp32's largest.
    Floats values;
    __builtin_memcpy(&values, &magnitude, sizeof values);
    values *= 0x1p112f;
    Words bits;
    __builtin_memcpy(&bits, &values, sizeof bits);
    const Words special = Words(magnitude >= 0x0f800000U) & 0x7f800000U;
    bits |= special | ((words & 0x8000U) << 16);
    __builtin_memcpy(&values, &bits, sizeof values);
    to = __builtin_convertvector(values, Doubles);
  }
};

constexpr int kTogether = 2;

struct Sums {
  Doubles products[kTogether] = {}, squares[kTogether] = {};
};

/// Adds eight elements of kTogether rows to their sums.
template <class Type>
CLEAVE_INLINE void add_eight(const typename Type::Element* const* rows, const double* x, Sums& sums) {
  Doubles weights, value;
  __builtin_memcpy(&weights, x, sizeof weights);
  for (int r = 0; r < kTogether; ++r) {
    Type::load(rows[r], value);
    sums.products[r] += value * weights;
    sums.squares[r] += value * value;
  }
}

/// Two rows at a time share the loads of x and hide each other's latency. Lane j mod 8 takes element j; lanes are added
/// in order, so every instruction set gives the same bits.
template <class Type>
CLEAVE_INLINE void dot_rows_of(const typename Type::Element* matrix, std::int64_t ld, std::int64_t rows,
                               std::int64_t cols, const double* x, double* products, double* squares) {
  const std::int64_t full = cols / 8 * 8;
  for (std::int64_t i = 0; i < rows; i += kTogether) {
    Sums sums;
    const typename Type::Element* at[kTogether];  // past the last row, the last row again
    for (int r = 0; r < kTogether; ++r) at[r] = matrix + (i + r < rows ? i + r : rows - 1) * ld;
    for (std::int64_t j = 0; j < full; j += 8) {
      add_eight<Type>(at, x + j, sums);
      for (int r = 0; r < kTogether; ++r) at[r] += 8;
    }
    if (full < cols) {
      typename Type::Element rest[kTogether][8] = {};
      double rest_x[8] = {};
      for (std::int64_t j = full; j < cols; ++j) {
        for (int r = 0; r < kTogether; ++r) rest[r][j - full] = at[r][j - full];
        rest_x[j - full] = x[j];
      }
      for (int r = 0; r < kTogether; ++r) at[r] = rest[r];
      add_eight<Type>(at, rest_x, sums);
    }
    for (int r = 0; r < kTogether && i + r < rows; ++r) {
      double product = 0, square = 0;
      for (int l = 0; l < 8; ++l) {
        product += sums.products[r][l];
        square += sums.squares[r][l];
      }
      products[i + r] = product;
      squares[i + r] = square;
    }
  }
}

template <class Type>
CLEAVE_INLINE void add_rows_of(const typename Type::Element* matrix, std::int64_t rows, std::int64_t cols,
                               const double* weights, double* y, double* squares) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const typename Type::Element* row = matrix + i * cols;
    for (std::int64_t j = 0; j < cols; j += 8) {
      const std::int64_t count = cols - j < 8 ? cols - j : 8;
      const auto bytes = static_cast<std::size_t>(count) * sizeof(double);
      typename Type::Element part[8] = {};
      Doubles value, sum = {}, square = {};
      if (count == 8) {
        Type::load(row + j, value);
      } else {
        for (std::int64_t l = 0; l < count; ++l) part[l] = row[j + l];
        Type::load(part, value);
      }
      __builtin_memcpy(&sum, y + j, bytes);
      __builtin_memcpy(&square, squares + j, bytes);
      sum += value * weights[i];
      square += value * value;
      __builtin_memcpy(y + j, &sum, bytes);
      __builtin_memcpy(squares + j, &square, bytes);
    }
  }
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

void add_rows(DType type, const void* matrix, std::int64_t rows, std::int64_t cols, const double* weights, double* y,
              double* squares) {
  if (use_avx512()) return avx512::add_rows(type, matrix, rows, cols, weights, y, squares);
  switch (type) {
    case DType::f32:
      return dispatch<add_rows_of<Plain<float, Floats>>>(static_cast<const float*>(matrix), rows, cols, weights, y,
                                                         squares);
    case DType::bf16:
      return dispatch<add_rows_of<Bf16>>(static_cast<const std::uint16_t*>(matrix), rows, cols, weights, y, squares);
    case DType::f16:
      return dispatch<add_rows_of<F16>>(static_cast<const std::uint16_t*>(matrix), rows, cols, weights, y, squares);
    default: break;
  }
  CLEAVE_ASSERT(false, "rows of type {}", name_of(type));
}

void dot_row(const float* row, const double* x, std::int64_t n, double* product, double* square) {
  dot_rows(DType::f32, row, n, 1, n, x, product, square);
}

void dot_rows(DType type, const void* matrix, std::int64_t ld, std::int64_t rows, std::int64_t cols, const double* x,
              double* products, double* squares) {
  if (use_avx512()) return avx512::dot_rows(type, matrix, ld, rows, cols, x, products, squares);
  const auto as = [&](auto element) { return static_cast<const decltype(element)*>(matrix); };
  switch (type) {
    case DType::f32: return dispatch<dot_rows_of<Plain<float, Floats>>>(as(0.0f), ld, rows, cols, x, products, squares);
    case DType::bf16: return dispatch<dot_rows_of<Bf16>>(as(std::uint16_t{}), ld, rows, cols, x, products, squares);
    case DType::f16: return dispatch<dot_rows_of<F16>>(as(std::uint16_t{}), ld, rows, cols, x, products, squares);
    case DType::i32:
      return dispatch<dot_rows_of<Plain<std::int32_t, Integers>>>(as(std::int32_t{}), ld, rows, cols, x, products,
                                                                  squares);
    case DType::i64:
      return dispatch<dot_rows_of<Plain<std::int64_t, LongIntegers>>>(as(std::int64_t{}), ld, rows, cols, x, products,
                                                                      squares);
    default: break;
  }
  CLEAVE_ASSERT(false, "rows of type {}", name_of(type));
}

namespace {

CLEAVE_INLINE void add_column_loop(const float* column, double x, std::int64_t n, double* y, double* squares) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(column[i]);
    y[i] += value * x;
    squares[i] += value * value;
  }
}

}  // namespace

void add_column(const float* column, double x, std::int64_t n, double* y, double* squares) {
  dispatch<add_column_loop>(column, x, n, y, squares);
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
