// The panels of a tasklet: in which steps its operands come down, are multiplied, and its results go up.
#pragma once

#include <vector>

#include "cleave/plan/plan.hpp"
#include "cleave/timing/panels.hpp"

namespace cleave::plan {

using timing::kMessageHeader;
using timing::Panel;
using timing::PanelRun;

/// A tasklet's panels, computed one by one. Their bytes add up to tasklet.bytes_down and bytes_up. Requires:
/// tasklet.panels >= 1.
[[nodiscard]] timing::PanelSequence panel_sequence(const Work& work, const TaskletPlan& tasklet);

/// All panels of panel_sequence().
[[nodiscard]] std::vector<Panel> panels_of(const Work& work, const TaskletPlan& tasklet);

}  // namespace cleave::plan
