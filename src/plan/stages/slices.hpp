// Who sums which part of a stage's gradient: shares in, slices of pieces out.
#pragma once

#include "cleave/plan/stage_plan.hpp"
#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// The layout's owners with their slices, weights and memory, by stage and group. With `whole_heads` slices of
/// attention end where heads do. Those of one gradient lie within pieces as far as the owners' shares and memory allow:
/// who owns parts of two pieces makes all values between them again, forward and back.
/// Requires: `layout` was laid out for `problem`.
[[nodiscard]] std::vector<GradientOwner> owners_with_slices(const Problem& problem, const Layout& layout,
                                                            bool whole_heads);

}  // namespace cleave::plan::stages
