// What a device and the server are: rates, memory, link and power. Data, not behaviour.
//
// Device groups, the entries of fleet.devices, describe a fleet as the input does; draw_devices() turns them into
// devices, each a pure function of (fleet seed, device index), so that adding one at the end changes no earlier device.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"

namespace cleave::fleet {

inline constexpr BytesPerSecond kUnlimitedRate{std::numeric_limits<double>::infinity()};

/// One emulated edge device. Its downlink, processor and uplink are serial resources that work at the same time.
struct DeviceProfile {
  DeviceId id;
  std::string name;          ///< of its entry in the input
  FlopsPerSecond compute;    ///< sustained rate of its processor
  Bytes memory;              ///< for strips, panels in flight, accumulators and results together
  BytesPerSecond downlink;   ///< server to device
  BytesPerSecond uplink;     ///< device to server
  Seconds latency;           ///< one way, once per message
  Seconds jitter;            ///< uniform in [0, jitter) on top of the latency of each message
  Watts power_compute{5.0};  ///< while multiplying
  Watts power_radio{1.0};    ///< while sending or receiving
  Watts power_idle{0.5};     ///< at all times; compute and radio power are added to it
  std::string owner{};       ///< operator; devices of one never witness each other's answers; empty: its own
  std::string group{};       ///< domain: likewise of those that may act together; empty: of none
};

/// The parameter server's network interface (serial in each direction) and its processor for server kernels.
struct ServerProfile {
  BytesPerSecond nic_out{12.5e9};
  BytesPerSecond nic_in{12.5e9};
  FlopsPerSecond compute{2e12};
  BytesPerSecond memory_bandwidth{100e9};
  Watts power_idle{200};  ///< at all times
  Watts power_load{500};  ///< while its interface or its processor works
};

/// A closed range from which a figure is drawn uniformly; low == high is a constant.
struct Range {
  double low = 0, high = 0;
};

/// `count` devices of one kind; figures in bytes, seconds and FLOP.
struct DeviceGroup {
  std::string name = "device";
  std::int64_t count = 1;
  Range compute_flops, memory_bytes, downlink_bytes, uplink_bytes, latency_s;
  Range jitter_s{};
  Range power_compute_w{5, 5}, power_radio_w{1, 1}, power_idle_w{0.5, 0.5};
  std::string owner{}, group{};  ///< of all of them (DeviceProfile)
};

/// Draws every device of `groups`, ids 0, 1, ... in order of the device groups. Pure function of its arguments.
[[nodiscard]] std::vector<DeviceProfile> draw_devices(const std::vector<DeviceGroup>& groups, std::uint64_t seed);

/// The device with every rate times `factor`.
[[nodiscard]] DeviceProfile slowed(DeviceProfile device, double factor);

/// The device with the mean of its jitter as part of its latency, and no jitter: for those who plan.
/// Example: latency 10 ms, jitter 6 ms: every message takes 13 ms.
[[nodiscard]] DeviceProfile without_jitter(DeviceProfile device);

}  // namespace cleave::fleet
