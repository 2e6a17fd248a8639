// Freivalds' check: B x, then A (B x) beside C x row by row, in double.
#include "cleave/kernels/product_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "projection.hpp"
#include "quantize.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

/// True unless an element has all bits of the mask: those of the exponent, set in what is not finite.
template <class Word>
CLEAVE_INLINE bool none_is_special(const Word* words, std::int64_t n, Word mask) {
  Word found = 0;
  for (std::int64_t i = 0; i < n; ++i) found |= static_cast<Word>((words[i] & mask) == mask ? 1 : 0);
  return found == 0;
}

template <class Int>
CLEAVE_INLINE bool none_is_beyond(const Int* sums, std::int64_t n, std::int64_t most) {
  Int largest = 0, smallest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = sums[i] > largest ? sums[i] : largest;
    smallest = sums[i] < smallest ? sums[i] : smallest;
  }
  return largest <= most && smallest >= -most;
}

}  // namespace

ProductCheck::ProductCheck(GemmShape shape, DType operands, const Random& random)
    : shape_(shape),
      operands_(operands),
      x_(projection::random_signs(shape.n, random)),
      bx_(static_cast<std::size_t>(shape.k)),
      values_(static_cast<std::size_t>(shape.m)),
      bounds_(static_cast<std::size_t>(shape.m)) {}

void ProductCheck::take_b(Stored stored, const void* lines, std::int64_t first, std::int64_t count) {
  const bool by_rows = stored == Stored::by_rows;
  const std::int64_t all = by_rows ? shape_.k : shape_.n;
  CLEAVE_ASSERT(first >= 0 && first + count <= all, "lines {} to {} of {}", first, first + count, all);
  projection::Vector squares(static_cast<std::size_t>(by_rows ? count : shape_.k));
  if (by_rows) {
    projection::dot_rows(operands_, lines, shape_.n, count, shape_.n, x_.data(), bx_.data() + first, squares.data());
  } else {
    projection::add_rows(operands_, lines, count, shape_.k, x_.data() + first, bx_.data(), squares.data());
  }
  for (const double square : squares) b_square_ += square;
  lines_of_b_ += count;
  b_complete_ = lines_of_b_ == all;
  b_by_rows_ = by_rows;
}

void ProductCheck::take_a(Stored stored, const void* lines, std::int64_t first, std::int64_t count) {
  const bool by_rows = stored == Stored::by_rows;
  const std::int64_t all = by_rows ? shape_.m : shape_.k;
  CLEAVE_ASSERT(first >= 0 && first + count <= all, "lines {} to {} of {}", first, first + count, all);
  CLEAVE_ASSERT(b_complete_ || (!by_rows && b_by_rows_ && first + count <= lines_of_b_), "{} lines of B", lines_of_b_);
  if (by_rows) {
    projection::dot_rows(operands_, lines, shape_.k, count, shape_.k, bx_.data(), values_.data() + first,
                         bounds_.data() + first);
  } else {
    projection::add_rows(operands_, lines, count, shape_.m, bx_.data() + first, values_.data(), bounds_.data());
  }
  lines_of_a_ += count;
  complete_ = b_complete_ && lines_of_a_ == all;
  if (!complete_) return;
  const double per_norm = projection::kUnit * projection::growth(std::min(shape_.k, kBlockK), 1) * std::sqrt(b_square_);
  for (double& square : bounds_) square = per_norm * std::sqrt(square);
  bx_ = {};
}

double ProductCheck::ratio_of(DType result, const void* rows, std::int64_t first, std::int64_t count,
                              const InUnits& in_units) const {
  CLEAVE_ASSERT(complete_ && first + count <= shape_.m, "rows {} to {} of {}", first, first + count, shape_.m);
  projection::Vector cx(static_cast<std::size_t>(count)), squares(static_cast<std::size_t>(count));
  projection::dot_rows(result, rows, shape_.n, count, shape_.n, x_.data(), cx.data(), squares.data());
  const double quanta = projection::rounding_safety(shape_.n) * 0.5 * in_units.unit *
                        static_cast<double>(in_units.products) * std::sqrt(static_cast<double>(shape_.n));
  double worst = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double rounding = in_units.scale * projection::rounding_error(result, shape_.n, squares[i]);
    worst = std::max(worst, projection::ratio_of(in_units.scale * cx[i] - values_[first + i],
                                                 bounds_[first + i] + rounding + quanta));
  }
  return worst;
}

double ProductCheck::ratio_of(ConstPartialSums rows, std::int64_t first, std::int64_t count,
                              std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                              std::int64_t products) const {
  CLEAVE_ASSERT(complete_ && first + count <= shape_.m, "rows {} to {} of {}", first, first + count, shape_.m);
  CLEAVE_ASSERT(std::ssize(row_exponents) >= shape_.m && std::ssize(col_exponents) >= shape_.n,
                "{} row and {} column exponents for {} x {}", row_exponents.size(), col_exponents.size(), shape_.m,
                shape_.n);
  CLEAVE_ASSERT(rows.type == DType::i32 || rows.type == DType::i64, "partial sums of type {}", name_of(rows.type));
  // Column j weighs 2^f_j x_j, row i 2^(e_i - p).
  projection::Vector weights(static_cast<std::size_t>(shape_.n));
  double weight_squares = 0;
  for (std::int64_t j = 0; j < shape_.n; ++j) {
    const double scale = quantize::power_of_two(col_exponents[j]);
    weights[j] = scale * x_[j];
    weight_squares += scale * scale;
  }
  projection::Vector sx(static_cast<std::size_t>(count)), unused(static_cast<std::size_t>(count));
  projection::dot_rows(rows.type, rows.data, rows.ld, count, shape_.n, weights.data(), sx.data(), unused.data());
  const std::int64_t roundings = products > 0 ? products : k_blocks(shape_.k);
  const double quanta =
      projection::rounding_safety(shape_.n) * 0.5 * static_cast<double>(roundings) * std::sqrt(weight_squares);
  const int bits = rows.type == DType::i32 ? quantize::kScaleBits<std::int32_t> : quantize::kScaleBits<std::int64_t>;
  double worst = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double scale = quantize::power_of_two(row_exponents[first + i] - bits);
    worst =
        std::max(worst, projection::ratio_of(sx[i] * scale - values_[first + i], bounds_[first + i] + quanta * scale));
  }
  return worst;
}

bool all_representable(DType type, const void* data, std::int64_t elements) {
  // Twice the scale: an honest sum exceeds it by rounding only.
  constexpr std::int64_t kMost32 = std::int64_t{2} << quantize::kScaleBits<std::int32_t>,
                         kMost64 = std::int64_t{2} << quantize::kScaleBits<std::int64_t>;
  switch (type) {
    case DType::f32:
      return dispatch<none_is_special<std::uint32_t>>(static_cast<const std::uint32_t*>(data), elements, 0x7F80'0000U);
    case DType::bf16:
      return dispatch<none_is_special<std::uint16_t>>(static_cast<const std::uint16_t*>(data), elements,
                                                      std::uint16_t{0x7F80});
    case DType::f16:
      return dispatch<none_is_special<std::uint16_t>>(static_cast<const std::uint16_t*>(data), elements,
                                                      std::uint16_t{0x7C00});
    case DType::i32:
      return dispatch<none_is_beyond<std::int32_t>>(static_cast<const std::int32_t*>(data), elements, kMost32);
    case DType::i64:
      return dispatch<none_is_beyond<std::int64_t>>(static_cast<const std::int64_t*>(data), elements, kMost64);
    default: break;
  }
  CLEAVE_ASSERT(false, "results of type {}", name_of(type));
}

}  // namespace cleave::kernels
