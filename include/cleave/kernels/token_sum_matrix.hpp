// TokenSumMatrix: the running sums over tokens (token_sums.hpp) of a rectangle of a gradient.
//
// With fp32 on the wire an element has 64 bits. With a 16-bit wire it has 32 bits, and a row in which some sum did not
// fit 32 bits is promoted: each of its elements gets 32 more. The value of a sum does not depend on it, memory does.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <span>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/base/units.hpp"
#include "cleave/kernels/token_sums.hpp"

namespace cleave::kernels {

/// See the file comment. Move-only. One call at a time; a call uses the threads of its Parallel.
class TokenSumMatrix {
 public:
  TokenSumMatrix() = default;
  /// rows x cols sums, all zero. `pool` gives the memory of 64-bit sums and must outlive the matrix; null:
  /// large_memory().
  TokenSumMatrix(std::int64_t rows, std::int64_t cols, TokenUnit unit, BlockPool* pool = nullptr);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] TokenUnit unit() const { return unit_; }
  [[nodiscard]] bool empty() const { return rows_ == 0; }
  /// True with fp32 on the wire and before the first addition.
  [[nodiscard]] bool untouched() const { return untouched_ && !narrow(); }
  /// True where partial sums by this rule need such a matrix: they may not fit partial_sum_type().
  [[nodiscard]] static bool sums(const SumRule& rule) {
    return rule.tokens.seq > 0 && rule.tokens.unit.wire != DType::f32;
  }

  /// take_away undoes an earlier addition of the same operands.
  enum class Sign { add, take_away };
  /// sums += A[rows x k] B[k x cols] over k tokens. Requires: the run of tokens begins and ends at borders; tokens.unit
  /// is unit(). Errors: not_representable.
  ProductStatus add_product(Parallel& parallel, std::int64_t k, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                            Sign sign = Sign::add);
  /// sums += all of these products, in one pass through memory. Requires: fp32 on the wire. Errors: not_representable.
  ProductStatus add_products(Parallel& parallel, std::span<const TokenProduct> products);
  /// sums[j] += the sum of column j, block by block (TokenBlocks). `of`: rows of whole sequences of `seq` rows each.
  /// Requires: the matrix has one row. Errors: not_representable.
  ProductStatus add_columns(Parallel& parallel, ConstRows of, std::int64_t seq, Sign sign = Sign::add);

  /// A rectangle of the matrix: rows [row, row + rows), columns [col, col + cols).
  struct Part {
    std::int64_t row = 0, rows = 0, col = 0, cols = 0;
    bool operator==(const Part&) const = default;
  };
  [[nodiscard]] Part whole() const { return {0, rows_, 0, cols_}; }
  /// Adds partial sums, [part.rows x part.cols] of i32 or i64, to a part. Integers wrap around where sums from an
  /// untrusted device overflow.
  void add(Parallel& parallel, const Part& part, ConstPartialSums from);
  /// The type in which partial sums of a part travel: partial_sum_type() of the wire type; i64 where one of them is
  /// larger than 2^30.
  [[nodiscard]] DType partial_type(const Part& part) const;
  /// Copies the partial sums of a part to `to`. Requires: to.type is partial_type(part) or i64.
  void partial_sums(Parallel& parallel, const Part& part, PartialSums to) const;
  /// C[part.rows x part.cols] = float(sums) of a part, in the unit of a finished gradient as it is sent
  /// (TokenUnit::as_sent()), not yet rounded to the wire type. Requires: C's rows are contiguous.
  /// Errors: not_representable.
  ProductStatus finish(Parallel& parallel, const Part& part, Matrix c) const;

  [[nodiscard]] Bytes memory() const;
  /// Number of promoted rows: of the matrix, or of the rows of a part. 0 with fp32 on the wire.
  [[nodiscard]] std::int64_t promoted_rows() const { return std::ssize(high_); }
  [[nodiscard]] std::int64_t promoted_rows(const Part& part) const {
    return std::distance(high_.lower_bound(part.row), high_.lower_bound(part.row + part.rows));
  }

 private:
  [[nodiscard]] bool narrow() const { return unit_.wire != DType::f32; }
  [[nodiscard]] std::int32_t* low(std::int64_t row, std::int64_t col) { return low_.data() + row * cols_ + col; }
  [[nodiscard]] const std::int32_t* low(std::int64_t row, std::int64_t col) const {
    return low_.data() + row * cols_ + col;
  }
  // High words of a row, or null.
  [[nodiscard]] const std::int32_t* high(std::int64_t row, std::int64_t col) const;
  // Calls use(low words, high words) of a row from a column on, alone among threads.
  template <class Use>
  auto with_high(std::int64_t row, std::int64_t col, const Use& use);
  bool add_row(std::int64_t row, std::int64_t col, const float* values, std::int64_t n, double factor);

  std::int64_t rows_ = 0, cols_ = 0;
  TokenUnit unit_;
  // Of 64-bit sums. What nothing was added to yet is written, not added to, and only then is memory of any value.
  [[nodiscard]] std::int64_t* wide() const { return reinterpret_cast<std::int64_t*>(wide_.data()); }
  [[nodiscard]] std::span<std::int64_t> zeroed_wide() const;

  PooledBlock wide_;  // fp32
  mutable bool untouched_ = true;
  KeptVector<std::int32_t> low_;
  std::map<std::int64_t, KeptVector<std::int32_t>> high_;  // by row
};

}  // namespace cleave::kernels
