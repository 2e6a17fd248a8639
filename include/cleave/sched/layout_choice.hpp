// Which layout a step gets, tiles or stages, and in how many row groups tiles go: what plan.layout and plan.row_groups
// leave open. `train`, `simulate` and `plan` ask here, so that they agree.
#pragma once

#include <cstdint>
#include <optional>

#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "cleave/sched/step_spec.hpp"

namespace cleave::sched {

[[nodiscard]] const char* name_of(Layout layout);

struct LayoutChoice {
  Layout layout = Layout::tiles;
  std::int64_t row_groups = 1;
  std::optional<plan::StagePlan> stages;  ///< where `layout` is stages
};

/// What `spec.layout` leaves open. Both layouts are forecast; of stages, in fleets of up to 128 devices, the best few
/// are rehearsed: one step of each on a SimulatedFleet without churn or jitter, and the quickest wins. Stages win
/// without further work where their forecast, with a margin, is below a low estimate of tiles; else every candidate in
/// tiles is rehearsed too. Pure and deterministic. Errors: InputError where stages are asked for and do not fit.
[[nodiscard]] LayoutChoice choose_layout(const StepSpec& spec);

/// The quickest of the candidates in tiles, if one takes no longer than `limit`: rehearsals end as soon as they must.
/// Pure.
[[nodiscard]] std::optional<LayoutChoice> tiles_within(const StepSpec& spec, Seconds limit);

/// A low estimate of the step in tiles, on devices that do as they declare. Pure.
[[nodiscard]] Seconds tile_estimate(const StepSpec& spec);

/// The layout of training without emulation, as fast as the host can: links and rates that are declared say nothing
/// then. Stages where every device has the whole model, keeps what it needs of all its sequences, and has two of them
/// at least to run one after another: nothing is computed twice and next to nothing copied
/// (docs/measurements/speed.md). Otherwise tiles. Errors: as choose_layout().
[[nodiscard]] LayoutChoice layout_without_emulation(const StepSpec& spec);

/// How the step is planned and scheduled in stages.
[[nodiscard]] StageSchedulerOptions stage_scheduler_options(const StepSpec& spec);

}  // namespace cleave::sched
