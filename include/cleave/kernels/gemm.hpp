// Matrix products with the same bits for any tiling: C[m x n] = A[m x k] * B[k x n], in fp32.
//
// Callers: device (its box of a product), server (strips' exponents, assembling boxes, blocks it computes itself).
//
// Definition. K is cut into blocks of kBlockK at fixed offsets. The product P_b over block b is computed by BLIS's
// micro-kernel, in runs of its own depth kc, so that elements have the same bits in whatever tile they are computed.
// With one block, C = P_0. With more, each element is
//   C[i,j] = float( 2^(e_i + f_j - p) * sum over b of llrint(P_b[i,j] * 2^(p - e_i - f_j)) ),
// the sum in integers, which is associative, so that any runs of blocks may be added in any order. e_i and f_j are
// exponents with |A_i| <= 2^e_i and |B_j| <= 2^f_j (2-norms over the whole k); p = 29 with 32-bit, 60 with 64-bit
// integers.
//
// No overflow: by Cauchy-Schwarz, sum over any blocks of |P_b[i,j]| <= sum |A_ib| |B_jb| <= |A_i| |B_j| <= 2^(e_i+f_j),
// so a sum of honest block results stays below 2^p * (1 + rounding), a quarter of what the integer holds.
#pragma once

#include <cstdint>
#include <span>

#include "cleave/base/shapes.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/packed_operand.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// How a product ended. `not_representable`: an operand, a block result or C is infinite, NaN or larger than its
/// exponents allow; the output is then unspecified (and never an integer made from a NaN that anybody may use).
enum class [[nodiscard]] ProductStatus{ok, not_representable};

/// Exponent of a row of zeros, for which any value is valid. It is small, so that it widens no error bound, and within
/// the range of the fast kernels (quantize.hpp), since rows of zeros are common.
inline constexpr std::int16_t kZeroExponent = -48;

/// Whether a result is added to what is there.
enum class Accumulate { no, yes };

/// C (+)= A * B over one K block, on the calling thread.
/// Any strides; to accumulate, C's rows must be contiguous. A, B, C must not overlap. Requires: 0 <= k <= kBlockK.
void gemm_block(GemmShape shape, ConstMatrix a, ConstMatrix b, Matrix c, Accumulate accumulate = Accumulate::no);

/// Exponents e_i with sqrt(sum over t of A[i,t]^2) <= 2^e_i for the rows of A[rows x depth]; for the columns of
/// B[k x n], pass B.transposed() and rows = n. The same bits for any storage order and any number of threads.
/// Writes exponents[0, rows). Requires: depth is the whole k of the product.
ProductStatus norm_exponents(Parallel& parallel, ConstMatrix a, std::int64_t rows, std::int64_t depth,
                             std::span<std::int16_t> exponents);

/// An exponent e for rows whose 2-norm is at most `bound`: bound < 2^e <= 2 bound. Requires: bound > 0.
[[nodiscard]] std::int16_t exponent_of_bound(double bound);

/// Scaled integers of m x n elements, row-major, rows `ld` elements apart. type: DType::i32 or DType::i64.
struct PartialSums {
  DType type = DType::i64;
  void* data = nullptr;
  std::int64_t ld = 0;
};
struct ConstPartialSums {
  DType type = DType::i64;
  const void* data = nullptr;
  std::int64_t ld = 0;
  ConstPartialSums() = default;
  ConstPartialSums(DType element, const void* first, std::int64_t rows_apart)
      : type(element), data(first), ld(rows_apart) {}
  ConstPartialSums(const PartialSums& sums) : type(sums.type), data(sums.data), ld(sums.ld) {}
};

/// sums (+)= scaled integers of A * B over a run of whole K blocks (the last may be short if it is the last of the
/// product). A[m x k], B[k x n] are the run's part of the operands: the run begins at their column and row 0.
/// row_exponents[m], col_exponents[n]: norm_exponents over the whole depth of the product.
/// Requires: the product has more than one K block (otherwise multiply_whole gives C itself).
ProductStatus multiply_box(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b,
                           std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                           PartialSums sums, Accumulate accumulate = Accumulate::no);

/// Operands of one of several products that are summed: A[m x k] and B[k x n].
struct ProductOperands {
  ConstMatrix a, b;
  std::int64_t k = 0;
};

/// sums (+)= the sum over the products of multiply_box(). The sums pass through memory once, not once a product.
/// Requires, errors: as multiply_box().
ProductStatus multiply_boxes(Parallel& parallel, std::int64_t m, std::int64_t n,
                             std::span<const ProductOperands> products, std::span<const std::int16_t> row_exponents,
                             std::span<const std::int16_t> col_exponents, PartialSums sums, Accumulate accumulate);

/// into += from, element by element, m x n. Sums of what an untrusted device sent wrap around where they overflow, as
/// unsigned integers do; honest ones cannot (see above). Requires: same type.
void add_partial_sums(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums from, PartialSums into);

/// C[i,j] = float(sums[i,j] * 2^(e_i + f_j - p)), once all K blocks are in the sums.
/// C: one of its strides is 1.
ProductStatus finish_partial_sums(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                  std::span<const std::int16_t> row_exponents,
                                  std::span<const std::int16_t> col_exponents, Matrix c);

/// C = A * B over the whole k, with the bits that any cut into boxes gives for this accumulator (partial_sum_type).
/// C: one of its strides is 1. The exponents are not read where k has one block. k = 0 gives zeros.
ProductStatus multiply_whole(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b,
                             std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                             DType accumulator, Matrix c);

/// The same for a packed B: A[m x b.k()], C[m x b.n()] with contiguous rows.
ProductStatus multiply_whole(Parallel& parallel, std::int64_t m, ConstMatrix a, const PackedOperand& b,
                             std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                             DType accumulator, Matrix c);

}  // namespace cleave::kernels
