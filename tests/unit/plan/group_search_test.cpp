// Groups packed by true cuts: what a group covers agrees with its cut, what is packed ends as told, and plans that are
// far from their bound gain.
#include "search/group_search.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "fleets.hpp"
#include "search/filling.hpp"
#include "support/cases.hpp"

namespace cleave::plan {
namespace {

using testing_support::all_or_few;

std::vector<DeviceState> symmetric_fleet() {
  return fleet_of({{.name = "edge",
                    .count = 64,
                    .compute_flops = {5e12, 7e12},
                    .memory_bytes = {1e9, 3e9},
                    .downlink_bytes = {10e6, 100e6},
                    .uplink_bytes = {10e6, 100e6},
                    .latency_s = {0, 0}}});
}

TEST(GroupSearch, GroupsCoverTheirSlabsWhenTheirCutsEnd) {
  const Work work = gemm_work(3000, 5000, 65536);
  const std::vector<DeviceRates> device_rates = device_rates_of(symmetric_fleet(), fleet::ServerProfile{}, 1);
  GemmBox slab{0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
  for (const std::size_t members : {1, 2, 5, 9}) {
    slab.k1 = slab.k0 + static_cast<std::int64_t>(members) * kBlockK;
    const std::span<const DeviceRates> group(device_rates.data(), members);
    const Tiling2D plane = tiling_2d_of(work, slab);
    const ColumnCut cut = cut_columns(plane, group, 1);
    EXPECT_LT(cover_by_columns(plane, group, cut.finish * 0.9).share, 1) << members;
    ColumnCut covered;
    const Covering covering = cover_by_columns(plane, group, cut.finish * 1.01, &covered);
    EXPECT_GE(covering.share, 1 - 1e-2) << members;
    EXPECT_GE(covering.strips, 2 * std::sqrt(plane.area())) << members;
    finish_cut(plane, group, covered);
    EXPECT_LE(covered.finish, cut.finish * 1.02) << members;
  }
}

// Two regions of equal groups, in which there is much to gain.
std::vector<std::vector<Group>> begin_search(const PreferredShapes& preferred,
                                             const std::vector<DeviceRates>& device_rates, const GemmBox& box) {
  const double area = static_cast<double>(box.m()) * static_cast<double>(box.n());
  return share_groups(deal_groups(preferred, device_rates, 1, 12, 2 * k_blocks(box.k()), area / 2), 2,
                      k_blocks(box.k()));
}

TEST(GroupSearch, RegionsEndWhenToldAndAlwaysTheSame) {
  for (const std::int64_t k : {65536, 50272}) {
    const Work work = gemm_work(6000, 3000, k);
    const GemmBox box{0, work.gemm.m, 0, work.gemm.n, 0, k};
    const std::vector<DeviceRates> device_rates = device_rates_of(symmetric_fleet(), fleet::ServerProfile{}, 1);
    const PreferredShapes preferred(work, box, {});
    const auto improve = [&](double changes) {
      GroupSearch search({work, box, true, 1, fleet::ServerProfile{}, 0}, preferred,
                         begin_search(preferred, device_rates, box), {1, 1}, 2);
      const double finish = search.improve({2, 0.01, 0.002, changes});
      return std::make_pair(finish, search);
    };
    const auto [finish, search] = improve(300000);
    ASSERT_LT(finish, 2);
    EXPECT_LT(finish, improve(30).first);
    EXPECT_EQ(finish, improve(300000).first);
    ASSERT_EQ(search.regions().size(), 2U);
    EXPECT_NEAR(static_cast<double>(std::accumulate(search.lengths().begin(), search.lengths().end(), std::int64_t{0})),
                6000, 2);
    std::set<std::int32_t> seen;
    for (std::size_t r = 0; r < 2; ++r) {
      std::int64_t blocks = 0;
      for (const Group& group : search.regions()[r]) {
        blocks += group.blocks;
        for (const DeviceRates& device : group.devices) EXPECT_TRUE(seen.insert(device.index).second);
      }
      EXPECT_EQ(blocks, k_blocks(k));
      GemmBox part = box;
      part.m1 = search.lengths()[r];
      EXPECT_LE(Region(work, part, search.regions()[r]).cut(finish), finish * (1 + 2e-3)) << r;
    }
  }
}

// Bytes that the server's interface does not carry are not packed, whatever the random changes were.
TEST(GroupSearch, NarrowInterface) {
  const Work work = gemm_work(6000, 3000, 65536);
  const GemmBox box{0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
  const std::vector<DeviceRates> device_rates = device_rates_of(symmetric_fleet(), fleet::ServerProfile{}, 1);
  const PreferredShapes preferred(work, box, {});
  fleet::ServerProfile server;
  server.nic_out = server.nic_in = BytesPerSecond(1e9);
  constexpr std::uint32_t kStreams = all_or_few(50, 3);
  for (std::uint32_t stream = 0; stream < kStreams; ++stream) {
    SCOPED_TRACE(stream);
    GroupSearch search({work, box, true, 1, server, 0}, preferred, begin_search(preferred, device_rates, box), {1, 1},
                       4, Draws(stream));
    const double finish = search.improve({4, 0.01, 0.002, 300000});
    ASSERT_LT(finish, 4);
    ServerBytes bytes;
    for (std::size_t r = 0; r < 2; ++r) {
      GemmBox part = box;
      part.m1 = search.lengths()[r];
      Region region(work, part, search.regions()[r]);
      static_cast<void>(region.cut(finish));
      bytes.add(region.server_bytes());
    }
    EXPECT_LE(bytes.time(server), finish);
  }
}

double far_from_bound(const Work& work, const std::vector<DeviceState>& devices) {
  const OperationPlan plan = plan_operation(work, devices, {.objective = Objective::alone, .server = {}});
  expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
  return plan.busy / plan.lower_bound;
}

TEST(GroupSearch, DevicesThatFitFewSlabs) {
  EXPECT_LE(far_from_bound(gemm_work(8192, 8192, 131072), symmetric_fleet()), 1.1);
  EXPECT_LE(far_from_bound(gemm_work(5120, 5120, 131072), symmetric_fleet()), 1.1);
}

// Two devices that do best at the whole depth, but cannot share all columns.
TEST(GroupSearch, NoRegionForFewAtTheWholeDepth) {
  const std::vector<DeviceState> devices = fleet_of({{.name = "edge",
                                                      .count = 64,
                                                      .compute_flops = {2e12, 10e12},
                                                      .memory_bytes = {1e9, 3e9},
                                                      .downlink_bytes = {5e6, 200e6},
                                                      .uplink_bytes = {2e6, 20e6},
                                                      .latency_s = {0, 0}}},
                                                    2);
  EXPECT_LE(far_from_bound(gemm_work(9984, 5120, 50272), devices), 1.1);
}

}  // namespace
}  // namespace cleave::plan
