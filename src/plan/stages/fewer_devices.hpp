// Fleets that leave devices out. Every replica is sent its stage's weights through one interface, the server's; where
// that is what takes long, a replica more costs more than its uplink brings.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan::stages {

/// The interface is busy for so much of the step that fewer bytes may make it shorter, or stages have more replicas in
/// the mean than there are sequences.
[[nodiscard]] bool too_many(const StagePlan& plan, const StageWork& work, const fleet::ServerProfile& server);

/// The devices' indices, those first that pass most through most weights in a time.
[[nodiscard]] std::vector<std::size_t> by_worth(const StageWork& work, std::span<const fleet::DeviceProfile> devices);

using FindLayout = std::function<std::optional<StagePlan>(std::span<const fleet::DeviceProfile>)>;
/// Adds smaller fleets to the only one that is there, and sorts all by forecast.
void leave_out(const StageWork& work, const FindLayout& find, std::vector<StageFleet>& fleets);
/// Adds fleets of up to `most` devices, each without all that are worth less than half of those in it, to the only one
/// that is there, and sorts all by forecast.
void try_without_weak_ones(const StageWork& work, const FindLayout& find, std::size_t most,
                           std::vector<StageFleet>& fleets);

}  // namespace cleave::plan::stages
