// Exchanges of devices in a layout in stages: two devices take each other's part, replicas and owners alike.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::sched::stages {

/// Indices of two devices, the lower one first.
using DevicePair = std::pair<std::size_t, std::size_t>;

/// Pairs that are better exchanged. A device's time is that of its busiest resource, a pair's the longer one of the
/// two; a pair is worthwhile if its time would be shorter had each done in a step what the other did. Those that save
/// most come first. Example: device 0 sends for 100 s with 5 MB/s, device 1 for 60 s with 10 MB/s. Exchanged, they
/// would send for 120 s and 50 s, so the pair is not worthwhile. Had device 1 sent for 40 s, it would be 80 s and 50 s:
/// worthwhile.
[[nodiscard]] std::vector<DevicePair> worthwhile_exchanges(std::span<const fleet::DeviceProfile> devices,
                                                           std::span<const Usage> usage);
[[nodiscard]] plan::StagePlan exchanged(plan::StagePlan plan, const DevicePair& pair);
/// Every device has room for what the plan reserves on it.
[[nodiscard]] bool fits(const plan::StagePlan& plan, std::span<const fleet::DeviceProfile> devices);

}  // namespace cleave::sched::stages
