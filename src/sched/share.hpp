// Operations that are ready together share the fleet: each gets devices of its own.
#pragma once

#include <span>
#include <vector>

#include "cleave/plan/plan.hpp"

namespace cleave::sched {

/// What the links of a device let it multiply in a given time grows with downlink * sqrt(uplink); without links, with
/// its processor.
[[nodiscard]] double power_of(const plan::DeviceState& device, const fleet::ServerProfile& server);

/// Plans of `works`, each on its own part of `devices`; empty where one after another over all of them (`whole`, their
/// plans for that) is no slower. Fewer devices to an operation means larger blocks, which move fewer bytes for the same
/// product: with links as the limit, an operation on 1/g of the fleet takes g^(2/3) times as long, not g times.
[[nodiscard]] std::vector<plan::OperationPlan> share_fleet(std::span<const plan::Work> works,
                                                           std::span<const plan::OperationPlan* const> whole,
                                                           std::span<const plan::DeviceState> devices,
                                                           const plan::PlanOptions& options);

}  // namespace cleave::sched
