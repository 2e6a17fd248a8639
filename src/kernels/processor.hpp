// What the processor can do beyond what the program is compiled for.
#pragma once

namespace cleave::kernels {

/// Whether it has AVX-512 F, DQ, BW and VL, which the loops in *_avx512.cpp and BLIS's Skylake-X kernels need. May be
/// called before main.
[[nodiscard]] bool has_avx512();

}  // namespace cleave::kernels
