// Layouts in rounds (docs/stage_layouts.md, "Rounds"): runs of pieces, laid out one by one, each on all devices.
#pragma once

#include <span>
#include <vector>

#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan::stages {

/// Layouts in two or more rounds, with the least numbers of rounds that fit, the least forecast first; none where no
/// number of rounds fits. `work`: with its head in parts already, if it is to be. Deterministic.
[[nodiscard]] std::vector<StagePlan> layouts_in_rounds(const StageWork& work,
                                                       std::span<const fleet::DeviceProfile> devices,
                                                       const StageOptions& options);

}  // namespace cleave::plan::stages
