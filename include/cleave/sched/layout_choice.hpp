// Which layout a step gets, tiles or stages, and in how many row groups tiles go: what plan.layout and plan.row_groups
// leave open. `train`, `simulate` and `plan` ask here, so that they agree.
#pragma once

#include <cstdint>
#include <optional>

#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "cleave/sched/step_spec.hpp"

namespace cleave::sched {

/// "auto", "tiles" or "stages", as inputs have it.
[[nodiscard]] const char* name_of(Layout layout);

/// The layout of a step.
struct LayoutChoice {
  Layout layout = Layout::tiles;          ///< tiles or stages
  std::int64_t row_groups = 1;            ///< tiles: number of row groups
  std::optional<plan::StagePlan> stages;  ///< stages: the plan
};

/// Decides what `spec.layout` leaves open. Both layouts are forecast. Candidates in stages are rehearsed where
/// forecasts do not settle it, as in fleets of up to plan::kSmallFleet devices: one step of each is simulated without
/// churn and with the mean of the jitter, and the quickest wins. Stages win without further work where their forecast,
/// with a margin, is below tile_estimate(); otherwise every candidate in tiles is rehearsed too. Pure. Errors:
/// InputError where stages are asked for and do not fit.
[[nodiscard]] LayoutChoice choose_layout(const StepSpec& spec);

/// Rehearses the candidates in tiles and returns the quickest; none where all take longer than `limit`. A rehearsal
/// ends as soon as it is certain to take longer. Pure.
[[nodiscard]] std::optional<LayoutChoice> tiles_within(const StepSpec& spec, Seconds limit);

/// A low estimate of the step in tiles, on devices that do as they declare. Pure.
[[nodiscard]] Seconds tile_estimate(const StepSpec& spec);

/// The layout of training without emulation (clock `off`), where declared links and rates do not matter. Stages, if
/// every device can hold the whole model and keep all its sequences, and has at least two sequences: nothing is then
/// computed twice, and little is copied (docs/measurements/speed.md). Otherwise tiles. Errors: as choose_layout().
[[nodiscard]] LayoutChoice layout_without_emulation(const StepSpec& spec);

/// The options with which the step is planned and scheduled in stages.
[[nodiscard]] StageSchedulerOptions stage_scheduler_options(const StepSpec& spec);

}  // namespace cleave::sched
