// Products of attention, of which the causal mask makes one operand or the result a triangle: operands are packed once
// for all products that they take part in, and what is zero is passed over.
//
// Called by attention.cpp and attention_check.cpp. An element is added up as multiply_block() adds it up: its terms in
// order of depth, in runs of the micro-kernel's kc. Terms that are left out are zeros, which change no sum.
#pragma once

#include <cstdint>

#include "cleave/base/block_pool.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/matrix.hpp"

namespace cleave::kernels::triangle {

/// Which index of C an operand has: A its rows, B' its columns.
enum class Side { rows, columns };

/// An operand in the micro-panels of its side. Keeps its memory from packing to packing.
class Factor {
 public:
  explicit Factor(Side side);
  /// Packs from[n x depth].
  void pack(ConstMatrix from, std::int64_t n, std::int64_t depth);
  /// Packs row i of from[n x depth] up to element first + i at least, beyond which it is zero.
  void pack_below(ConstMatrix from, std::int64_t n, std::int64_t depth, std::int64_t first);

  [[nodiscard]] std::int64_t size() const { return n_; }
  [[nodiscard]] std::int64_t depth() const { return depth_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  /// The panel that begins with row i, at depth t. Requires: i is a multiple of the width.
  [[nodiscard]] const float* at(std::int64_t i, std::int64_t t) const;

 private:
  float* enough(std::int64_t n, std::int64_t depth);

  std::int64_t width_, n_ = 0, depth_ = 0;
  Block memory_;
};

/// C[i,j] = sum of A[i,t] B'[j,t] for j <= first + i; columns beyond may be left as they are. `c`: contiguous rows.
void multiply_below(const Factor& a, const Factor& b, std::int64_t first, Matrix c);
/// C = A B where A[i,t] = 0 for t > first + i, as packed by pack_below(first).
void multiply_lower(const Factor& a, const Factor& b, std::int64_t first, Matrix c);
/// C += A B where A[i,t] = 0 for first + t < i. Requires: depth() is at most one run of the micro-kernel.
void add_upper(const Factor& a, const Factor& b, std::int64_t first, Matrix c);

}  // namespace cleave::kernels::triangle
