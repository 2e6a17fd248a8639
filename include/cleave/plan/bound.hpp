// Lower bound of an operation: no plan of tasklets can finish earlier (docs/cost_model.md derives it).
#pragma once

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// The least time T such that (1) the volumes that the devices can process by T, each with its own best block shape and
/// with its three resources perfectly overlapped, add up to the work, and (2) the server's interface can carry the
/// bytes by T. Infinite where no device can do any of the work.
[[nodiscard]] Seconds lower_bound(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options);

}  // namespace cleave::plan
