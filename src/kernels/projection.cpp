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

// Four elements of a row as doubles: a register of AVX2. GCC keeps wider vectors in memory there, piece by piece, and
// stores and loads them at every operation. Vectors are never passed by value (lanes.hpp says why).
using Doubles = double __attribute__((vector_size(32)));
using Floats = float __attribute__((vector_size(16)));
using Words = std::uint32_t __attribute__((vector_size(16)));
using Integers = std::int32_t __attribute__((vector_size(16)));
using LongWords = std::uint64_t __attribute__((vector_size(32)));
using Halves = std::uint16_t __attribute__((vector_size(8)));
constexpr std::int64_t kFour = 4;

template <class T, class FourOfT>
struct Plain {
  using Element = T;
  CLEAVE_INLINE static void load(const T* from, Doubles& to) {
    FourOfT values;
    __builtin_memcpy(&values, from, sizeof values);
    to = __builtin_convertvector(values, Doubles);
  }
};
using F32 = Plain<float, Floats>;
using I32 = Plain<std::int32_t, Integers>;

// AVX2 has no conversion of 64-bit integers. The upper 32 bits, their sign turned, are put into the last bits of 2^84,
// the lower ones into those of 2^52; what is too much is taken off, exactly, and the sum of both rounds once.
struct I64 {
  using Element = std::int64_t;
  CLEAVE_INLINE static void load(const std::int64_t* from, Doubles& to) {
    LongWords bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    const LongWords upper = (bits >> 32) ^ 0x4530000080000000U, lower = (bits & 0xffffffffU) | 0x4330000000000000U;
    Doubles high, low;
    __builtin_memcpy(&high, &upper, sizeof high);
    __builtin_memcpy(&low, &lower, sizeof low);
    to = (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
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
    const Words special = Words(Integers(magnitude) >= 0x0f800000) & 0x7f800000U;  // AVX2 compares signed
    bits |= special | ((words & 0x8000U) << 16);
    __builtin_memcpy(&values, &bits, sizeof values);
    to = __builtin_convertvector(values, Doubles);
  }
};

/// The first `count` <= 4 elements; 0 beyond.
template <class Type>
CLEAVE_INLINE void load_some(const typename Type::Element* from, std::int64_t count, Doubles& to) {
  if (count == kFour) return Type::load(from, to);
  typename Type::Element padded[kFour] = {};
  for (std::int64_t l = 0; l < count; ++l) padded[l] = from[l];
  Type::load(padded, to);
}
CLEAVE_INLINE void load_some(const double* from, std::int64_t count, Doubles& to) {
  double padded[kFour] = {};
  if (count < kFour) {
    for (std::int64_t l = 0; l < count; ++l) padded[l] = from[l];
    from = padded;
  }
  __builtin_memcpy(&to, from, sizeof to);
}
CLEAVE_INLINE void store_some(const Doubles& from, std::int64_t count, double* to) {
  if (count == kFour)
    __builtin_memcpy(to, &from, sizeof from);
  else
    for (std::int64_t l = 0; l < count; ++l) to[l] = from[l];
}

/// Rows of dot_rows(): they share the loads of x, and their sums hide the latency of the additions.
constexpr int kTogether = 4;

/// Lane j mod 4 takes element j; lanes are added in order, so every instruction set gives the same bits.
template <class Type>
CLEAVE_INLINE void dot_rows_of(const typename Type::Element* matrix, std::int64_t ld, std::int64_t rows,
                               std::int64_t cols, const double* x, double* products, double* squares) {
  for (std::int64_t i = 0; i < rows; i += kTogether) {
    const typename Type::Element* at[kTogether];  // past the last row, the last row again
    for (int r = 0; r < kTogether; ++r) at[r] = matrix + (i + r < rows ? i + r : rows - 1) * ld;
    Doubles of_products[kTogether] = {}, of_squares[kTogether] = {};
    const auto add = [&](std::int64_t j, std::int64_t count) __attribute__((always_inline)) {
      Doubles weights, value;
      load_some(x + j, count, weights);
#pragma GCC unroll 4
      for (int r = 0; r < kTogether; ++r) {
        load_some<Type>(at[r] + j, count, value);
        of_products[r] += value * weights;
        of_squares[r] += value * value;
      }
    };
    std::int64_t j = 0;
    for (; j + kFour <= cols; j += kFour) add(j, kFour);
    if (j < cols) add(j, cols - j);
    for (int r = 0; r < kTogether && i + r < rows; ++r) {
      const Doubles &p = of_products[r], &s = of_squares[r];
      products[i + r] = ((p[0] + p[1]) + p[2]) + p[3];
      squares[i + r] = ((s[0] + s[1]) + s[2]) + s[3];
    }
  }
}

/// Rows of add_rows() that share one load and store of y and its squares.
constexpr int kAddedTogether = 8;

template <class Type, int kRows>
CLEAVE_INLINE void add_some_rows(const typename Type::Element* rows, std::int64_t cols, const double* weights,
                                 double* y, double* squares) {
  const auto add = [&](std::int64_t j, std::int64_t count) __attribute__((always_inline)) {
    // Two chains of additions each.
    Doubles sums[2] = {}, square_sums[2] = {}, value;
    load_some(y + j, count, sums[0]);
    load_some(squares + j, count, square_sums[0]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      load_some<Type>(rows + r * cols + j, count, value);
      sums[r % 2] += value * weights[r];
      square_sums[r % 2] += value * value;
    }
    store_some(sums[0] + sums[1], count, y + j);
    store_some(square_sums[0] + square_sums[1], count, squares + j);
  };
  std::int64_t j = 0;
  for (; j + kFour <= cols; j += kFour) add(j, kFour);
  if (j < cols) add(j, cols - j);
}

template <class Type>
CLEAVE_INLINE void add_rows_of(const typename Type::Element* matrix, std::int64_t rows, std::int64_t cols,
                               const double* weights, double* y, double* squares) {
  std::int64_t i = 0;
  for (; i + kAddedTogether <= rows; i += kAddedTogether)
    add_some_rows<Type, kAddedTogether>(matrix + i * cols, cols, weights + i, y, squares);
  for (; i < rows; ++i) add_some_rows<Type, 1>(matrix + i * cols, cols, weights + i, y, squares);
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
      return dispatch<add_rows_of<F32>>(static_cast<const float*>(matrix), rows, cols, weights, y, squares);
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
    case DType::f32: return dispatch<dot_rows_of<F32>>(as(0.0f), ld, rows, cols, x, products, squares);
    case DType::bf16: return dispatch<dot_rows_of<Bf16>>(as(std::uint16_t{}), ld, rows, cols, x, products, squares);
    case DType::f16: return dispatch<dot_rows_of<F16>>(as(std::uint16_t{}), ld, rows, cols, x, products, squares);
    case DType::i32: return dispatch<dot_rows_of<I32>>(as(std::int32_t{}), ld, rows, cols, x, products, squares);
    case DType::i64: return dispatch<dot_rows_of<I64>>(as(std::int64_t{}), ld, rows, cols, x, products, squares);
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
