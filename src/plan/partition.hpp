// What a partition is inside `plan`: a function from a problem to placed pieces.
//
// plan_operation() finds it in the registry: a new partition is one file and one line there
// (docs/adding-a-partition.md). Whatever a partition returns is then cut until each piece fits its device (fit.hpp) and
// costed; a partition sets `device`, `box` or `pairs`, and nothing else.
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
  BoxBound bound;  ///< of the whole work; a partition may use it as a guess of the finish
};

/// How one partition cuts: partition_NAME().
using Scheme = std::vector<TaskletPlan> (*)(const Problem& problem);
[[nodiscard]] Scheme scheme_of(Partition partition);

/// The whole work as one piece without a device.
[[nodiscard]] TaskletPlan whole_of(const Work& work);

/// The bound of a work over devices that can do some of it.
[[nodiscard]] BoxBound bound_work(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options);

/// Attention pairs over devices in proportion to what each can do by a common finish time.
[[nodiscard]] std::vector<TaskletPlan> apportion_pairs(const Work& work, PairRange pairs,
                                                       std::span<const DeviceState> devices,
                                                       const PlanOptions& options);

}  // namespace cleave::plan
