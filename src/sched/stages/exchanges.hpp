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

/// Of devices numbered from 0, the lower one first.
using DevicePair = std::pair<std::size_t, std::size_t>;

/// Pairs for whom the longer of their busiest resources would be busy for a shorter time, if each did what the other
/// has done in a step. Those who would save most come first. Example: device 0 sends for 100 s with 5 MB/s, device 1
/// for 60 s with 10 MB/s. Exchanged they send for 50 s and 120 s: no. Had device 1 sent for 40 s, it would be 50 s and
/// 80 s.
[[nodiscard]] std::vector<DevicePair> worthwhile_exchanges(std::span<const fleet::DeviceProfile> devices,
                                                           std::span<const Usage> usage);
[[nodiscard]] plan::StagePlan exchanged(plan::StagePlan plan, const DevicePair& pair);
/// Every device has room for what the plan reserves on it.
[[nodiscard]] bool fits(const plan::StagePlan& plan, std::span<const fleet::DeviceProfile> devices);

}  // namespace cleave::sched::stages
