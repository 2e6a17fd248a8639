// Regions of slabs: tiles fill the box, blocks and devices move to the group that is behind, and bytes are counted as
// tiles are.
#include "search/slabs.hpp"

#include <gtest/gtest.h>

#include "boxes.hpp"
#include "search/filling.hpp"

namespace cleave::plan {
namespace {

// Groups of equal numbers of devices and blocks; the last slab has the rest of either.
std::vector<Group> even_groups(const std::vector<DeviceRates>& devices, std::size_t count, std::int64_t k) {
  std::vector<Group> groups(count);
  for (std::size_t i = 0; i < devices.size(); ++i) groups[i * count / devices.size()].devices.push_back(devices[i]);
  const std::int64_t blocks = k_blocks(k);
  std::int64_t left = blocks;
  for (Group& group : groups) left -= group.blocks = blocks / static_cast<std::int64_t>(count);
  groups.back().blocks += left;
  groups.back().missing = blocks * kBlockK - k;
  return groups;
}

TEST(Slabs, APlaneHasTheCostsOfItsSlab) {
  const Work work = gemm_work(300, 200, 4 * kBlockK);
  const Tiling2D whole = tiling_2d_of(work, whole_box(work));
  const Tiling2D half = tiling_2d_of(work, {0, 300, 0, 200, 0, 2 * kBlockK});
  EXPECT_EQ(whole.rows, 300);
  EXPECT_EQ(whole.columns, 200);
  EXPECT_NEAR(whole.flops, 2.0 * 4 * kBlockK, 1e-6);
  EXPECT_NEAR(half.flops, whole.flops / 2, 1e-6);
  EXPECT_LT(half.strip_bytes, whole.strip_bytes);
  EXPECT_GT(half.result_bytes, whole.result_bytes);  // partial sums take more than finished results
}

TEST(Slabs, TilesOfARegionFillItsBox) {
  for (const std::int64_t k : {6 * kBlockK, 7 * kBlockK - 100}) {
    const Work work = gemm_work(2000, 3000, k);
    const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(24, 9), unlimited_server(), 1);
    for (const std::size_t groups : {1, 2, 3}) {
      Region region(work, whole_box(work), even_groups(devices, groups, k));
      const double finish = region.cut(1);
      ASSERT_NE(finish, kNever);
      std::vector<BoxTile> tiles;
      EXPECT_NEAR(region.tile(tiles), finish, 0.02 * finish);
      expect_fills(whole_box(work), tiles);
      const ServerBytes cut = region.server_bytes(), tiled = server_bytes(work, {finish, tiles});
      EXPECT_NEAR(cut.out, tiled.out, 0.02 * tiled.out);
      EXPECT_NEAR(cut.in, tiled.in, 0.02 * tiled.in);
    }
  }
}

TEST(Slabs, DevicesAndBlocksMoveToTheGroupThatIsBehind) {
  const std::int64_t k = 12 * kBlockK;
  const Work work = gemm_work(3000, 3000, k);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(30, 4), unlimited_server(), 1);
  std::vector<Group> groups = even_groups(devices, 2, k);
  groups[0].blocks = 10;  // far too many
  groups[1].blocks = 2;
  Region uneven(work, whole_box(work), groups);
  const double before = uneven.cut(1);
  uneven.balance(before);
  const double balanced = uneven.cut(before);
  EXPECT_LT(balanced, 0.8 * before);
  uneven.refine(4000, 4);
  std::vector<BoxTile> tiles;
  EXPECT_LE(uneven.tile(tiles), balanced * 1.01);
  expect_fills(whole_box(work), tiles);
}

// By half a second two devices in three have only begun to hear of it.
TEST(Slabs, EveryGroupHasADeviceAndABlock) {
  const std::int64_t k = 24 * kBlockK, count = 20;
  const Work work = gemm_work(3000, 3000, k);
  std::vector<DeviceState> fleet = cleave_fleet(30, 4);
  for (std::size_t i = 0; i < fleet.size(); ++i) fleet[i].profile.latency = Seconds(i % 3 == 0 ? 0.01 : 0.3);
  const std::vector<DeviceRates> devices = device_rates_of(fleet, unlimited_server(), 1);
  const PreferredShapes preferred(work, whole_box(work), {});
  for (const auto& groups_of : {deal_groups, row_groups}) {
    std::int64_t blocks = 0;
    std::size_t dealt = 0;
    for (const Group& group : groups_of(preferred, devices, 0.5, count, k_blocks(k), 3000 * 3000)) {
      EXPECT_FALSE(group.devices.empty());
      EXPECT_GE(group.blocks, 1);
      blocks += group.blocks;
      dealt += group.devices.size();
    }
    EXPECT_EQ(blocks, k_blocks(k));
    EXPECT_EQ(dealt, devices.size());
  }
}

TEST(Slabs, ALargerFinishCoversMore) {
  const std::int64_t k = 4 * kBlockK;
  const Work work = gemm_work(3000, 3000, k);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(16, 2), unlimited_server(), 1);
  Region region(work, whole_box(work), even_groups(devices, 2, k));
  const double finish = region.cut(1);
  EXPECT_GE(region.capacity(finish), 0.99 * 3000 * 3000);
  EXPECT_LT(region.capacity(finish / 2), region.capacity(finish));
}

}  // namespace
}  // namespace cleave::plan
