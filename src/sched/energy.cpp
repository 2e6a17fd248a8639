// What a device's processor, radio and idling take.
#include "cleave/sched/scheduler.hpp"

namespace cleave::sched {

Joules energy_of(const fleet::DeviceProfile& device, const Usage& usage, Seconds elapsed) {
  return device.power_compute * usage.compute + device.power_radio * (usage.down + usage.up) +
         device.power_idle * elapsed;
}

Joules energy_since(const Fleet& fleet, std::span<const Usage> before, Seconds elapsed) {
  const std::span<const Usage> after = fleet.usage();
  Joules energy;
  for (const fleet::DeviceProfile& device : fleet.all_devices()) {
    const auto i = static_cast<std::size_t>(device.id.value);
    Usage used = after[i];
    used.down -= before[i].down;
    used.compute -= before[i].compute;
    used.up -= before[i].up;
    energy += energy_of(device, used, elapsed);
  }
  return energy;
}

}  // namespace cleave::sched
