// K blocks one after another, each as panels::pack() makes it.
#include "cleave/kernels/packed_operand.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/base/shapes.hpp"
#include "micro_kernel.hpp"
#include "panels.hpp"

namespace cleave::kernels {

namespace {

/// Panels that are packed together.
constexpr std::int64_t kColumnsTogether = 16;

std::int64_t width() {
  const MicroKernel& kernel = MicroKernel::selected();
  return kernel.by_rows ? kernel.nr : kernel.mr;
}

}  // namespace

PackedOperand::PackedOperand(Parallel& parallel, ConstMatrix b, std::int64_t k, std::int64_t n, BlockPool& pool)
    : k_(k),
      n_(n),
      padded_(panels::count(n, width()) * width()),
      bytes_((padded_ * k + kBeyond) * static_cast<std::int64_t>(sizeof(float))),
      block_(&pool, static_cast<std::size_t>(bytes_)) {
  const std::int64_t step = kColumnsTogether * width();
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
    const std::int64_t depth = std::min(kBlockK, k - k0);
    float* const to = reinterpret_cast<float*>(block_.data()) + k0 * padded_;
    parallel.for_chunks(n, step, [&](std::int64_t begin, std::int64_t end) {
      panels::pack(b.from(k0, begin).transposed(), end - begin, depth, width(), to + begin * depth);
    });
  }
}

const float* PackedOperand::panels(std::int64_t block, std::int64_t j) const {
  CLEAVE_ASSERT(j % width() == 0, "no panel begins with column {}", j);
  const std::int64_t k0 = block * kBlockK, depth = std::min(kBlockK, k_ - k0);
  return reinterpret_cast<const float*>(block_.data()) + k0 * padded_ + j * depth;
}

}  // namespace cleave::kernels
