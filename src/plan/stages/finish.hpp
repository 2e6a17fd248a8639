// From a layout to a plan: slices in whole units, and open sequences in the memory that is left.
#pragma once

#include "cleave/plan/stage_plan.hpp"
#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// The plan of a layout, without forecast and chain. Requires: `layout` was laid out for `problem`.
[[nodiscard]] StagePlan finish(const Problem& problem, const Layout& layout);
/// True where no device is to hold more than its memory. A layout may be too large, since its shares of gradients are
/// exact while slices are of whole units, which are large in small models.
[[nodiscard]] bool within_memory(const Problem& problem, const StagePlan& plan);

}  // namespace cleave::plan::stages
