// Attention over devices: whole (sequence, head) pairs, so every pair costs the same and the split is an apportionment.
#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "cleave/plan/cost.hpp"
#include "partition.hpp"

namespace cleave::plan {

std::vector<TaskletPlan> apportion_pairs(const Work& work, PairRange pairs, std::span<const DeviceState> devices,
                                         const PlanOptions& options) {
  TaskletPlan one;
  one.pairs = {0, 1};
  const Volume cost = volume_of(work, one);
  const auto capacity = [&](const DeviceState& device, double finish) {
    const Budget budget = budget_of(device, options.server, Seconds(finish));
    if (!budget.any()) return std::int64_t{0};
    const double count =
        std::min({budget.down_bytes / static_cast<double>(cost.down.value()), budget.flops / cost.flops.value(),
                  budget.up_bytes / static_cast<double>(cost.up.value())});
    return static_cast<std::int64_t>(std::min(count, static_cast<double>(pairs.count())));
  };
  const double finish = least_feasible(
      [&](double t) {
        std::int64_t total = 0;
        for (const DeviceState& device : devices) total += capacity(device, t);
        return total >= pairs.count();
      },
      1e-4);
  std::vector<TaskletPlan> pieces;
  std::int64_t next = pairs.pair0;
  for (const DeviceState& device : devices) {
    const std::int64_t count = std::min(capacity(device, finish), pairs.pair1 - next);
    if (count == 0) continue;
    TaskletPlan piece;
    piece.device = device.profile.id;
    piece.pairs = {next, next + count};
    pieces.push_back(piece);
    next += count;
  }
  return pieces;
}

}  // namespace cleave::plan
