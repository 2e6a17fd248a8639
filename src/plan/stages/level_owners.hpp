// Owners of gradients that are all done as early as possible, for a given layout.
//
// owners.cpp chooses owners for a horizon, before it is known how long sequences take to pass. Once there is a layout,
// it can be predicted when each stage has its first and its last sequence (Course), and so when each device has read
// what it sums. Owners are then chosen again, for the earliest time at which all of them can be done.
#pragma once

#include <optional>
#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// For each stage, in seconds: when the first sequence comes back to it, and when the last one has passed it.
struct Course {
  std::vector<double> opened, passed;
};

/// The predicted course of a layout's step.
[[nodiscard]] Course course_of(const Problem& problem, const Layout& layout);

/// When the last owner of the layout has sent its sums. Each sends when the last sequence has passed its stages, its
/// downlink has read what it owns and its processor has summed it (docs/stage_layouts.md, "Planner").
[[nodiscard]] double owners_end(const Problem& problem, const Layout& layout);

/// The same without reserves, for the forecast of a layout that was chosen by owners_end().
[[nodiscard]] double owners_likely_end(const Problem& problem, const Layout& layout);

/// The same stages and replicas with other owners, whose owners_end() is less than `before`; none where there are no
/// such owners. `one_group`: every stage gets one owner group.
[[nodiscard]] std::optional<Layout> level_owners(const Problem& problem, const Layout& layout, bool one_group,
                                                 double before);

}  // namespace cleave::plan::stages
