// Sums over tokens of a rectangle of a gradient (token_sums.hpp), as whoever adds to them keeps them.
//
// fp32: 64 bits an element. 16-bit wires: 32 bits, and 32 more for every element of a row in which some sum has once
// been too large for them. The integers are the same in either; only memory tells.
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

class TokenSumMatrix {
 public:
  TokenSumMatrix() = default;
  /// All zero. `pool`: of the memory of 64-bit sums; it must outlive the matrix.
  TokenSumMatrix(std::int64_t rows, std::int64_t cols, TokenUnit unit, BlockPool* pool = nullptr);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] TokenUnit unit() const { return unit_; }
  [[nodiscard]] bool empty() const { return rows_ == 0; }
  /// fp32: nothing was added yet.
  [[nodiscard]] bool untouched() const { return untouched_ && !narrow(); }
  /// Partial sums by this rule are to be kept in such a matrix: they may need more than the bits of their type.
  [[nodiscard]] static bool sums(const SumRule& rule) {
    return rule.tokens.seq > 0 && rule.tokens.unit.wire != DType::f32;
  }

  /// Whether something is added, or an earlier addition of the same undone.
  enum class Sign { add, take_away };
  /// += A[rows x k] B[k x cols] over k tokens. Requires: as multiply_tokens(). Errors: not_representable.
  ProductStatus add_product(Parallel& parallel, std::int64_t k, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                            Sign sign = Sign::add);
  /// += several of them. Requires: fp32. Errors: as above.
  ProductStatus add_products(Parallel& parallel, std::span<const TokenProduct> products);
  /// += the sums of columns over sequences of `seq` rows, block by block. Requires: one row. Errors: as above.
  ProductStatus add_columns(Parallel& parallel, ConstRows of, std::int64_t seq, Sign sign = Sign::add);

  /// A rectangle of it.
  struct Part {
    std::int64_t row = 0, rows = 0, col = 0, cols = 0;
    bool operator==(const Part&) const = default;
  };
  [[nodiscard]] Part whole() const { return {0, rows_, 0, cols_}; }
  /// += partial sums of a part, of either type.
  void add(Parallel& parallel, const Part& part, ConstPartialSums from);
  /// The type in which partial sums of a part travel: the wire's (partial_sum_type), or 64 bits where one of them is
  /// beyond 2^30.
  [[nodiscard]] DType partial_type(const Part& part) const;
  /// Partial sums of a part. Requires: `to` is of partial_type(), or of 64 bits.
  void partial_sums(Parallel& parallel, const Part& part, PartialSums to) const;
  /// C = float(sums) of a part as it is sent, not yet rounded to the wire type. C: rows are contiguous.
  /// Errors: not_representable.
  ProductStatus finish(Parallel& parallel, const Part& part, Matrix c) const;

  [[nodiscard]] Bytes memory() const;
  /// Rows that have 64 bits though their wire type has 16; of all, or of those of a part.
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
