// Pairwise links between devices, where they were measured: data, not behaviour.
//
// The product's own traffic runs over the star of device profiles and the server; systems whose devices talk to each
// other use min(uplink, downlink) of the two profiles, or this matrix where a fleet brings one.
#pragma once

#include <cstdint>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"

namespace cleave::fleet {

/// One direction between two devices.
struct Link {
  Seconds latency;      ///< one way, once per message
  BytesPerSecond rate;  ///< alone on the link
  bool operator==(const Link&) const = default;
};

/// A link for every ordered pair of `devices()` devices; empty for fleets without one.
class LinkMatrix {
 public:
  LinkMatrix() = default;
  LinkMatrix(std::int64_t devices, Link everywhere)
      : devices_(devices), links_(static_cast<std::size_t>(devices * devices), everywhere) {}

  [[nodiscard]] std::int64_t devices() const { return devices_; }
  [[nodiscard]] bool empty() const { return devices_ == 0; }
  [[nodiscard]] const Link& at(DeviceId from, DeviceId to) const { return links_[index(from, to)]; }
  void set(DeviceId from, DeviceId to, Link link) { links_[index(from, to)] = link; }

 private:
  [[nodiscard]] std::size_t index(DeviceId from, DeviceId to) const {
    return static_cast<std::size_t>(from.value * devices_ + to.value);
  }

  std::int64_t devices_ = 0;
  std::vector<Link> links_;
};

}  // namespace cleave::fleet
