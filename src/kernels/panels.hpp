// Operands in the order in which the micro-kernel reads them: micro-panels of `width` rows, element (row, t) of a panel
// at panel[t width + row], panels one after another, rows beyond the last filled with zeros.
#pragma once

#include <cstdint>

#include "cleave/kernels/matrix.hpp"

namespace cleave::kernels::panels {

/// Widest panel of any family of kernels.
inline constexpr std::int64_t kWidest = 48;

[[nodiscard]] constexpr std::int64_t count(std::int64_t rows, std::int64_t width) { return (rows + width - 1) / width; }
/// Floats that pack() writes.
[[nodiscard]] constexpr std::int64_t size(std::int64_t rows, std::int64_t depth, std::int64_t width) {
  return count(rows, width) * width * depth;
}

/// Packs from[rows x depth], any strides, into `to`. Requires: 0 < width <= kWidest.
void pack(ConstMatrix from, std::int64_t rows, std::int64_t depth, std::int64_t width, float* to);

}  // namespace cleave::kernels::panels
