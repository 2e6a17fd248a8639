// Chooses a second device for a block that the first one is late with.
#pragma once

#include <optional>
#include <set>
#include <span>

#include "cleave/plan/plan.hpp"

namespace cleave::sched {

/// The device that would answer `piece` soonest, the work that it has in hand included, and `piece` with its cost
/// there; none where every device is excluded, holds too little, or would take longer than `at_most`.
/// The device's loads in `devices` grow by the piece.
[[nodiscard]] std::optional<plan::TaskletPlan> place_copy(const plan::Work& work, plan::TaskletPlan piece,
                                                          std::span<plan::DeviceState> devices,
                                                          const std::set<DeviceId>& excluded, Seconds at_most,
                                                          const plan::PlanOptions& options);

}  // namespace cleave::sched
