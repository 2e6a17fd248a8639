// PackedOperand: B[k x n] of several products C = A B, packed once in the order in which the micro-kernel reads it.
//
// A product of few rows spends much of its time on packing the weights that it multiplies by; who multiplies chunk by
// chunk by the same ones packs them once. The bits are those of the product without it.
#pragma once

#include <cstdint>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/units.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

class PackedOperand {
 public:
  PackedOperand() = default;
  /// Packs B, any strides; B is not read afterwards. `pool` must outlive it.
  PackedOperand(Parallel& parallel, ConstMatrix b, std::int64_t k, std::int64_t n, BlockPool& pool);
  [[nodiscard]] bool empty() const { return block_.empty(); }
  [[nodiscard]] std::int64_t k() const { return k_; }
  [[nodiscard]] std::int64_t n() const { return n_; }
  [[nodiscard]] Bytes bytes() const { return Bytes(bytes_); }
  /// The panels of K block `block` from column j on. Requires: j begins a panel.
  [[nodiscard]] const float* panels(std::int64_t block, std::int64_t j) const;

 private:
  std::int64_t k_ = 0, n_ = 0, padded_ = 0;  // columns, up to whole panels
  std::int64_t bytes_ = 0;
  PooledBlock block_;
};

}  // namespace cleave::kernels
