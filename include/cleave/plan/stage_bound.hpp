// Lower bounds of a step: of one layout in stages (docs/stage_layouts.md), and of any at all (docs/cost_model.md).
#pragma once

#include <span>

#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan {

/// What the server does before and after the devices, in seconds: embeddings, and the update that waits for the norm.
struct ServerShare {
  Seconds before, after;
};
[[nodiscard]] ServerShare server_share(const model::StepGraph& graph, const fleet::ServerProfile& server);

/// No run of this plan on these devices ends earlier, whichever replica takes which sequence, without losses.
[[nodiscard]] Seconds stage_lower_bound(const StageWork& work, const StagePlan& plan,
                                        std::span<const fleet::DeviceProfile> devices,
                                        const fleet::ServerProfile& server, const ServerShare& share);

/// No layout that keeps all state on the server, multiplies on devices and moves elements in the wire type ends
/// earlier: processors; every weight down once and every gradient up once; rows of the residual stream, or partial
/// results, that leave devices which cannot hold the rest of the model.
[[nodiscard]] Seconds floor_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                               const fleet::ServerProfile& server, const ServerShare& share);

}  // namespace cleave::plan
