// Rows of block results to and from scaled integers: the inner loops of canonical products.
//
// A tile's column exponents are turned into factors once (ColumnScales); a row's exponent is given with the row. Where
// all exponents are moderate, block results are scaled in fp32, otherwise in double; scaling by powers of two is exact
// in both, so both give the same integers: an fp32 product may lose bits only where it is below 2^-126, and stays far
// below 1/2 then.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace cleave::kernels::quantize {

/// p of gemm.hpp: bits before the point of the scaled integers.
template <class Int>
inline constexpr int kScaleBits = sizeof(Int) == 4 ? 29 : 60;

/// Scaled block results outside [-2^kLimitBits, 2^kLimitBits), a quarter of the integers, are refused. Honest ones are
/// below 2^p * (1 + kBlockK * 2^-24).
template <class Int>
inline constexpr int kLimitBits = sizeof(Int) * 8 - 2;

/// Exponents from -kModerate to kModerate keep fp32 scaling in range: 2^(60 + 48) < 2^127, 2^(29 - 48) > 2^-126.
inline constexpr int kModerate = 48;

/// 2^exponent. Requires: -1022 <= exponent <= 1023.
[[nodiscard]] constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// 2^(p - e), by which a row of exponent e is scaled besides its columns' 2^-f.
template <class Int>
constexpr double down(int row_exponent) {
  return power_of_two(kScaleBits<Int> - row_exponent);
}
/// 2^(e - p), by which sums are scaled back.
template <class Int>
constexpr double up(int row_exponent) {
  return power_of_two(row_exponent - kScaleBits<Int>);
}

/// 2^-f_j and 2^f_j of neighbouring columns; see ColumnScales.
struct ColumnFactors {
  const float* down_narrow = nullptr;           ///< 2^-f; only where moderate
  const double *down = nullptr, *up = nullptr;  ///< 2^-f, 2^f
  bool moderate = true;
};

/// The factors of a tile's columns.
class ColumnScales {
 public:
  /// Takes the exponents over; keeps its memory from tile to tile.
  void assign(std::span<const std::int16_t> exponents);
  /// Of the columns from `first` on.
  [[nodiscard]] ColumnFactors from(std::int64_t first) const {
    return {down_narrow_.data() + first, down_.data() + first, up_.data() + first, moderate_};
  }

 private:
  std::vector<float> down_narrow_;
  std::vector<double> down_, up_;
  bool moderate_ = true;
};

/// Whether results replace sums or are added to them.
enum class Sums { set, add };

/// q_j = llrint(product[j] * 2^(p - row_exponent - f_j)), j < n. set_row: sums[j] = q_j; add_row: sums[j] += q_j.
/// Returns whether an element was not finite or larger than its exponents allow; then the sums are worthless.
/// Int: std::int32_t or std::int64_t.
template <class Int>
[[nodiscard]] bool set_row(const float* product, std::int64_t n, int row_exponent, const ColumnFactors& columns,
                           Int* sums);
template <class Int>
[[nodiscard]] bool add_row(const float* product, std::int64_t n, int row_exponent, const ColumnFactors& columns,
                           Int* sums);

/// c[j] = float(double(sums[j]) * 2^(row_exponent + f_j - p)). Returns whether a result overflowed.
template <class Int>
[[nodiscard]] bool finish_row(const Int* sums, std::int64_t n, int row_exponent, const ColumnFactors& columns,
                              float* c);

/// add_row, then finish_row, in one pass; sums are left as they were.
template <class Int>
[[nodiscard]] bool add_and_finish_row(const float* product, std::int64_t n, int row_exponent,
                                      const ColumnFactors& columns, const Int* sums, float* c);

/// Block results of the same elements, of 2 or 3 K blocks.
struct BlockRows {
  const float* row[3] = {};
  int count = 0;
};

/// set_row and add_row of all blocks, then finish_row, in one pass without sums in memory. c may be one of the rows.
template <class Int>
[[nodiscard]] bool sum_and_finish_row(const BlockRows& products, std::int64_t n, int row_exponent,
                                      const ColumnFactors& columns, float* c);

/// Bands of at most so many columns are narrow: each of their rows lies on another page, and processors do not fetch
/// over the end of one by themselves.
inline constexpr std::int64_t kFewColumns = 64;

/// Asks for what row i + kRowsAhead of a band of `rows` rows and n columns has in `from`, if the band is narrow.
template <class T>
void fetch_ahead(const T* from, std::int64_t ld, std::int64_t i, std::int64_t rows, std::int64_t n) {
  constexpr std::int64_t kRowsAhead = 8, kLine = 64 / sizeof(T);
  if (n > kFewColumns || i + kRowsAhead >= rows) return;
  const T* const later = from + (i + kRowsAhead) * ld;
  for (std::int64_t j = 0; j < n; j += kLine) __builtin_prefetch(later + j, 1);
}

/// set_row or add_row for `rows` rows: products of row i at products + i ld, its exponent row_exponents[i], its sums at
/// sums + i sums_ld.
template <class Int>
[[nodiscard]] bool sum_rows(Sums how, const float* products, std::int64_t ld, std::int64_t rows, std::int64_t n,
                            const std::int16_t* row_exponents, const ColumnFactors& columns, Int* sums,
                            std::int64_t sums_ld);

/// The first rows of BlockRows, and how far apart the rows of each lie.
struct BlockBands {
  BlockRows first;
  std::int64_t ld[3] = {};
};
/// sum_and_finish_row for `rows` rows, likewise; c of row i at c + i c_ld.
template <class Int>
[[nodiscard]] bool sum_and_finish_rows(const BlockBands& products, std::int64_t rows, std::int64_t n,
                                       const std::int16_t* row_exponents, const ColumnFactors& columns, float* c,
                                       std::int64_t c_ld);

/// into[j] += from[j], wrapping around on overflow.
template <class Int>
void add_integers(const Int* from, std::int64_t n, Int* into);

/// Whether the first n elements of each row are finite.
[[nodiscard]] bool rows_are_finite(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t n);

}  // namespace cleave::kernels::quantize
