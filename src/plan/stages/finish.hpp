// From a candidate to a plan: slices in whole units, memory of every device, open sequences in what is left of it.
#pragma once

#include "cleave/plan/stage_plan.hpp"
#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// Requires: `layout` was laid out for `problem`.
[[nodiscard]] StagePlan finish(const Problem& problem, const Layout& layout);
/// No device is to hold more than it has. Shares of gradients are dealt out as if they could be cut anywhere, and units
/// of small models are large.
[[nodiscard]] bool within_memory(const Problem& problem, const StagePlan& plan);

}  // namespace cleave::plan::stages
