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

#include "cleave/base/random.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/kernels/gemm.hpp"

namespace cleave::kernels {

/// Ratio of the largest row error to its bound: at most 1 for an honest block, infinite where C is not finite.
/// `result`: how C was rounded on its way (f32: not at all; bf16, f16: each element once, then widened to fp32).
/// x is drawn from `random`; a device must not be able to know it.
[[nodiscard]] double check_product(GemmShape shape, ConstMatrix a, ConstMatrix b, ConstMatrix c, DType result,
                                   const Random& random);

/// Whether no element is infinite or NaN; of partial sums, whether none is larger than honest ones can be (gemm.hpp).
/// One pass through memory. `type`: any that a result travels in; `elements` of it at `data`.
[[nodiscard]] bool all_representable(DType type, const void* data, std::int64_t elements);

/// check_product() for partial sums over a run of K blocks: A[m x k], B[k x n] of the run. Each block adds at most half
/// a unit of 2^(e_i + f_j - p), which goes into the bound.
[[nodiscard]] double check_partial_sums(GemmShape shape, ConstMatrix a, ConstMatrix b, ConstPartialSums sums,
                                        std::span<const std::int16_t> row_exponents,
                                        std::span<const std::int16_t> col_exponents, const Random& random);

}  // namespace cleave::kernels
