// When streams that are submitted together, to devices that do nothing else, are all answered: what a plan is worth.
#pragma once

#include <cstddef>
#include <span>

#include "cleave/fleet/profile.hpp"
#include "cleave/timing/panels.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::timing {

struct Submission {
  std::size_t device = 0;  ///< index among the devices
  PanelSequence panels;
  Bytes resident;
};

/// The time of the last answer in a Star of these devices, whose resources are taken as their states say, to which the
/// streams are submitted in this order at time 0, all of one priority and without jitter. To the last digit: it is
/// computed by the star, or by a shorter way that gives what the star does (src/timing/alone).
[[nodiscard]] Seconds time_alone(std::span<const Submission> streams, std::span<const DeviceState> devices,
                                 const fleet::ServerProfile& server);

}  // namespace cleave::timing
