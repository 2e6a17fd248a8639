// What a partition scheme is inside `plan`: a function from work and usable devices to placed pieces.
//
// plan_operation() finds the scheme in scheme_of(), which is the registry: a new scheme is one file and one line there
// (docs/adding-a-partition.md). Whatever a scheme returns is then cut until each piece fits its device (fit.hpp) and
// costed; a scheme sets `device`, `box` or `pairs`, and nothing else.
#pragma once

#include <vector>

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// Requires: every device is usable (usable_devices), and there is at least one.
using Scheme = std::vector<TaskletPlan> (*)(const Work& work, std::span<const DeviceState> devices,
                                            const PlanOptions& options);
[[nodiscard]] Scheme scheme_of(Partition partition);

std::vector<TaskletPlan> partition_equally(const Work&, std::span<const DeviceState>, const PlanOptions&);
std::vector<TaskletPlan> partition_automatically(const Work&, std::span<const DeviceState>, const PlanOptions&);
std::vector<TaskletPlan> partition_rows(const Work&, std::span<const DeviceState>, const PlanOptions&);
std::vector<TaskletPlan> partition_as_published(const Work&, std::span<const DeviceState>, const PlanOptions&);
std::vector<TaskletPlan> partition_grid(const Work&, std::span<const DeviceState>, const PlanOptions&);

/// The whole work as one piece without a device.
[[nodiscard]] TaskletPlan whole_of(const Work& work);

/// Attention pairs over devices in proportion to what each can do by a common finish time.
[[nodiscard]] std::vector<TaskletPlan> apportion_pairs(const Work& work, PairRange pairs,
                                                       std::span<const DeviceState> devices,
                                                       const PlanOptions& options);

/// A box of a GEMM over devices in three dimensions.
[[nodiscard]] std::vector<TaskletPlan> tile_box(const Work& work, const GemmBox& box,
                                                std::span<const DeviceState> devices, const PlanOptions& options);

}  // namespace cleave::plan
