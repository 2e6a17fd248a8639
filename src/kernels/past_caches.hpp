// Results that are stored past the caches: their lines are not read from memory first, and leave what is in the caches
// there. For those so large that little of them would still be in a cache when they are read.
#pragma once

#include <cstdint>
#include <cstring>

#include "cleave/kernels/matrix.hpp"
#include "lanes.hpp"
#include "versions.hpp"

#ifdef CLEAVE_HAS_VERSIONS
#include <immintrin.h>  // of it SSE alone, which every x86-64 processor has
#endif

namespace cleave::kernels {

/// Whether a result is to be stored past the caches. Not where it replaces what it is made `of`, which is in a cache;
/// its rows must begin cache lines.
inline bool passes_caches(Rows result, ConstRows of) {
  constexpr std::int64_t kLargerThanCaches = std::int64_t{8} << 20, kLine = 16;  // floats: 32 MiB, 64 B
  return result.data != nullptr && result.data != of.data && result.rows * result.cols >= kLargerThanCaches &&
         result.ld % kLine == 0 && reinterpret_cast<std::uintptr_t>(result.data) % (kLine * sizeof(float)) == 0;
}

/// lanes::store, where `past_caches` past the caches; `to` begins a line then. Other threads see what was stored after
/// finish_stores_past_caches().
template <class Floats>
CLEAVE_INLINE void store_result(float* to, const Floats& from, std::int64_t count, [[maybe_unused]] bool past_caches) {
#ifdef CLEAVE_HAS_VERSIONS
  if (past_caches && count == lanes::kLanes) {
    __m128 quarters[lanes::kLanes / 4];
    static_assert(sizeof quarters == sizeof from);
    std::memcpy(quarters, &from, sizeof quarters);
    for (int i = 0; i < lanes::kLanes / 4; ++i) _mm_stream_ps(to + 4 * i, quarters[i]);
    return;
  }
#endif
  lanes::store(to, from, count);
}

CLEAVE_INLINE void finish_stores_past_caches() {
#ifdef CLEAVE_HAS_VERSIONS
  _mm_sfence();
#endif
}

}  // namespace cleave::kernels
