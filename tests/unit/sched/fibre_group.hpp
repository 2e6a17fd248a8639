// Devices whose uplinks are as fast as their downlinks.
#pragma once

#include <cstdint>

#include "cleave/fleet/profile.hpp"

namespace cleave::sched {

inline fleet::DeviceGroup fibre_group(std::int64_t count, fleet::Range compute, fleet::Range memory, fleet::Range links,
                                      double latency) {
  fleet::DeviceGroup group;
  group.count = count;
  group.compute_flops = compute;
  group.memory_bytes = memory;
  group.downlink_bytes = group.uplink_bytes = links;
  group.latency_s = {latency, latency};
  return group;
}

}  // namespace cleave::sched
