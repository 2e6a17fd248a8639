// What files of loops written for one instruction set need, where there may be such a processor: intrinsics, and
// attributes for functions that are compiled for it whatever the rest of the program is compiled for. Included by
// sources alone.
#pragma once

#include "versions.hpp"

#ifdef CLEAVE_HAS_VERSIONS
#ifndef __clang__  // GCC 12 warns about the undefined registers of its own header (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#define CLEAVE_AVX2_INLINE CLEAVE_AVX2 __attribute__((always_inline)) inline
#define CLEAVE_AVX512_INLINE CLEAVE_AVX512 __attribute__((always_inline)) inline

namespace cleave::kernels {

/// The first `count` of 16 lanes: none for less than one, all for more.
CLEAVE_AVX512_INLINE __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1U << std::max<std::int64_t>(0, count)) - 1);
}

}  // namespace cleave::kernels
#endif
