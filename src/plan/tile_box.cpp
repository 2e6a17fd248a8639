// The schemes made of planes and slabs: `automatic` and `grid`.
#include "partition.hpp"
#include "power.hpp"
#include "slabs.hpp"

namespace cleave::plan {

namespace {

std::vector<TaskletPlan> pieces_of(const BoxTiling& tiling, std::span<const DeviceState> devices) {
  std::vector<TaskletPlan> pieces;
  pieces.reserve(tiling.tiles.size());
  for (const BoxTile& tile : tiling.tiles) {
    TaskletPlan piece;
    piece.device = devices[static_cast<std::size_t>(tile.device)].profile.id;
    piece.box = tile.box;
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

std::vector<TaskletPlan> tile_box(const Work& work, const GemmBox& box, std::span<const DeviceState> devices,
                                  const PlanOptions& options) {
  return pieces_of(tile_gemm(work, box, powers_of(devices, options.server, 1)), devices);
}

std::vector<TaskletPlan> partition_automatically(const Work& work, std::span<const DeviceState> devices,
                                                 const PlanOptions& options) {
  const TaskletPlan whole = whole_of(work);
  if (work.kind != WorkKind::gemm) return apportion_pairs(work, whole.pairs, devices, options);
  return tile_box(work, whole.box, devices, options);
}

std::vector<TaskletPlan> partition_grid(const Work& work, std::span<const DeviceState> devices,
                                        const PlanOptions& options) {
  const TaskletPlan whole = whole_of(work);
  if (work.kind != WorkKind::gemm) return apportion_pairs(work, whole.pairs, devices, options);
  return pieces_of(tile_flat(work, whole.box, powers_of(devices, options.server, 1)), devices);
}

}  // namespace cleave::plan
