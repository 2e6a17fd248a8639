// From device states to plain numbers: rates capped by the server's interface, and the time lost to latency and
// headers.
#include "power.hpp"

#include <cmath>

#include "cleave/plan/cost.hpp"

namespace cleave::plan {

std::vector<Power> powers_of(std::span<const DeviceState> devices, const fleet::ServerProfile& server,
                             std::int64_t messages) {
  std::vector<Power> powers;
  powers.reserve(devices.size());
  const double headers = static_cast<double>(messages * kMessageHeader.value());
  for (const DeviceState& device : devices) {
    const double latency = device.profile.latency.value();
    Power power;
    power.index = static_cast<std::int32_t>(powers.size());
    power.down = std::min(device.profile.downlink, server.nic_out).value();
    power.flops = device.profile.compute.value();
    power.up = std::min(device.profile.uplink, server.nic_in).value();
    // Operands are under way for one latency before anything can be computed, results for another before they count.
    power.down_at = device.down_busy.value() + 2 * latency + headers / power.down;
    power.flops_at = std::max(device.compute_busy.value(), latency) + latency;
    power.up_at = std::max(device.up_busy.value(), latency) + latency + headers / power.up;
    power.memory = static_cast<double>(device.profile.memory.value());
    powers.push_back(power);
  }
  return powers;
}

std::vector<Alike> alike(std::span<const Power> powers) {
  std::vector<Alike> found;
  for (const Power& power : powers) {
    if (!found.empty() && found.back().power.same_as(power)) {
      ++found.back().count;
    } else {
      found.push_back({power, 1});
    }
  }
  return found;
}

std::vector<Alike> sample_of(std::span<const Alike> devices, std::size_t most) {
  if (devices.size() <= most) return {devices.begin(), devices.end()};
  double total = 0;
  for (const Alike& device : devices) total += device.count;
  const double each = total / static_cast<double>(most);
  std::vector<Alike> sample;
  double reached = 0, next = each / 2;
  for (const Alike& device : devices) {
    reached += device.count;
    if (reached < next) continue;
    const double times = std::floor((reached - next) / each) + 1;
    sample.push_back({device.power, times * each});
    next += times * each;
  }
  return sample;
}

}  // namespace cleave::plan
