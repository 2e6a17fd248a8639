// `paper`: the published scheme, for comparison.
//
// Its cost model minimises T with  T >= (a_i + b_i) k / down_i,  T >= a_i b_i / up_i,  T >= 2 a_i b_i k / F_i  and
// sum a_i b_i = m n  over integers, by a commercial solver within 5 %. Memory, latency and the server's interface are
// not in it, and k is never cut. Areas alone do not tile; our two-dimensional tiling over the devices as that model
// knows them is legal, and ends within a few hundredths of the T of free areas (docs/rivals.md). Source: Xue et al.
// 2025 (arXiv 2512.22142), and netsys-edinburgh/wasp.
#include <limits>

#include "device_rates.hpp"
#include "partition.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

namespace {

// What the published model knows of a device.
std::vector<DeviceState> as_published(std::span<const DeviceState> devices) {
  std::vector<DeviceState> known(devices.begin(), devices.end());
  for (DeviceState& device : known) {
    device.profile.latency = Seconds(0);
    device.profile.memory = Bytes(std::numeric_limits<std::int64_t>::max());
  }
  return known;
}

}  // namespace

std::vector<TaskletPlan> partition_paper(const Problem& problem) {
  const auto& [work, devices, options, bound] = problem;
  const TaskletPlan whole = whole_of(work);
  const std::vector<DeviceState> known = as_published(devices);
  PlanOptions unlimited = options;
  unlimited.server.nic_out = unlimited.server.nic_in = fleet::kUnlimitedRate;
  if (work.kind != WorkKind::gemm) return apportion_pairs(work, whole.pairs, known, unlimited);
  return pieces_of(tile_flat(work, whole.box, device_rates_of(known, unlimited.server, 0)), devices);
}

}  // namespace cleave::plan
