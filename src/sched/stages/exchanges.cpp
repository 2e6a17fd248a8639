// What a device has done in a step, at the rates of another device.
#include "stages/exchanges.hpp"

#include <algorithm>
#include <functional>

namespace cleave::sched::stages {

namespace {

// Seconds for which `device` would be busy with what a device of `rates` has done. `did`: seconds at these rates.
double busy(const Usage& did, const fleet::DeviceProfile& rates, const fleet::DeviceProfile& device) {
  return std::max({did.down.value() * (rates.downlink / device.downlink),
                   did.up.value() * (rates.uplink / device.uplink),
                   did.compute.value() * (rates.compute / device.compute)});
}

}  // namespace

std::vector<DevicePair> worthwhile_exchanges(std::span<const fleet::DeviceProfile> devices,
                                             std::span<const Usage> usage) {
  std::vector<std::pair<double, DevicePair>> saved;
  for (std::size_t a = 0; a < devices.size(); ++a) {
    const double own = busy(usage[a], devices[a], devices[a]);
    for (std::size_t b = a + 1; b < devices.size(); ++b) {
      const double before = std::max(own, busy(usage[b], devices[b], devices[b]));
      const double after = std::max(busy(usage[a], devices[a], devices[b]), busy(usage[b], devices[b], devices[a]));
      if (after < before) saved.push_back({before - after, {a, b}});
    }
  }
  std::ranges::stable_sort(saved, std::greater<>{}, &std::pair<double, DevicePair>::first);
  std::vector<DevicePair> pairs;
  for (const auto& [seconds, pair] : saved) pairs.push_back(pair);
  return pairs;
}

plan::StagePlan exchanged(plan::StagePlan plan, const DevicePair& pair) {
  const DeviceId a(static_cast<std::int32_t>(pair.first)), b(static_cast<std::int32_t>(pair.second));
  const auto take = [&](DeviceId& device) {
    if (device == a) {
      device = b;
    } else if (device == b) {
      device = a;
    }
  };
  for (plan::Stage& stage : plan.stages) {
    for (plan::StageReplica& replica : stage.replicas) take(replica.device);
  }
  for (plan::GradientOwner& owner : plan.owners) take(owner.device);
  return plan;
}

bool fits(const plan::StagePlan& plan, std::span<const fleet::DeviceProfile> devices) {
  std::vector<std::vector<Bytes>> reserved(static_cast<std::size_t>(plan.rounds()), std::vector<Bytes>(devices.size()));
  const auto add = [&](std::int64_t round, DeviceId device, Bytes memory) {
    reserved[static_cast<std::size_t>(round)][static_cast<std::size_t>(device.value)] += memory;
  };
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::StageReplica& replica : stage.replicas) add(stage.round, replica.device, replica.memory);
  }
  for (const plan::GradientOwner& owner : plan.owners)
    add(plan.stages[static_cast<std::size_t>(owner.stage)].round, owner.device, owner.memory);
  return std::ranges::all_of(reserved, [&](const std::vector<Bytes>& of_round) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (of_round[i] > devices[i].memory) return false;
    }
    return true;
  });
}

}  // namespace cleave::sched::stages
