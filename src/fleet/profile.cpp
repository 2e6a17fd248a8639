// Drawing devices from groups.
#include "cleave/fleet/profile.hpp"

#include <cmath>

#include "cleave/base/random.hpp"

namespace cleave::fleet {

namespace {

double draw(const Range& range, const Random& random, std::uint64_t figure) {
  if (range.low == range.high) return range.low;  // keeps an unlimited rate unlimited
  return range.low + (range.high - range.low) * random.uniform(figure);
}

}  // namespace

DeviceProfile slowed(DeviceProfile device, double factor) {
  device.compute = device.compute * factor;
  device.uplink = device.uplink * factor;
  device.downlink = device.downlink * factor;
  return device;
}

DeviceProfile without_jitter(DeviceProfile device) {
  device.latency += device.jitter * 0.5;
  device.jitter = Seconds(0);
  return device;
}

std::vector<DeviceProfile> draw_devices(const std::vector<DeviceGroup>& groups, std::uint64_t seed) {
  std::vector<DeviceProfile> devices;
  for (const DeviceGroup& group : groups) {
    for (std::int64_t i = 0; i < group.count; ++i) {
      const auto index = static_cast<std::int64_t>(devices.size());
      const Random random(seed, Purpose::device_profile, static_cast<std::uint32_t>(index));
      devices.push_back({.id = DeviceId(index),
                         .name = group.name,
                         .compute = FlopsPerSecond(draw(group.compute_flops, random, 0)),
                         .memory = Bytes(std::llround(draw(group.memory_bytes, random, 1))),
                         .downlink = BytesPerSecond(draw(group.downlink_bytes, random, 2)),
                         .uplink = BytesPerSecond(draw(group.uplink_bytes, random, 3)),
                         .latency = Seconds(draw(group.latency_s, random, 4)),
                         .jitter = Seconds(draw(group.jitter_s, random, 5)),
                         .power_compute = Watts(draw(group.power_compute_w, random, 6)),
                         .power_radio = Watts(draw(group.power_radio_w, random, 7)),
                         .power_idle = Watts(draw(group.power_idle_w, random, 8)),
                         .owner = group.owner,
                         .group = group.group});
    }
  }
  return devices;
}

}  // namespace cleave::fleet
