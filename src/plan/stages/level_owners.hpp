// Owners of gradients so that all uplinks are done at the same time, by when sums can really go.
//
// owners.cpp finds owners for a horizon, before it is known how long sequences take to pass. Once a layout is there,
// more is known: when each stage sees its first and its last sequence (Course), so when each device has read what it
// owns. Owners are then found again for the earliest time at which all can be done.
#pragma once

#include <optional>
#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// Seconds at which the first sequence comes back to a stage, and at which the last one has, of each stage.
struct Course {
  std::vector<double> opened, passed;
};
[[nodiscard]] Course course_of(const Problem& problem, const Layout& layout);

/// When the last owner of the layout has sent its sums. Each sends when the last sequence has passed its stages, its
/// downlink has read what it owns and its processor has summed it (docs/stage_layouts.md, "Planner").
[[nodiscard]] double owners_end(const Problem& problem, const Layout& layout);

/// The same without what is planned for chance: for forecasts of a layout that was chosen by owners_end().
[[nodiscard]] double owners_likely_end(const Problem& problem, const Layout& layout);

/// The same stages and replicas with owners that end earlier, if there are any; with `one_group`, one of each stage.
/// owners_end() of the result is less than `before`.
[[nodiscard]] std::optional<Layout> level_owners(const Problem& problem, const Layout& layout, bool one_group,
                                                 double before);

}  // namespace cleave::plan::stages
