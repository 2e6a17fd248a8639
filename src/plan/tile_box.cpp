// The partitions that are made of planes and slabs: `automatic` and `grid`.
#include <utility>

#include "cleave/plan/cost.hpp"
#include "device_rates.hpp"
#include "order.hpp"
#include "partition.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

namespace {

/// For an operation alone, results of a tile leave this early, as a share of the finish: less gains no more than what
/// resources are then taken longer. Where the finish is then further from its bound than the second factor, tiles that
/// need not be early are tried too.
constexpr double kEarlyWavefront = 1.14, kWorthLaterTiles = 1.09;

/// Where the server's interface is what bounds an operation, tiles of devices with fast downlinks are early by
/// themselves, but come no faster than the interface sends: then uplinks are taken for this share of the time, where
/// plans that are this close to their bound stay within the last factor of it.
constexpr double kEarlyUplink = 0.96, kNearBound = 1.02, kStillNearBound = 1.03;

/// Beyond the bound by this factor, few devices are given parts in another way, too: alone, because steps gained
/// nothing from it (docs/measurements/planner.md).
constexpr double kWorthATree = 1.1;

// Slow devices lose most by the headers of their panels, of which none but the first has been counted.
void pay_headers(const Problem& problem, std::vector<DeviceRates>& device_rates) {
  for (DeviceRates& rates : device_rates) {
    const fleet::DeviceProfile& profile = problem.devices[static_cast<std::size_t>(rates.index)].profile;
    const auto more = static_cast<double>(affordable_panels(problem.bound.wanted, profile, problem.options) - 1);
    rates.down_at += more * static_cast<double>(kMessageHeader.value()) / rates.down;
    rates.up_at += more * static_cast<double>(kMessageHeader.value()) / rates.up;
  }
}

}  // namespace

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

std::vector<TaskletPlan> partition_auto(const Problem& problem) {
  const TaskletPlan whole = whole_of(problem.work);
  if (problem.work.kind != WorkKind::gemm) {
    return apportion_pairs(problem.work, whole.pairs, problem.devices, problem.options);
  }
  std::vector<DeviceRates> device_rates = device_rates_of(problem.devices, problem.options.server, 1);
  const auto tile = [&](double wavefront) {
    for (DeviceRates& rates : device_rates) rates.wavefront = wavefront;
    return tile_in_rounds(
        {problem.work, whole.box, device_rates, problem.options.server, problem.bound, problem.options.search_stages});
  };
  if (problem.options.objective == Objective::step) return pieces_of(tile(kBalancedWavefront), problem.devices);
  if (problem.bound.wanted > 0) {
    pay_headers(problem, device_rates);
    return pieces_of(tile(kBalancedWavefront), problem.devices);
  }
  const auto runs = [&](SearchStage stage) { return problem.options.search_stages.runs(stage); };
  BoxTiling tiling = tile(runs(SearchStage::early_tiles) ? kEarlyWavefront : kBalancedWavefront);
  if (tiling.finish > kWorthLaterTiles * problem.bound.finish) {
    if (runs(SearchStage::later_tiles)) {
      BoxTiling later = tile(kBalancedWavefront);
      if (later.finish < tiling.finish) tiling = std::move(later);
    }
    if (runs(SearchStage::guillotine_tree) && std::ssize(device_rates) <= kFewDevices &&
        tiling.finish > kWorthATree * problem.bound.finish) {
      BoxTiling tree = tile_by_guillotine_tree(problem.work, whole.box, device_rates);
      if (tree.finish < tiling.finish) tiling = std::move(tree);
    }
  } else if (runs(SearchStage::early_uplinks) && problem.bound.terms.out_price > 0 &&
             tiling.finish <= kNearBound * problem.bound.finish) {
    for (DeviceRates& rates : device_rates) rates.up *= kEarlyUplink;
    BoxTiling earlier = tile(kEarlyWavefront);
    if (earlier.finish <= kStillNearBound * problem.bound.finish) tiling = std::move(earlier);
  }
  return pieces_of(tiling, problem.devices);
}

std::vector<TaskletPlan> partition_grid(const Problem& problem) {
  const TaskletPlan whole = whole_of(problem.work);
  if (problem.work.kind != WorkKind::gemm) {
    return apportion_pairs(problem.work, whole.pairs, problem.devices, problem.options);
  }
  return pieces_of(tile_flat(problem.work, whole.box, device_rates_of(problem.devices, problem.options.server, 1)),
                   problem.devices);
}

}  // namespace cleave::plan
