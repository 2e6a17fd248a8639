// Planning lost pieces again, over the devices that remain, as loaded as they are.
#include <algorithm>
#include <unordered_map>

#include "cleave/plan/cost.hpp"
#include "finish_plan.hpp"
#include "fit.hpp"
#include "partition.hpp"
#include "slabs.hpp"

namespace cleave::plan {

namespace {

std::vector<TaskletPlan> tile_lost(const Work& work, const GemmBox& box, std::span<const DeviceState> devices,
                                   const PlanOptions& options) {
  const BoxTiling tiling = tile_flat(work, box, powers_of(devices, options.server, 1));
  std::vector<TaskletPlan> pieces;
  for (const BoxTile& tile : tiling.tiles) {
    TaskletPlan piece;
    piece.device = devices[static_cast<std::size_t>(tile.device)].profile.id;
    piece.box = tile.box;
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

std::vector<TaskletPlan> replan(const Work& work, std::span<const TaskletPlan> lost,
                                std::span<const DeviceState> devices, const PlanOptions& options) {
  std::vector<DeviceState> usable = usable_devices(work, devices, options);
  std::vector<TaskletPlan> planned;
  for (const TaskletPlan& piece : lost) {
    const std::vector<TaskletPlan> pieces = work.kind == WorkKind::gemm
                                                ? tile_lost(work, piece.box, usable, options)
                                                : apportion_pairs(work, piece.pairs, usable, options);
    for (const TaskletPlan& tasklet : finish_pieces(work, pieces, usable, options)) {
      planned.push_back(tasklet);
      const auto device = std::find_if(usable.begin(), usable.end(),
                                       [&](const DeviceState& state) { return state.profile.id == tasklet.device; });
      device->down_busy += tasklet.bytes_down / device->profile.downlink;
      device->compute_busy += volume_of(work, tasklet).flops / device->profile.compute;
      device->up_busy += tasklet.bytes_up / device->profile.uplink;
    }
  }
  return planned;
}

}  // namespace cleave::plan
