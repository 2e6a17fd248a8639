// What a partition scheme is inside `plan`: a function from a problem to placed pieces.
//
// plan_operation() finds the scheme in scheme_of(), which is the registry: a new scheme is one file and one line there
// (docs/adding-a-partition.md). Whatever a scheme returns is then cut until each piece fits its device (fit.hpp) and
// costed; a scheme sets `device`, `box` or `pairs`, and nothing else.
#pragma once

#include <vector>

#include "bounds/shapes.hpp"
#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// Work, and devices that can all do some of it (usable_devices), at least one.
struct Problem {
  const Work& work;
  std::span<const DeviceState> devices;
  const PlanOptions& options;
  BoxBound bound;  ///< of the whole work; a scheme may use it as a guess of the finish
};

using Scheme = std::vector<TaskletPlan> (*)(const Problem& problem);
[[nodiscard]] Scheme scheme_of(Partition partition);

std::vector<TaskletPlan> partition_automatically(const Problem& problem);
std::vector<TaskletPlan> partition_equally(const Problem& problem);
std::vector<TaskletPlan> partition_rows(const Problem& problem);
std::vector<TaskletPlan> partition_grid(const Problem& problem);
std::vector<TaskletPlan> partition_as_published(const Problem& problem);

/// The whole work as one piece without a device.
[[nodiscard]] TaskletPlan whole_of(const Work& work);

/// The bound of a work over devices that can do some of it.
[[nodiscard]] BoxBound bound_work(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options);

/// Attention pairs over devices in proportion to what each can do by a common finish time.
[[nodiscard]] std::vector<TaskletPlan> apportion_pairs(const Work& work, PairRange pairs,
                                                       std::span<const DeviceState> devices,
                                                       const PlanOptions& options);

}  // namespace cleave::plan
