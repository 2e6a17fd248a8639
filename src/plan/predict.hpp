// When an operation alone is done: its tasklets as streams of the time model.
#pragma once

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// The time from dispatch to the last byte at the server, as the simulated fleet takes for it, to the last digit:
/// tasklets are dispatched in their order in the span to devices as loaded as their states say (timing/alone.hpp).
[[nodiscard]] Seconds predict_time(const Work& work, std::span<const TaskletPlan> tasklets,
                                   std::span<const DeviceState> devices, const fleet::ServerProfile& server);

}  // namespace cleave::plan
