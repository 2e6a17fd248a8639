// Which layout a step gets, tiles or stages, and in how many row groups tiles go: what plan.layout and plan.row_groups
// leave open. `train`, `simulate` and `plan` ask here, so that they agree.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cleave/model/config.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/scheduler.hpp"

namespace cleave::sched {

enum class Layout : std::uint8_t { automatic, tiles, stages };
[[nodiscard]] const char* name_of(Layout layout);

struct LayoutRequest {
  Layout layout = Layout::automatic;
  std::int64_t row_groups = 0;  ///< 0: whichever number is quickest
};

struct LayoutChoice {
  Layout layout = Layout::tiles;
  std::int64_t row_groups = 1;
  std::optional<plan::StagePlan> stages;  ///< where `layout` is stages
};

/// Both layouts are forecast. Stages win without further work where their forecast, with a margin, is below a low
/// estimate of tiles; else one step of each candidate is rehearsed on a SimulatedFleet without churn or jitter, and the
/// quickest wins. Pure and deterministic.
/// Errors: InputError where stages are asked for and do not fit.
[[nodiscard]] LayoutChoice choose_layout(const model::ModelConfig& model, const model::StepOptions& step,
                                         std::span<const fleet::DeviceProfile> devices,
                                         const SchedulerOptions& scheduling, const LayoutRequest& request);

}  // namespace cleave::sched
