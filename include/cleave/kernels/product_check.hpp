// Checks a product that somebody else computed, at the cost of three matrix-vector products (Freivalds 1979).
//
// For a random vector x of +-1, C x is compared with A (B x), in double. A block with one wrong element fails unless
// the error is lost in rounding; an adversary who does not know x escapes with probability 1/2 at most, and only by
// errors that cancel in every row (all rows share one x).
//
// The bound for row i: rounding errors of fp32 products are sums of about min(k, kBlockK) independent roundings of
// partial sums that are at most |A_i| |B_j| each (Cauchy-Schwarz), so they grow as the square root (Higham and Mary
// 2019), and the signs of x make the errors of a row add up as a square root too:
//   bound_i = kSafety * u * (sqrt(min(k, kBlockK)) + 1) * |A_i| * |B|_F  + what rounding the result adds,
// u = 2^-24, the 1 for rounding C itself. Even if every partial sum were as large as its bound and every rounding a
// whole u, an honest row would pass kSafety = 4 with probability 1 - 2 exp(-8) (Hoeffding); partial sums that grow
// evenly and evenly spread roundings are a third of that in the mean square, which leaves 2 exp(-72).
//
// Rounding a result to 16 bits, or to an integer, may well err alike in a whole row (equal elements do), so there only
// the signs of x help: 8 times the root of the sum of squares, exceeded with probability 2 exp(-32).
#pragma once

#include <cstdint>
#include <span>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/random.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/kernels/gemm.hpp"

namespace cleave::kernels {

/// Which neighbours in a matrix are neighbours in memory.
enum class Stored : std::uint8_t { by_rows, by_columns };

/// The check of one block. It takes the operands as they are sent, band by band, so that a band can be looked at while
/// it is still in the cache that it was gathered through; what it keeps is a few vectors.
class ProductCheck {
 public:
  /// C[m x n] = A[m x k] B[k x n], operands in type `operands` (f32, bf16 or f16). x is drawn from `random`; a device
  /// must not be able to know it.
  ProductCheck(GemmShape shape, DType operands, const Random& random);

  /// Takes rows (or columns, as stored) [first, first + count) of B or A; they are contiguous. Every row (column) is
  /// taken once, and a matrix is taken by rows or by columns throughout. Requires, for take_a(): B is complete; or B
  /// comes by rows and A by columns, and rows [first, first + count) of B were taken.
  void take_b(Stored stored, const void* lines, std::int64_t first, std::int64_t count);
  void take_a(Stored stored, const void* lines, std::int64_t first, std::int64_t count);

  /// The largest ratio of a row's error to its bound among rows [first, first + count) of C: at most 1 for an honest
  /// block, infinite where C is not finite. `rows`: these rows as they were received, row-major and contiguous, in type
  /// `result` (f32, bf16 or f16), each element rounded to it once. Requires: A and B are complete.
  [[nodiscard]] double ratio_of(DType result, const void* rows, std::int64_t first, std::int64_t count) const {
    return ratio_of(result, rows, first, count, InUnits{});
  }
  /// For sums over tokens with a 16-bit wire (token_sums.hpp): C = `rows` times `scale`, and C is the sum of `products`
  /// products, each rounded to a multiple of `unit`.
  struct InUnits {
    double scale = 1, unit = 0;
    std::int64_t products = 0;
  };
  [[nodiscard]] double ratio_of(DType result, const void* rows, std::int64_t first, std::int64_t count,
                                const InUnits& in_units) const;
  /// The same for partial sums over a run of K blocks; A and B are the run's part of the operands. Each K block adds
  /// half a unit of 2^(e_i + f_j - p) to the bound (gemm.hpp). row_exponents [m], col_exponents [n]: e and f of the
  /// whole block. `products`: number of products that were added; 0: the number of K blocks.
  [[nodiscard]] double ratio_of(ConstPartialSums rows, std::int64_t first, std::int64_t count,
                                std::span<const std::int16_t> row_exponents,
                                std::span<const std::int16_t> col_exponents, std::int64_t products = 0) const;

 private:
  GemmShape shape_;
  DType operands_;
  std::int64_t lines_of_b_ = 0, lines_of_a_ = 0;  // taken so far
  bool b_complete_ = false, b_by_rows_ = false, complete_ = false;
  double b_square_ = 0;                 // of |B|_F
  KeptVector<double> x_, bx_;           // bx_ is given up when all is there
  KeptVector<double> values_, bounds_;  // A (B x); error of honest products
};

/// True where no element is infinite or NaN; for partial sums, where none is larger than honest ones can be (gemm.hpp).
/// `type`: any type that a result travels in. data: `elements` elements. One pass through memory.
[[nodiscard]] bool all_representable(DType type, const void* data, std::int64_t elements);

}  // namespace cleave::kernels
