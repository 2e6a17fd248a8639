// The order in which a tasklet's panels travel, and how many there are.
#pragma once

#include "cleave/plan/cost.hpp"

namespace cleave::plan {

/// As many panels as headers allow a tasklet that takes its busiest resource for so many seconds.
[[nodiscard]] std::int64_t affordable_panels(double busiest, const fleet::DeviceProfile& profile,
                                             const PlanOptions& options);

/// Sets `order` and `panels` of a piece so that it is done as early as its memory on the device allows; false when no
/// order fits (or a message would be too long).
[[nodiscard]] bool choose_order(const Work& work, TaskletPlan& piece, const DeviceState& device,
                                const PlanOptions& options);

/// Whether every message stays below its limit.
[[nodiscard]] bool messages_fit(std::span<const Panel> panels, const PlanOptions& options);

}  // namespace cleave::plan
