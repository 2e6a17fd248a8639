// Planning lost pieces again, over the devices that remain, as loaded as they are.
//
// Each lost piece is small against the operation, so it goes to a part of the devices, those that are free first, in
// proportion to its share of what was lost; pieces do not wait for each other, and each is cut in two dimensions at its
// own depth, so that runs of K blocks stay runs.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "finish_plan.hpp"
#include "fit.hpp"
#include "partition.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

namespace {

// Requires: the first device is free first.
std::vector<TaskletPlan> tile_lost(const Work& work, const TaskletPlan& lost, std::span<const DeviceState> devices,
                                   const PlanOptions& options) {
  if (work.kind != WorkKind::gemm) return apportion_pairs(work, lost.pairs, devices, options);
  std::vector<TaskletPlan> pieces =
      pieces_of(tile_flat(work, lost.box, device_rates_of(devices, options.server, 1)), devices);
  if (!pieces.empty()) return pieces;
  // The search may find nothing where devices are busy for much longer than the piece takes, or have little memory.
  TaskletPlan all;
  all.box = lost.box;
  all.device = devices.front().profile.id;
  return {all};  // in parts that fit (finish_pieces())
}

}  // namespace

std::vector<TaskletPlan> replan(const Work& work, std::span<const TaskletPlan> lost,
                                std::span<const DeviceState> devices, const PlanOptions& options) {
  std::vector<DeviceState> usable = usable_devices(work, devices, options);
  // Dealt out in turn, the first free first, so that every piece gets a fair share of them; with fewer devices than
  // pieces, a device serves several, and its loads tell.
  std::stable_sort(usable.begin(), usable.end(), [](const DeviceState& a, const DeviceState& b) {
    return std::max({a.down_busy, a.compute_busy, a.up_busy}) < std::max({b.down_busy, b.compute_busy, b.up_busy});
  });
  std::vector<double> volumes;
  for (const TaskletPlan& piece : lost) volumes.push_back(volume_of(work, piece).flops.value());
  const double total = std::accumulate(volumes.begin(), volumes.end(), 0.0);
  std::vector<std::vector<std::size_t>> hands(lost.size());
  std::vector<double> owed(lost.size(), 0);
  if (lost.empty()) return {};
  for (std::size_t d = 0; d < usable.size(); ++d) {
    for (std::size_t i = 0; i < lost.size(); ++i) owed[i] += volumes[i] / total;
    const auto next = static_cast<std::size_t>(std::max_element(owed.begin(), owed.end()) - owed.begin());
    owed[next] -= 1;
    hands[next].push_back(d);
  }

  std::vector<TaskletPlan> planned;
  for (std::size_t i = 0; i < lost.size(); ++i) {
    if (hands[i].empty()) {
      hands[i].resize(usable.size());
      std::iota(hands[i].begin(), hands[i].end(), std::size_t{0});
    }
    std::vector<DeviceState> hand;
    for (const std::size_t d : hands[i]) hand.push_back(usable[d]);
    double again = 0;
    for (const TaskletPlan& tasklet : finish_pieces(work, tile_lost(work, lost[i], hand, options), hand, options)) {
      planned.push_back(tasklet);
      again += volume_of(work, tasklet).flops.value();
      const auto taken = std::find_if(hands[i].begin(), hands[i].end(),
                                      [&](std::size_t d) { return usable[d].profile.id == tasklet.device; });
      DeviceState& device = usable[*taken];
      device.down_busy += tasklet.bytes_down / device.profile.downlink;
      device.compute_busy += volume_of(work, tasklet).flops / device.profile.compute;
      device.up_busy += tasklet.bytes_up / device.profile.uplink;
    }
    CLEAVE_ASSERT(again == volumes[i], "a lost piece of {} FLOP is planned again as {} FLOP", volumes[i], again);
  }
  return planned;
}

}  // namespace cleave::plan
