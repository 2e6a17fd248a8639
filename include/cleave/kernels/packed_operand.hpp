// PackedOperand: B[k x n] of several products C = A B, packed once in the order in which the micro-kernel reads it.
//
// A product with few rows of A spends much of its time on packing B. A caller that multiplies chunk after chunk by the
// same weights packs them once. The result has the same bits as without packing.
#pragma once

#include <cstdint>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/units.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// See the file comment. Move-only.
class PackedOperand {
 public:
  PackedOperand() = default;
  /// Packs B [k x n], any strides. B is not read afterwards. Requires: `pool` outlives the object.
  /// Errors: std::bad_alloc.
  PackedOperand(Parallel& parallel, ConstMatrix b, std::int64_t k, std::int64_t n, BlockPool& pool);
  [[nodiscard]] bool empty() const { return block_.empty(); }
  [[nodiscard]] std::int64_t k() const { return k_; }
  [[nodiscard]] std::int64_t n() const { return n_; }
  [[nodiscard]] Bytes bytes() const { return Bytes(bytes_); }
  /// The packed panels of K block `block`, from column j on. Requires: j is the first column of a panel.
  [[nodiscard]] const float* panels(std::int64_t block, std::int64_t j) const;

 private:
  std::int64_t k_ = 0, n_ = 0, padded_ = 0;  // columns, up to whole panels
  std::int64_t bytes_ = 0;
  PooledBlock block_;
};

}  // namespace cleave::kernels
