// `rows`: row strips in proportion to what each device can do. Every device gets all columns at the whole depth, so
// none is done sooner than the columns take to come down: what one dimension costs.
#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "device_rates.hpp"
#include "gemm_costs.hpp"
#include "partition.hpp"

namespace cleave::plan {

std::vector<TaskletPlan> partition_rows(const Problem& problem) {
  const auto& [work, devices, options, bound] = problem;
  const TaskletPlan whole = whole_of(work);
  if (work.kind != WorkKind::gemm) return apportion_pairs(work, whole.pairs, devices, options);
  const GemmCosts costs = gemm_costs(work, whole.box);
  const std::vector<DeviceRates> device_rates = device_rates_of(devices, options.server, 1);
  const auto n = static_cast<double>(work.gemm.n), m = static_cast<double>(work.gemm.m);
  const auto rows_by = [&](const DeviceRates& rates, double finish) {
    const Budget budget = rates.by(finish);
    const double rows = std::min({budget.down / static_cast<double>(costs.strip_bytes) - n,
                                  budget.up / (n * static_cast<double>(costs.result_bytes)),
                                  budget.flops / (2 * n * static_cast<double>(work.gemm.k)), m});
    return rows > 0 ? static_cast<std::int64_t>(rows) : 0;
  };
  const double finish = least_feasible(
      [&](double t) {
        std::int64_t rows = 0;
        for (const DeviceRates& rates : device_rates) rows += rows_by(rates, t);
        return rows >= work.gemm.m;
      },
      1e-4);
  std::int64_t total = 0, seen = 0, row = 0;
  for (const DeviceRates& rates : device_rates) total += rows_by(rates, finish);
  std::vector<TaskletPlan> pieces;
  for (const DeviceRates& rates : device_rates) {
    seen += rows_by(rates, finish);
    // Rounding down a running share keeps everyone within the rows that fit the time.
    const auto end = static_cast<std::int64_t>(m * static_cast<double>(seen) / static_cast<double>(total));
    const std::int64_t stop = seen == total ? work.gemm.m : end;
    if (stop <= row) continue;
    TaskletPlan piece = whole;
    piece.device = devices[static_cast<std::size_t>(rates.index)].profile.id;
    piece.box.m0 = row;
    piece.box.m1 = stop;
    pieces.push_back(piece);
    row = stop;
  }
  return pieces;
}

}  // namespace cleave::plan
