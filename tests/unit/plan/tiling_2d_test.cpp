// Covering a plane with rectangles: they fill it, every device is done by the finish that is told, and no finish is
// earlier than what areas alone allow.
#include "search/tiling_2d.hpp"

#include <gtest/gtest.h>

#include "boxes.hpp"

namespace cleave::plan {
namespace {

// A plane in fp16 at depth k.
Tiling2D plane_of(std::int64_t rows, std::int64_t columns, std::int64_t k) {
  return tiling_2d_of(gemm_work(rows, columns, k), {0, rows, 0, columns, 0, k});
}

std::vector<DeviceRates> equal_rates(std::size_t count) {
  std::vector<DeviceState> devices;
  for (std::size_t i = 0; i < count; ++i) {
    devices.push_back(device(static_cast<std::int64_t>(i), 1e13, 8'000'000'000, 1e8, 1e8));
  }
  return device_rates_of(devices, unlimited_server(), 1);
}

void expect_covers(const Tiling2D& plane, std::span<const DeviceRates> devices, const Tiles2D& tiles) {
  std::vector<BoxTile> boxes;
  for (const Tile2D& tile : tiles.tiles) {
    boxes.push_back({tile.device, {tile.row0, tile.row1, tile.column0, tile.column1, 0, 1}});
    // Nobody moves or multiplies more than he can by the finish.
    const auto rows = static_cast<double>(tile.row1 - tile.row0);
    const auto columns = static_cast<double>(tile.column1 - tile.column0);
    const Budget budget = devices[static_cast<std::size_t>(tile.device)].by(tiles.finish * (1 + 1e-9));
    EXPECT_LE((rows + columns) * plane.strip_bytes, budget.down);
    EXPECT_LE(rows * columns * plane.flops, budget.flops);
    EXPECT_LE(rows * columns * plane.result_bytes, budget.up);
  }
  expect_fills({0, plane.rows, 0, plane.columns, 0, 1}, boxes);
  EXPECT_EQ(devices_of(boxes).size(), boxes.size());  // one to a device
}

TEST(Tiling2D, TilesFillThePlaneAndEndWhenTold) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    for (const std::int64_t count : {1, 2, 7, 40, 130}) {
      const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(count, seed), unlimited_server(), 1);
      const Tiling2D plane = plane_of(4096 + 37 * static_cast<std::int64_t>(seed), 5120, 768);
      const ColumnCut cut = cut_columns(plane, devices, 1);
      ASSERT_NE(cut.finish, kNever);
      const Tiles2D tiles = tile_columns(plane, devices, cut);
      expect_covers(plane, devices, tiles);
      EXPECT_GE(cut.finish, area_finish(plane, devices, 1) * (1 - 1e-3)) << count;
    }
  }
}

TEST(Tiling2D, FourEqualDevicesTakeAQuarterEach) {
  const std::vector<DeviceRates> devices = equal_rates(4);
  const Tiling2D plane = plane_of(2000, 2000, 768);
  const Tiles2D tiles = tile_columns(plane, devices, cut_columns(plane, devices, 1));
  ASSERT_EQ(tiles.tiles.size(), 4U);
  for (const Tile2D& tile : tiles.tiles) {
    EXPECT_NEAR(static_cast<double>(tile.row1 - tile.row0), 1000, 1);
    EXPECT_NEAR(static_cast<double>(tile.column1 - tile.column0), 1000, 1);
  }
}

TEST(Tiling2D, WhoCanOnlyBeginLateGetsNothing) {
  std::vector<DeviceRates> devices = equal_rates(5);
  devices[2].down_at = 1e6;
  const Tiling2D plane = plane_of(1500, 1500, 768);
  const Tiles2D tiles = tile_columns(plane, devices, cut_columns(plane, devices, 1));
  expect_covers(plane, devices, tiles);
  for (const Tile2D& tile : tiles.tiles) EXPECT_NE(tile.device, 2);
}

TEST(Tiling2D, TheSameColumnsEndEarlierOnASmallerPlane) {
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(20, 5), unlimited_server(), 1);
  const Tiling2D plane = plane_of(6000, 4000, 768), smaller = plane_of(3000, 2000, 768);
  ColumnCut cut = cut_columns(plane, devices, 1);
  const double finish = cut.finish;
  finish_cut(smaller, devices, cut);
  EXPECT_LT(cut.finish, finish);
  finish_cut(plane, devices, cut);
  EXPECT_NEAR(cut.finish, finish, 0.02 * finish);
}

TEST(Tiling2D, NobodyCoversAPlaneThatNoMemoryHolds) {
  std::vector<DeviceState> tiny;
  for (std::int64_t i = 0; i < 3; ++i) tiny.push_back(device(i, 1e13, 1000, 1e8, 1e8));
  const std::vector<DeviceRates> devices = device_rates_of(tiny, unlimited_server(), 1);
  EXPECT_EQ(cut_columns(plane_of(4000, 4000, 768), devices, 1).finish, kNever);
}

}  // namespace
}  // namespace cleave::plan
