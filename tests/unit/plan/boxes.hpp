// What tests of tilings share: rates of devices, and whether tiles fill what they should.
#pragma once

#include <gtest/gtest.h>

#include <set>

#include "bisect.hpp"
#include "fleets.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

inline std::int64_t volume_of_box(const GemmBox& box) { return box.m() * box.n() * box.k(); }

inline std::int64_t overlap_of(const GemmBox& a, const GemmBox& b) {
  const auto side = [](std::int64_t a0, std::int64_t a1, std::int64_t b0, std::int64_t b1) {
    return std::max<std::int64_t>(0, std::min(a1, b1) - std::max(a0, b0));
  };
  return side(a.m0, a.m1, b.m0, b.m1) * side(a.n0, a.n1, b.n0, b.n1) * side(a.k0, a.k1, b.k0, b.k1);
}

/// Fails unless the tiles are disjoint, lie in the box at whole K blocks, and fill it.
inline void expect_fills(const GemmBox& box, const std::vector<BoxTile>& tiles) {
  std::int64_t had = 0;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const GemmBox& tile = tiles[i].box;
    ASSERT_GT(volume_of_box(tile), 0) << i;
    ASSERT_EQ(overlap_of(tile, box), volume_of_box(tile)) << "tile " << i << " leaves the box";
    ASSERT_EQ((tile.k0 - box.k0) % kBlockK, 0) << i;
    ASSERT_TRUE(tile.k1 == box.k1 || (tile.k1 - box.k0) % kBlockK == 0) << i;
    for (std::size_t j = 0; j < i; ++j) ASSERT_EQ(overlap_of(tile, tiles[j].box), 0) << i << " and " << j;
    had += volume_of_box(tile);
  }
  ASSERT_EQ(had, volume_of_box(box));
}

inline std::set<std::int32_t> devices_of(const std::vector<BoxTile>& tiles) {
  std::set<std::int32_t> devices;
  for (const BoxTile& tile : tiles) devices.insert(tile.device);
  return devices;
}

inline GemmBox whole_box(const Work& work) { return {0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k}; }

inline fleet::ServerProfile unlimited_server() {
  return {fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(2e12), BytesPerSecond(100e9)};
}

}  // namespace cleave::plan
