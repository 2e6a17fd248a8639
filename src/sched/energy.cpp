// What a device's processor, radio and idling take.
#include "cleave/sched/scheduler.hpp"

namespace cleave::sched {

Joules energy_of(const fleet::DeviceProfile& device, const Usage& usage, Seconds elapsed) {
  return device.power_compute * usage.compute + device.power_radio * (usage.down + usage.up) +
         device.power_idle * elapsed;
}

}  // namespace cleave::sched
