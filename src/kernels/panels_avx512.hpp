// The transposing loop of panels.hpp in AVX-512.
#pragma once

#include <cstdint>

namespace cleave::kernels::panels::avx512 {

/// to[t width + r] = r < rows ? from[r stride + t] : 0 for r < width, t < depth. Requires: rows <= width <= kWidest;
/// usable_instructions() is avx512.
void transpose_panel(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t depth, std::int64_t width,
                     float* to);

}  // namespace cleave::kernels::panels::avx512
