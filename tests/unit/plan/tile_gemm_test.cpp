// A box in three dimensions: filled exactly, within memory, no earlier than its bound and not far from it.
#include <gtest/gtest.h>

#include "boxes.hpp"

namespace cleave::plan {
namespace {

struct Case {
  std::int64_t m, n, k, devices;
};

class TileGemm : public ::testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static BoxTiling tile(const Work& work, const std::vector<DeviceRates>& devices, const Ways& ways) {
    return tile_gemm({work, whole_box(work), devices, unlimited_server(), bound_of(work, devices), {}}, ways);
  }
  [[nodiscard]] static BoxBound bound_of(const Work& work, const std::vector<DeviceRates>& devices) {
    return bound_box(work, whole_box(work), devices, unlimited_server(), 0);
  }
};

TEST_P(TileGemm, FillsTheBoxNoEarlierThanItsBound) {
  const Case& c = GetParam();
  const Work work = gemm_work(c.m, c.n, c.k);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(c.devices, 6), unlimited_server(), 1);
  for (const Effort effort : {Effort::quick, Effort::thorough}) {
    const BoxTiling tiling = tile(work, devices, {.effort = effort});
    ASSERT_NE(tiling.finish, kNever);
    expect_fills(whole_box(work), tiling.tiles);
    EXPECT_TRUE(tiling.in_memory);
    EXPECT_GE(tiling.finish, bound_of(work, devices).finish * (1 - 1e-6));
    EXPECT_LE(tiling.finish, bound_of(work, devices).finish * 1.6);
  }
}

TEST_P(TileGemm, TheSameEachTime) {
  const Case& c = GetParam();
  const Work work = gemm_work(c.m, c.n, c.k);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(c.devices, 6), unlimited_server(), 1);
  const BoxTiling first = tile(work, devices, {}), second = tile(work, devices, {});
  EXPECT_EQ(first.finish, second.finish);
  ASSERT_EQ(first.tiles.size(), second.tiles.size());
  for (std::size_t i = 0; i < first.tiles.size(); ++i) {
    EXPECT_EQ(first.tiles[i].device, second.tiles[i].device);
    EXPECT_EQ(overlap_of(first.tiles[i].box, second.tiles[i].box), volume_of_box(first.tiles[i].box));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TileGemm,
                         ::testing::Values(Case{4096, 4096, 768, 8}, Case{4096, 5120, 5120, 24},
                                           Case{1000, 777, 20000, 24}, Case{5120, 5120, 131072, 64}));

TEST(TileGemmWays, InSlabsNothingHasTheWholeDepth) {
  const Work work = gemm_work(5120, 5120, 131072);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(64, 6), unlimited_server(), 1);
  const BoxBound bound = bound_box(work, whole_box(work), devices, unlimited_server(), 0);
  const BoxTiling tiling = tile_gemm({work, whole_box(work), devices, unlimited_server(), bound, {}},
                                     {.effort = Effort::quick, .in_slabs = true});
  ASSERT_FALSE(tiling.tiles.empty());
  for (const BoxTile& tile : tiling.tiles) EXPECT_LT(tile.box.k(), work.gemm.k);
}

TEST(TileGemmWays, FlatTilesHaveTheWholeDepth) {
  const Work work = gemm_work(3000, 2000, 20000);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(12, 6), unlimited_server(), 1);
  const BoxTiling tiling = tile_flat(work, whole_box(work), devices);
  expect_fills(whole_box(work), tiling.tiles);
  for (const BoxTile& tile : tiling.tiles) EXPECT_EQ(tile.box.k(), work.gemm.k);
}

}  // namespace
}  // namespace cleave::plan
