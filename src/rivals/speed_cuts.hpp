// Cuts of a chain of units over unlike devices, one a stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "workload.hpp"

namespace cleave::rivals {

/// Boundaries that make the slowest stage of a pipeline as fast as possible. Per sequence, stage s on device s takes
///   max((forward + backward FLOP) / compute, bytes out / uplink, bytes in / downlink),
/// bytes being those of its boundary tensors and of their gradients. `hop_share[s]` is the share of the bytes between
/// stages s and s + 1 that travels; empty: all. Dynamic programme, O(stages units^2). None where some stage's memory
/// (state, one micro-batch in flight) exceeds its device in every cut. Requires: 1 <= chain size <= units.
[[nodiscard]] std::optional<std::vector<std::size_t>> cut_by_speed(const Workload& workload,
                                                                   const std::vector<fleet::DeviceProfile>& devices,
                                                                   std::span<const std::size_t> chain,
                                                                   std::span<const double> hop_share,
                                                                   std::int64_t micro_batch, bool recompute);

}  // namespace cleave::rivals
