// The busiest resource of a device says when it would be through; a panel more or less does not change the choice.
#include "recovery/copies.hpp"

#include <algorithm>

#include "cleave/plan/cost.hpp"

namespace cleave::sched {

std::optional<plan::TaskletPlan> place_copy(const plan::Work& work, plan::TaskletPlan piece,
                                            std::span<plan::DeviceState> devices, const std::set<DeviceId>& excluded,
                                            Seconds at_most, const plan::PlanOptions& options) {
  if (piece.columns_kept) {  // the other device does not keep them
    piece.columns_kept = false;
    piece.resident = plan::resident_bytes(work, piece);
    piece.bytes_down = plan::volume_of(work, piece).down;
  }
  const Flops flops = plan::volume_of(work, piece).flops;
  plan::DeviceState* best = nullptr;
  Seconds soonest = at_most;
  for (plan::DeviceState& device : devices) {
    const fleet::DeviceProfile& profile = device.profile;
    if (excluded.contains(profile.id) || profile.memory < piece.resident) continue;
    const Seconds through =
        std::max({device.down_busy + piece.bytes_down / profile.downlink, device.compute_busy + flops / profile.compute,
                  device.up_busy + piece.bytes_up / profile.uplink}) +
        profile.latency * 2.0;
    if (through >= soonest) continue;
    soonest = through;
    best = &device;
  }
  if (best == nullptr) return std::nullopt;
  plan::estimate_cost(work, piece, *best, options);
  best->down_busy += piece.bytes_down / best->profile.downlink;
  best->compute_busy += flops / best->profile.compute;
  best->up_busy += piece.bytes_up / best->profile.uplink;
  return piece;
}

}  // namespace cleave::sched
