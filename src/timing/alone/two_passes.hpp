// Two passes over the panels of streams: all that comes down, then all that goes up.
//
// Where memory never makes a stream wait, nothing that goes up matters to what comes down. So one direction is followed
// to its end before the other begins: half as many events at a time, and no books of what a device holds.
#pragma once

#include <optional>
#include <span>

#include "cleave/timing/alone.hpp"

namespace cleave::timing {

/// As time_alone(); none where two panels want the server's port at one time and only the star's order of all events
/// would tell which comes first. Requires: each device's memory holds all of its streams together.
[[nodiscard]] std::optional<Seconds> two_passes(std::span<const Submission> streams,
                                                std::span<const DeviceState> devices,
                                                const fleet::ServerProfile& server);

}  // namespace cleave::timing
