// The three serial resources of an emulated device: downlink, processor, uplink. A pure model of time; it neither
// sleeps nor reads a clock.
#pragma once

#include <span>

#include "cleave/base/random.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/message.hpp"

namespace cleave::device {

/// When the parts of a tasklet end under the model.
struct Timeline {
  Seconds received;  ///< its last byte is on the device
  Seconds computed;
  Seconds answered;  ///< the last byte of its result is at the server
};

class Throttle {
 public:
  Throttle(const comm::HostedDevice& device, std::uint64_t seed);

  /// Puts a task behind those admitted before; include/cleave/device/host.hpp has the equations.
  /// Requires: a schedule of at least one panel; arrivals never go back.
  Timeline admit(Seconds arrival, const comm::TaskView& task);

 private:
  comm::HostedDevice device_;
  Random jitter_;
  Seconds link_free_{0}, processor_free_{0}, uplink_free_{0};
};

}  // namespace cleave::device
