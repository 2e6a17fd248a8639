// Lower bound of an operation: no plan of tasklets can finish earlier (docs/cost_model.md derives it).
#pragma once

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// The smallest T for which the volumes that the devices can process by T, each with its own best block shape and its
/// three resources perfectly overlapped, add up to the work, and the server's interface can carry the bytes.
/// Infinite when no device can do any of it.
[[nodiscard]] Seconds lower_bound(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options);

}  // namespace cleave::plan
