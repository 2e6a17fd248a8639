// Groups mixed by true cuts: what a group covers agrees with its cut, and plans that are far from their bound gain.
#include "../../../src/plan/mixing.hpp"

#include <gtest/gtest.h>

#include "fleets.hpp"

namespace cleave::plan {
namespace {

std::vector<DeviceState> symmetric_fleet() {
  return fleet_of({{.name = "edge",
                    .count = 64,
                    .compute_flops = {5e12, 7e12},
                    .memory_bytes = {1e9, 3e9},
                    .downlink_bytes = {10e6, 100e6},
                    .uplink_bytes = {10e6, 100e6},
                    .latency_s = {0, 0}}});
}

TEST(Mixing, GroupsCoverTheirSlabsWhenTheirCutsEnd) {
  const Work work = gemm_work(3000, 5000, 65536);
  const std::vector<Power> powers = powers_of(symmetric_fleet(), fleet::ServerProfile{}, 1);
  GemmBox slab{0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
  for (const std::size_t members : {1, 2, 5, 9}) {
    slab.k1 = slab.k0 + static_cast<std::int64_t>(members) * kBlockK;
    const std::span<const Power> group(powers.data(), members);
    const Plane plane = plane_of(work, slab);
    const PlaneCut cut = cut_plane(plane, group, 1);
    EXPECT_GE(covered_share(plane, group, cut.finish * 1.01), 1 - 1e-2) << members;
    EXPECT_LT(covered_share(plane, group, cut.finish * 0.9), 1) << members;
  }
}

TEST(Mixing, DevicesThatFitFewSlabs) {
  const std::vector<DeviceState> devices = symmetric_fleet();
  const Work work = gemm_work(8192, 8192, 131072);
  const OperationPlan plan = plan_operation(work, devices, {.objective = Objective::alone, .server = {}});
  expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
  EXPECT_LE(plan.busy / plan.lower_bound, 1.11);
}

}  // namespace
}  // namespace cleave::plan
