// The lower bound: bisection on T over what each device could do at best by then.
#include "cleave/plan/bound.hpp"

#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "cleave/plan/cost.hpp"
#include "fit.hpp"
#include "gemm_costs.hpp"
#include "partition.hpp"

namespace cleave::plan {

namespace {

// Largest r * c with r + c <= strips, r <= m, c <= n.
double largest_area(double strips, double m, double n) {
  const double shorter = std::min({strips / 2, m, n});
  return shorter * std::min(strips - shorter, std::max(m, n));
}

// Largest m*n*k volume of one block of depth d.
double volume_at(const Work& work, const Budget& budget, double depth, bool whole_depth) {
  const double element = static_cast<double>(size_of(work.wire));
  const double exponent = k_blocks(work.gemm.k) > 1 ? static_cast<double>(kNormExponentBytes) : 0.0;
  const double result = whole_depth ? element : static_cast<double>(size_of(partial_sum_type(work.wire)));
  const double area = std::min({largest_area(budget.down_bytes / (depth * element + exponent),
                                             static_cast<double>(work.gemm.m), static_cast<double>(work.gemm.n)),
                                budget.up_bytes / result, budget.flops / (2 * depth)});
  return area * depth;
}

double best_volume(const Work& work, const Budget& budget) {
  if (!budget.any()) return 0;
  const double k = static_cast<double>(work.gemm.k);
  double best = volume_at(work, budget, k, true);
  // Partial sums: the volume rises with depth while the uplink binds and falls once the downlink does.
  std::int64_t low = 1, high = k_blocks(work.gemm.k) - 1;
  const auto at = [&](std::int64_t blocks) {
    return volume_at(work, budget, static_cast<double>(blocks * kBlockK), false);
  };
  if (high < 1) return best;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (at(middle) < at(middle + 1)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return std::max({best, at(low), low > 1 ? at(low - 1) : 0.0});
}

}  // namespace

Seconds lower_bound(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options) {
  std::vector<DeviceState> usable;
  try {
    usable = usable_devices(work, devices);
  } catch (const InputError&) { return Seconds(std::numeric_limits<double>::infinity()); }
  const Volume whole = volume_of(work, whole_of(work));
  TaskletPlan pair;
  pair.pairs = {0, 1};
  const double needed =
      work.kind == WorkKind::gemm ? whole.flops.value() / 2 : static_cast<double>(work.attention.pairs());
  const auto capacity = [&](double finish) {
    double total = 0;
    for (const DeviceState& device : usable) {
      const Budget budget = budget_of(device, options.server, Seconds(finish));
      if (work.kind == WorkKind::gemm) {
        total += best_volume(work, budget);
      } else if (budget.any()) {
        const Volume cost = volume_of(work, pair);
        total += std::floor(
            std::min({budget.down_bytes / static_cast<double>(cost.down.value()), budget.flops / cost.flops.value(),
                      budget.up_bytes / static_cast<double>(cost.up.value())}));
      }
      if (total >= needed) break;
    }
    return total >= needed;
  };
  const double fleet_time = least_feasible(capacity, 1e-6);
  // Every operand comes down, and every result goes up, at least once.
  const double server =
      std::max((whole.down / options.server.nic_out).value(), (whole.up / options.server.nic_in).value());
  return Seconds(std::max(fleet_time, server));
}

}  // namespace cleave::plan
