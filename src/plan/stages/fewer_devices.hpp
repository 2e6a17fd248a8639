// Fleets that leave devices out. Every replica is sent its stage's weights through the server's interface. Where that
// interface is the bottleneck, one more replica costs more than its uplink gains.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan::stages {

/// True where fewer devices may be quicker: the server's interface is busy for much of the step, or stages have on
/// average more replicas than there are sequences.
[[nodiscard]] bool too_many(const StagePlan& plan, const StageWork& work, const fleet::ServerProfile& server);

/// Indices of the devices in order of their worth: how fast they pass sequences, times the weights that they hold.
[[nodiscard]] std::vector<std::size_t> by_worth(const StageWork& work, std::span<const fleet::DeviceProfile> devices);

/// Finds a layout for some devices; none where nothing fits. Several threads may call it at once.
using FindLayout = std::function<std::optional<StagePlan>(std::span<const fleet::DeviceProfile>)>;
/// Adds smaller fleets of the devices that are worth most, and sorts all fleets by forecast. Requires: `fleets` has one
/// fleet, of all devices. `threads`: StageOptions::threads.
void leave_out(const StageWork& work, const FindLayout& find, int threads, std::vector<StageFleet>& fleets);
/// Adds fleets of at most `most` of all devices: one for each place in the order of worth at which the next device is
/// worth half or less. Sorts all fleets by forecast.
void try_without_weak_ones(const StageWork& work, std::span<const fleet::DeviceProfile> all, const FindLayout& find,
                           std::size_t most, int threads, std::vector<StageFleet>& fleets);

}  // namespace cleave::plan::stages
