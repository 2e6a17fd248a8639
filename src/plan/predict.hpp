// When an operation alone is done: its tasklets' streams together, sharing the server's interface.
#pragma once

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// The time from dispatch to the last byte at the server, by the rules of the simulated fleet (docs/cost_model.md):
/// every resource is serial, the interface serves the longest tail (cost.hpp) first, a device takes in a tasklet when
/// its memory holds it beside those that it works on, and tasklets are dispatched in their order in the span.
[[nodiscard]] Seconds predict_time(const Work& work, std::span<const TaskletPlan> tasklets,
                                   std::span<const DeviceState> devices, const fleet::ServerProfile& server);

}  // namespace cleave::plan
