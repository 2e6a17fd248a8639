// Making pieces fit: device memory, and the limit on the size of one message.
#pragma once

#include <vector>

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// The smallest piece of a work: one element of the result over one K block, or one attention pair.
[[nodiscard]] TaskletPlan smallest_piece(const Work& work);

/// Devices with positive rates and room for the smallest piece, in order of id.
/// Errors: InputError when there is none, with the memory needed and had.
[[nodiscard]] std::vector<DeviceState> usable_devices(const Work& work, std::span<const DeviceState> devices,
                                                      const PlanOptions& options);

/// Cuts a piece until every part fits the device's memory and its messages the limit, in the best order of panels.
/// Parts are disjoint and fill the piece; each is cut where it costs the device least.
[[nodiscard]] std::vector<TaskletPlan> fit_piece(const Work& work, const TaskletPlan& piece, const DeviceState& device,
                                                 const PlanOptions& options);

}  // namespace cleave::plan
