// From device states to plain numbers: rates capped by the server's interface, and the time lost to latency and
// headers.
#include "device_rates.hpp"

#include <cmath>

#include "cleave/plan/cost.hpp"

namespace cleave::plan {

std::vector<DeviceRates> device_rates_of(std::span<const DeviceState> devices, const fleet::ServerProfile& server,
                                         std::int64_t messages) {
  std::vector<DeviceRates> device_rates;
  device_rates.reserve(devices.size());
  const double headers = static_cast<double>(messages * kMessageHeader.value());
  for (const DeviceState& device : devices) {
    const double latency = device.profile.latency.value();
    DeviceRates rates;
    rates.index = static_cast<std::int32_t>(device_rates.size());
    rates.down = std::min(device.profile.downlink, server.nic_out).value();
    rates.flops = device.profile.compute.value();
    rates.up = std::min(device.profile.uplink, server.nic_in).value();
    // Operands are under way for one latency before anything can be computed, results for another before they count.
    rates.down_at = device.down_busy.value() + 2 * latency + headers / rates.down;
    rates.flops_at = std::max(device.compute_busy.value(), latency) + latency;
    rates.up_at = std::max(device.up_busy.value(), latency) + latency + headers / rates.up;
    rates.memory = static_cast<double>(device.profile.memory.value());
    device_rates.push_back(rates);
  }
  return device_rates;
}

std::vector<DeviceClass> device_classes(std::span<const DeviceRates> device_rates) {
  std::vector<DeviceClass> found;
  for (const DeviceRates& rates : device_rates) {
    if (!found.empty() && found.back().rates.same_as(rates)) {
      ++found.back().count;
    } else {
      found.push_back({rates, 1});
    }
  }
  return found;
}

std::vector<DeviceClass> sample_of(std::span<const DeviceClass> devices, std::size_t most) {
  if (devices.size() <= most) return {devices.begin(), devices.end()};
  double total = 0;
  for (const DeviceClass& device : devices) total += device.count;
  const double each = total / static_cast<double>(most);
  std::vector<DeviceClass> sample;
  double reached = 0, next = each / 2;
  for (const DeviceClass& device : devices) {
    reached += device.count;
    if (reached < next) continue;
    const double times = std::floor((reached - next) / each) + 1;
    sample.push_back({device.rates, times * each});
    next += times * each;
  }
  return sample;
}

}  // namespace cleave::plan
