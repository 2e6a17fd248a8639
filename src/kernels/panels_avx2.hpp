// Packing of operands whose depths are neighbours, in AVX2: the panels of 6 and 16 rows that BLIS's Haswell kernels
// take.
#pragma once

#include <cstdint>

namespace cleave::kernels::panels::avx2 {

/// As avx512::transpose_panel (panels_avx512.hpp), for depths [0, result) alone, as many as go into whole registers;
/// none for other widths. Requires: usable_instructions() is avx2 or more; `width` rows.
[[nodiscard]] std::int64_t transpose_whole_panel(const float* from, std::int64_t stride, std::int64_t depth,
                                                 std::int64_t width, float* to);

}  // namespace cleave::kernels::panels::avx2
