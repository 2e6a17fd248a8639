// A product cut into tiles of its result, so that what is summed of a tile stays in the last-level cache. Products do
// not depend on tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// Largest tile of sums, or of products that wait for the last block's: small enough to stay in the last-level cache,
/// large enough that each strip of the operands is packed few times. A product of one K block has neither.
inline constexpr std::int64_t kTile = 512, kAnyTile = std::int64_t{1} << 40;
/// Smallest tile that a matrix is cut into to give every thread one, and what tile sizes are rounded up to.
inline constexpr std::int64_t kSmallTile = 256, kTileUnit = 96;

struct Tile {
  std::int64_t i0, i1, j0, j1;
  [[nodiscard]] std::int64_t rows() const { return i1 - i0; }
  [[nodiscard]] std::int64_t cols() const { return j1 - j0; }
};

/// Cuts n into `parts` or fewer equal ranges; returns their length.
inline std::int64_t tile_length(std::int64_t n, std::int64_t parts) {
  const std::int64_t length = (n + parts - 1) / parts;
  return std::max(kTileUnit, (length + kTileUnit - 1) / kTileUnit * kTileUnit);
}

/// Calls body(tile) for tiles that fill m x n. Tiles may depend on the number of threads: products do not depend on
/// tiles.
template <class Body>
void for_tiles(Parallel& parallel, std::int64_t m, std::int64_t n, std::int64_t largest, const Body& body) {
  if (m <= 0 || n <= 0) return;
  std::int64_t down = (m + largest - 1) / largest, across = (n + largest - 1) / largest;
  while (parallel.threads() > 1 && down * across < 2 * parallel.threads() &&
         std::max(m / down, n / across) > kSmallTile)
    ++(m / down >= n / across ? down : across);
  const std::int64_t rows = tile_length(m, down), cols = tile_length(n, across);
  down = (m + rows - 1) / rows;
  across = (n + cols - 1) / cols;
  parallel.for_chunks(down * across, 1, [&](std::int64_t index, std::int64_t) {
    const std::int64_t i0 = index / across * rows, j0 = index % across * cols;
    body(Tile{i0, std::min(m, i0 + rows), j0, std::min(n, j0 + cols)});
  });
}

}  // namespace cleave::kernels
