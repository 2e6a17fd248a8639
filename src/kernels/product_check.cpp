// Freivalds' check: B x, then A (B x) beside C x row by row, in double.
#include "cleave/kernels/product_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "projection.hpp"
#include "quantize.hpp"

namespace cleave::kernels {
namespace {

using projection::Vector, projection::dot_row, projection::add_column, projection::ratio_of;

/// Rows of a transposed matrix that are worked on together: their sums fit the first-level cache.
constexpr std::int64_t kRowsInCache = 1024;

/// y = M x for M[rows x cols], walking through memory in its order; squares[i] = |M_i|^2.
Vector times(ConstMatrix matrix, std::int64_t rows, std::int64_t cols, const Vector& x, Vector& squares) {
  Vector y(static_cast<std::size_t>(rows));
  squares.assign(static_cast<std::size_t>(rows), 0.0);
  if (matrix.col_stride == 1) {
    for (std::int64_t i = 0; i < rows; ++i) dot_row(&matrix(i, 0), x.data(), cols, &y[i], &squares[i]);
  } else if (matrix.row_stride == 1) {
    for (std::int64_t i = 0; i < rows; i += kRowsInCache) {
      const std::int64_t count = std::min(kRowsInCache, rows - i);
      for (std::int64_t j = 0; j < cols; ++j) add_column(&matrix(i, j), x[j], count, y.data() + i, squares.data() + i);
    }
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

/// What both checks share: expected = A (B x), and per row the bound on the error of honest rounding.
struct Expected {
  Vector x, values, bounds;
};
Expected expect(GemmShape shape, ConstMatrix a, ConstMatrix b, const Random& random) {
  Expected expected;
  expected.x = projection::random_signs(shape.n, random);
  Vector b_squares, a_squares;
  const Vector bx = times(b, shape.k, shape.n, expected.x, b_squares);
  expected.values = times(a, shape.m, shape.k, bx, a_squares);
  const double growth = projection::growth(std::min(shape.k, kBlockK), 1);
  const double b_norm = std::sqrt(sum(b_squares));
  for (const double square : a_squares)
    expected.bounds.push_back(projection::kUnit * growth * std::sqrt(square) * b_norm);
  return expected;
}

/// True unless an element has all bits of the mask: those of the exponent, set in what is not finite.
template <class Word>
bool none_has_all(const Word* words, std::int64_t n, Word mask) {
  Word found = 0;
  for (std::int64_t i = 0; i < n; ++i) found |= static_cast<Word>((words[i] & mask) == mask ? 1 : 0);
  return found == 0;
}

template <class Int>
bool none_exceeds(const Int* sums, std::int64_t n, std::int64_t most) {
  Int largest = 0, smallest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, sums[i]);
    smallest = std::min(smallest, sums[i]);
  }
  return largest <= most && smallest >= -most;
}

}  // namespace

double check_product(GemmShape shape, ConstMatrix a, ConstMatrix b, ConstMatrix c, DType result, const Random& random) {
  const Expected expected = expect(shape, a, b, random);
  Vector c_squares;
  const Vector cx = times(c, shape.m, shape.n, expected.x, c_squares);
  double worst = 0;
  for (std::int64_t i = 0; i < shape.m; ++i) {
    const double bound = expected.bounds[i] + projection::rounding_error(result, shape.n, c_squares[i]);
    worst = std::max(worst, ratio_of(cx[i] - expected.values[i], bound));
  }
  return worst;
}

bool all_representable(DType type, const void* data, std::int64_t elements) {
  // Twice the scale: an honest sum exceeds it by rounding only.
  constexpr std::int64_t kMost32 = std::int64_t{2} << quantize::kScaleBits<std::int32_t>,
                         kMost64 = std::int64_t{2} << quantize::kScaleBits<std::int64_t>;
  switch (type) {
    case DType::f32: return none_has_all(static_cast<const std::uint32_t*>(data), elements, 0x7F80'0000U);
    case DType::bf16: return none_has_all(static_cast<const std::uint16_t*>(data), elements, std::uint16_t{0x7F80});
    case DType::f16: return none_has_all(static_cast<const std::uint16_t*>(data), elements, std::uint16_t{0x7C00});
    case DType::i32: return none_exceeds(static_cast<const std::int32_t*>(data), elements, kMost32);
    case DType::i64: return none_exceeds(static_cast<const std::int64_t*>(data), elements, kMost64);
    default: break;
  }
  CLEAVE_ASSERT(false, "results of type {}", name_of(type));
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
                                     expected.bounds[i] + projection::rounding_safety(shape.n) * quanta * scale));
  }
  return worst;
}

}  // namespace cleave::kernels
