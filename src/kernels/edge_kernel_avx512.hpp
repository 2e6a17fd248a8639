// Micro-tiles that are not full, in AVX-512. BLIS computes a full one with zeros for them and copies what is wanted of
// it; this computes what is there: of 256 rows in micro-tiles of 12 the last 4 take a third of the time.
//
// Every element is the same sum as in a full micro-tile, fused multiply-adds from the first depth to the last, so that
// it does not show where a matrix was cut. MicroKernel compares the two before it uses this one.
#pragma once

#include <cstdint>

namespace cleave::kernels::edge {

/// Rows and columns of a full micro-tile.
inline constexpr std::int64_t kRows = 32, kColumns = 12;

/// c[j * stride + i] = sum over t of a[t kRows + i] * b[t kColumns + j] + (accumulate ? c[j * stride + i] : 0) for
/// i < rows, j < columns.
struct Tile {
  std::int64_t rows, columns, depth;
  const float *a, *b;  ///< micro-panels, of which all kRows and kColumns elements may be read
  bool accumulate;
  float* c;
  std::int64_t stride;
};

/// Requires: 0 < rows <= kRows, 0 < columns <= kColumns; usable_instructions() is avx512.
void multiply(const Tile& tile);

}  // namespace cleave::kernels::edge
