// Attention over devices: whole (sequence, head) pairs, so every pair costs the same and the split is an apportionment.
#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "cleave/plan/cost.hpp"
#include "device_rates.hpp"
#include "partition.hpp"

namespace cleave::plan {

std::vector<TaskletPlan> apportion_pairs(const Work& work, PairRange pairs, std::span<const DeviceState> devices,
                                         const PlanOptions& options) {
  TaskletPlan one;
  one.pairs = {0, 1};
  const Volume cost = volume_of(work, one);
  const std::vector<DeviceRates> device_rates = device_rates_of(devices, options.server, 1);
  const auto capacity = [&](const DeviceRates& rates, double finish) {
    const Budget budget = rates.by(finish);
    const double count =
        std::min({budget.down / static_cast<double>(cost.down.value()), budget.flops / cost.flops.value(),
                  budget.up / static_cast<double>(cost.up.value())});
    return static_cast<std::int64_t>(std::min(count, static_cast<double>(pairs.count())));
  };
  const double finish = least_feasible(
      [&](double t) {
        std::int64_t total = 0;
        for (const DeviceRates& rates : device_rates) total += capacity(rates, t);
        return total >= pairs.count();
      },
      1e-4);
  std::vector<TaskletPlan> pieces;
  std::int64_t next = pairs.pair0;
  for (const DeviceRates& rates : device_rates) {
    const std::int64_t count = std::min(capacity(rates, finish), pairs.pair1 - next);
    if (count == 0) continue;
    TaskletPlan piece;
    piece.device = devices[static_cast<std::size_t>(rates.index)].profile.id;
    piece.pairs = {next, next + count};
    pieces.push_back(piece);
    next += count;
  }
  return pieces;
}

}  // namespace cleave::plan
