// Cuts that follow the speed of devices.
#include "speed_cuts.hpp"

#include <algorithm>
#include <limits>

#include "pipeline_grid.hpp"

namespace cleave::rivals {

std::optional<std::vector<std::size_t>> cut_by_speed(const Workload& workload,
                                                     const std::vector<fleet::DeviceProfile>& devices,
                                                     std::span<const std::size_t> chain,
                                                     std::span<const double> hop_share, std::int64_t micro_batch,
                                                     bool recompute) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const std::size_t stages = chain.size(), units = workload.units.size();
  std::vector<double> flops(units + 1, 0);
  for (std::size_t u = 0; u < units; ++u) {
    const Unit& unit = workload.units[u];
    flops[u + 1] = flops[u] + unit.forward_flops * (recompute ? 2 : 1) + unit.backward_flops;
  }
  const auto share = [&](std::size_t hop) { return hop_share.empty() ? 1.0 : hop_share[hop]; };
  const auto pace_s = [&](std::size_t stage, std::size_t first, std::size_t last) {
    const fleet::DeviceProfile& device = devices[chain[stage]];
    const double below = stage > 0 ? share(stage - 1) * workload.units[first].input_bytes : 0;
    const double above = stage + 1 < stages ? share(stage) * workload.units[last - 1].output_bytes : 0;
    return std::max({(flops[last] - flops[first]) / device.compute.value(), (below + above) / device.uplink.value(),
                     (below + above) / device.downlink.value()});
  };
  const auto holds = [&](std::size_t stage, std::size_t first, std::size_t last) {
    return stage_memory(workload, first, last, micro_batch, recompute).with(1) <=
           static_cast<double>(devices[chain[stage]].memory.value());
  };
  // slowest[s][u]: the slowest stage of units [u, end) on stages s and later.
  std::vector<std::vector<double>> slowest(stages + 1, std::vector<double>(units + 1, kNever));
  std::vector<std::vector<std::size_t>> next(stages, std::vector<std::size_t>(units + 1, units));
  slowest[stages][units] = 0;
  for (std::size_t s = stages; s-- > 0;) {
    for (std::size_t u = s; u < units; ++u) {
      for (std::size_t end = u + 1; end <= units; ++end) {
        if (!holds(s, u, end)) break;
        const double value = std::max(slowest[s + 1][end], pace_s(s, u, end));
        if (value >= slowest[s][u]) continue;
        slowest[s][u] = value;
        next[s][u] = end;
      }
    }
  }
  if (slowest[0][0] == kNever) return std::nullopt;
  std::vector<std::size_t> cuts{0};
  for (std::size_t s = 0; s < stages; ++s) cuts.push_back(next[s][cuts.back()]);
  return cuts;
}

}  // namespace cleave::rivals
