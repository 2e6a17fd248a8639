// Two registers of rows times each column, which is broadcast; of up to 16 rows, one.
#include "edge_kernel_avx512.hpp"

#include <type_traits>
#include <utility>

#include "intrinsics.hpp"

namespace cleave::kernels::edge {

#ifdef CLEAVE_HAS_VERSIONS

namespace {

constexpr std::int64_t kLanes = 16;

template <int kWanted, int kRegisters>
CLEAVE_AVX512 void multiply_columns(const Tile& tile) {
  __m512 sums[kWanted][kRegisters];
#pragma GCC unroll 12
  for (int j = 0; j < kWanted; ++j)
#pragma GCC unroll 2
    for (int r = 0; r < kRegisters; ++r) sums[j][r] = _mm512_setzero_ps();
  const float *a = tile.a, *b = tile.b;
  for (std::int64_t t = 0; t < tile.depth; ++t, a += kRows, b += kColumns) {
    __m512 rows[kRegisters];
#pragma GCC unroll 2
    for (int r = 0; r < kRegisters; ++r) rows[r] = _mm512_loadu_ps(a + r * kLanes);
#pragma GCC unroll 12
    for (int j = 0; j < kWanted; ++j) {
      const __m512 column = _mm512_set1_ps(b[j]);
#pragma GCC unroll 2
      for (int r = 0; r < kRegisters; ++r) sums[j][r] = _mm512_fmadd_ps(rows[r], column, sums[j][r]);
    }
  }
#pragma GCC unroll 12
  for (int j = 0; j < kWanted; ++j)
#pragma GCC unroll 2
    for (int r = 0; r < kRegisters; ++r) {
      float* const to = tile.c + j * tile.stride + r * kLanes;
      const __mmask16 wanted = first_lanes(tile.rows - r * kLanes);
      if (tile.accumulate) sums[j][r] = _mm512_add_ps(_mm512_maskz_loadu_ps(wanted, to), sums[j][r]);
      _mm512_mask_storeu_ps(to, wanted, sums[j][r]);
    }
}

template <int... kBefore>
void multiply_any(const Tile& tile, std::integer_sequence<int, kBefore...>) {
  const auto multiply_if = [&]<int kWanted>(std::integral_constant<int, kWanted>) {
    if (tile.columns != kWanted) return;
    if (tile.rows > kLanes) {
      multiply_columns<kWanted, 2>(tile);
    } else {
      multiply_columns<kWanted, 1>(tile);
    }
  };
  (multiply_if(std::integral_constant<int, kBefore + 1>()), ...);
}

}  // namespace

void multiply(const Tile& tile) { multiply_any(tile, std::make_integer_sequence<int, kColumns>()); }

#else
void multiply(const Tile&) {}
#endif

}  // namespace cleave::kernels::edge
