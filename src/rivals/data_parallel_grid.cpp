// Costing copies of the model, and choosing how many.
#include "data_parallel_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cleave/base/show.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

double bytes_of_copy(const Workload& workload, CopyOptions options, std::int64_t micro_batch, bool recompute) {
  return stage_memory(workload, 0, workload.units.size(), micro_batch, recompute).with(1) +
         static_cast<double>(workload.total_parameters() * options.extra_state);
}

}  // namespace

double CopyGrid::memory_of(std::int64_t micro_batch, bool recompute) const {
  return bytes_of_copy(workload(), options_, micro_batch, recompute);
}

std::int64_t CopyGrid::largest_micro_batch(double have, std::int64_t share, bool recompute) const {
  std::int64_t size = 0;
  for (std::int64_t trial = 1; trial <= share; trial *= 2) {
    if (memory_of(trial, recompute) > have) break;
    size = trial;
  }
  return size;
}

Seconds CopyGrid::update_time(std::size_t device) const {
  return Flops(Workload::kUpdateFlops * static_cast<double>(workload().total_parameters())) /
         network().device(device).compute;
}

std::vector<std::int64_t> CopyGrid::shares_of(const Grid& grid) const {
  std::vector<double> speeds;
  for (const std::vector<std::size_t>& replica : grid) {
    speeds.push_back(network().device(replica.front()).compute.value());
  }
  return apportion(workload().batch, speeds);
}

StepCost CopyGrid::cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const {
  const std::size_t units = workload().units.size();
  const double forward = workload().forward_flops(0, units), backward = workload().backward_flops(0, units);
  StepCost cost;
  cost.usage.resize(network().size());
  std::vector<std::size_t> members;
  std::vector<double> ready_s(units, 0);  // unit's gradient complete on every device
  double computed_s = 0;
  for (std::size_t r = 0; r < grid.size(); ++r) {
    if (shares[r] == 0) continue;
    const std::size_t d = grid[r].front();
    members.push_back(d);
    const double rate = network().device(d).compute.value();
    const auto have = static_cast<double>(network().device(d).memory.value());
    std::int64_t micro_batch = std::max<std::int64_t>(1, largest_micro_batch(have, shares[r], false));
    const bool recompute = micro_batch == 1 && memory_of(1, false) > have;
    if (recompute) micro_batch = std::max<std::int64_t>(1, largest_micro_batch(have, shares[r], true));
    const double extra = recompute ? forward : 0;
    const double end_s = static_cast<double>(shares[r]) * (forward + backward + extra) / rate;
    computed_s = std::max(computed_s, end_s);
    double below = 0;  // backward work of the units that come after, in the last micro-batch
    for (std::size_t u = 0; u < units; ++u) {
      ready_s[u] = std::max(ready_s[u], end_s - static_cast<double>(micro_batch) * below / rate);
      below += workload().units[u].backward_flops + (recompute ? workload().units[u].forward_flops : 0);
    }
    cost.usage[d].compute = Seconds(end_s) + update_time(d);
    cost.usage[d].memory_peak = Bytes(std::llround(memory_of(micro_batch, recompute)));
  }

  double update_s = 0;
  for (const std::size_t d : members) update_s = std::max(update_s, update_time(d).value());
  const auto total = static_cast<double>(workload().total_parameters() * workload().element);
  CollectiveCost exchange = ring_all_reduce(network(), members, total);
  if (options_.exchange_every > 1)
    exchange = scaled(std::move(exchange), 1.0 / static_cast<double>(options_.exchange_every));
  cost.time_s = computed_s + exchange.time_s;
  std::vector<CollectiveCost> layers;
  double overlapped_s = options_.exchange_every > 1 ? std::numeric_limits<double>::infinity() : 0;
  for (std::size_t u = units; u-- > 0;) {
    layers.push_back(
        ring_all_reduce(network(), members, static_cast<double>(workload().units[u].parameters * workload().element)));
    overlapped_s = std::max(overlapped_s, ready_s[u]) + layers.back().time_s;
  }
  if (overlapped_s < cost.time_s) {
    cost.time_s = overlapped_s;
  } else {
    layers = {std::move(exchange)};
  }
  cost.time_s += update_s;
  for (const CollectiveCost& part : layers) charge(part, members, cost.usage);
  return cost;
}

CopyChoice choose_copies(const StudyInput& study, const Workload& workload, CopyOptions options) {
  const double need = bytes_of_copy(workload, options, 1, true);
  const std::vector<std::size_t> able = with_room(study, by_link(study), need);
  CopyChoice choice;
  choice.able = able.size();
  if (able.empty()) {
    choice.why = fmt::format("the whole model with gradients and moments takes {} on a device; the largest has {}",
                             show_bytes(need), show_bytes(memory_of_fleet(study).largest));
    return choice;
  }
  double shortest_s = std::numeric_limits<double>::infinity();
  for (std::size_t count = able.size(); count > 0; count = fewer(count)) {
    Grid grid;
    for (std::size_t i = 0; i < count; ++i) grid.push_back({able[i]});
    if (count == 1) {  // alone, links do not matter
      grid.front() = {*std::max_element(able.begin(), able.end(), [&](std::size_t a, std::size_t b) {
        return study.devices[a].compute < study.devices[b].compute;
      })};
    }
    const double step_s = CopyGrid(study, workload, grid, options).step().time_s;
    if (step_s >= shortest_s) continue;
    shortest_s = step_s;
    choice.grid = std::move(grid);
  }
  return choice;
}

}  // namespace cleave::rivals
