// The time of streams that are submitted together to devices that do nothing else: how long a plan takes alone.
#pragma once

#include <cstddef>
#include <span>

#include "cleave/fleet/profile.hpp"
#include "cleave/timing/panels.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::timing {

/// A stream for a device. Fields: as timing::Stream.
struct Submission {
  std::size_t device = 0;  ///< index among the devices
  PanelSequence panels;
  Bytes resident;
};

/// The time of the last answer in a Star of these devices, when the streams are submitted in this order at time 0, with
/// equal priority and without jitter. Resources are busy at first as the states say. The result is the star's to the
/// last digit, though a shorter computation may be used (src/timing/alone).
[[nodiscard]] Seconds time_alone(std::span<const Submission> streams, std::span<const DeviceState> devices,
                                 const fleet::ServerProfile& server);

}  // namespace cleave::timing
