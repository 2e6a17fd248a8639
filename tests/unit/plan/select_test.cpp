// Who takes part where the server's interface cannot feed all: devices and interface are done together.
#include <gtest/gtest.h>

#include "boxes.hpp"

namespace cleave::plan {
namespace {

BoxTiling selected(const Work& work, const std::vector<DeviceRates>& devices, const fleet::ServerProfile& server) {
  const GemmBox box = whole_box(work);
  return tile_selected({work, box, devices, server, bound_box(work, box, devices, server, 0), {}});
}

TEST(Select, AnInterfaceThatDoesNotBindLeavesNobodyOut) {
  const Work work = gemm_work(8192, 5120, 5120);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(40, 3), unlimited_server(), 1);
  const BoxTiling tiling = selected(work, devices, unlimited_server());
  expect_fills(whole_box(work), tiling.tiles);
  EXPECT_EQ(devices_of(tiling.tiles).size(), devices.size());
}

TEST(Select, FewerTakePartTheNarrowerTheInterface) {
  const Work work = gemm_work(8192, 5120, 5120);
  std::size_t before = 1000;
  double finish_before = 0;
  for (const double rate : {4e9, 5e8, 1e8}) {
    const fleet::ServerProfile server = server_of(rate);
    const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(200, 3), server, 1);
    const BoxTiling tiling = selected(work, devices, server);
    expect_fills(whole_box(work), tiling.tiles);
    const double bound = bound_box(work, whole_box(work), devices, server, 0).finish;
    const double finish = std::max(tiling.finish, server_bytes(work, tiling).time(server));
    EXPECT_GE(finish, bound * (1 - 1e-6));
    EXPECT_LE(finish, bound * 1.6) << rate;
    EXPECT_LT(devices_of(tiling.tiles).size(), before) << rate;
    EXPECT_GT(finish, finish_before);
    before = devices_of(tiling.tiles).size();
    finish_before = finish;
  }
}

// Both are done at about the same time: else devices wait for the interface, or it for them.
TEST(Select, DevicesAndInterfaceAreDoneTogetherWhereItBinds) {
  const fleet::ServerProfile server = server_of(3e8);
  const Work work = gemm_work(8192, 5120, 5120);
  const std::vector<DeviceRates> devices = device_rates_of(cleave_fleet(200, 3), server, 1);
  const BoxTiling tiling = selected(work, devices, server);
  EXPECT_NEAR(server_bytes(work, tiling).time(server) / tiling.finish, 1, 0.1);
}

TEST(Select, PiecesNameTheDevicesOfTheirTiles) {
  const Work work = gemm_work(2048, 1024, 2048);
  const std::vector<DeviceState> fleet = cleave_fleet(6, 8);
  const BoxTiling tiling = selected(work, device_rates_of(fleet, unlimited_server(), 1), unlimited_server());
  const std::vector<TaskletPlan> pieces = pieces_of(tiling, fleet);
  ASSERT_EQ(pieces.size(), tiling.tiles.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].device, fleet[static_cast<std::size_t>(tiling.tiles[i].device)].profile.id);
    EXPECT_EQ(overlap_of(pieces[i].box, tiling.tiles[i].box), volume_of_box(pieces[i].box));
  }
}

}  // namespace
}  // namespace cleave::plan
