// Which slices each owner of a stage's gradient sums: shares in, slices out.
#pragma once

#include "cleave/plan/stage_plan.hpp"
#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// The layout's owners with their slices, weights and memory, ordered by stage and group. `whole_heads`: slices of
/// attention end where heads do. As far as shares and memory allow, an owner's slices lie within one piece: an owner of
/// parts of two pieces must recompute all values between them, forward and backward.
/// Requires: `layout` was laid out for `problem`.
[[nodiscard]] std::vector<GradientOwner> owners_with_slices(const Problem& problem, const Layout& layout,
                                                            bool whole_heads);

}  // namespace cleave::plan::stages
