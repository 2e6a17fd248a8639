// The schemes made of planes and slabs: `automatic` and `grid`.
#include "partition.hpp"
#include "power.hpp"
#include "slabs.hpp"

namespace cleave::plan {

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

std::vector<TaskletPlan> partition_automatically(const Problem& problem) {
  const TaskletPlan whole = whole_of(problem.work);
  if (problem.work.kind != WorkKind::gemm) {
    return apportion_pairs(problem.work, whole.pairs, problem.devices, problem.options);
  }
  const std::vector<Power> powers = powers_of(problem.devices, problem.options.server, 1);
  return pieces_of(tile_in_rounds(problem.work, whole.box, powers, problem.options.server, problem.bound),
                   problem.devices);
}

std::vector<TaskletPlan> partition_grid(const Problem& problem) {
  const TaskletPlan whole = whole_of(problem.work);
  if (problem.work.kind != WorkKind::gemm) {
    return apportion_pairs(problem.work, whole.pairs, problem.devices, problem.options);
  }
  return pieces_of(tile_flat(problem.work, whole.box, powers_of(problem.devices, problem.options.server, 1)),
                   problem.devices);
}

}  // namespace cleave::plan
