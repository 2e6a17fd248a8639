// From pieces placed by a scheme to tasklets with their costs, and from tasklets to the totals of a plan.
#pragma once

#include <vector>

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// Cuts each piece until it fits its device, chooses its panels, and costs it behind the device's earlier ones.
[[nodiscard]] std::vector<TaskletPlan> finish_pieces(const Work& work, std::span<const TaskletPlan> pieces,
                                                     std::span<const DeviceState> devices, const PlanOptions& options);

/// Asserts that pieces of a partition cover the whole work, each element once: a gap, or a block that is there twice,
/// would otherwise show as training that diverges. Complexity: n log n for n pieces.
void require_whole(const Work& work, std::span<const TaskletPlan> pieces, Partition partition);

/// Fills every field of `plan` but the bound from its tasklets.
void total_up(const Work& work, OperationPlan& plan, std::span<const DeviceState> devices, const PlanOptions& options);

}  // namespace cleave::plan
