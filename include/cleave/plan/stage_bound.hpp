// Lower bounds of a step: of one layout in stages (docs/stage_layouts.md), and of any at all (docs/cost_model.md).
#pragma once

#include <span>

#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan {

/// Time in which only the server works: the embeddings before the devices, and after them the update, where it waits
/// for the global gradient norm.
struct ServerShare {
  Seconds before, after;
};
[[nodiscard]] ServerShare server_share(const model::StepGraph& graph, const fleet::ServerProfile& server);

/// Lower bound of a step with this plan on these devices without losses, whichever replica takes which sequence.
[[nodiscard]] Seconds stage_lower_bound(const StageWork& work, const StagePlan& plan,
                                        std::span<const fleet::DeviceProfile> devices,
                                        const fleet::ServerProfile& server, const ServerShare& share);

/// The floor: a lower bound of a step in any layout that keeps all state on the server, computes products on devices
/// and moves elements in the wire type. The largest of three: the FLOP on all processors; every weight down once and
/// every gradient up once; the rows of the residual stream, or partial results, that must leave devices which cannot
/// hold the rest of the model; plus share.after. 0 without devices.
[[nodiscard]] Seconds floor_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                               const fleet::ServerProfile& server, const ServerShare& share);

}  // namespace cleave::plan
