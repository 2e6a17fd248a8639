// From observations to rates.
#include "beliefs.hpp"

#include <cmath>

namespace cleave::sched {

namespace {

bool differs(double a, double b) { return std::abs(a - b) > Beliefs::kWorthPlanning * b; }

// Work in hand, counted at a declared rate, at the believed one. An unlimited rate has no work in hand.
template <class Rate>
Seconds at_rate(Seconds declared_time, Rate declared, Rate believed) {
  return declared_time.value() > 0 ? declared_time * (declared.value() / believed.value()) : declared_time;
}

}  // namespace

Beliefs::Rates Beliefs::rates_of(const fleet::DeviceProfile& profile) {
  return {profile.compute, profile.downlink, profile.uplink};
}

void Beliefs::observe(const fleet::DeviceProfile& declared, const Measured& measured) {
  const auto [found, is_new] = devices_.try_emplace(declared.id);
  Device& device = found->second;
  if (is_new) device.believed = device.latest = rates_of(declared);
  device.downlink.observe(static_cast<double>(measured.bytes_down.value()), measured.down);
  device.compute.observe(measured.flops.value(), measured.compute);
  device.uplink.observe(static_cast<double>(measured.bytes_up.value()), measured.up);
  const Rates now{FlopsPerSecond(device.compute.rate(declared.compute.value())),
                  BytesPerSecond(device.downlink.rate(declared.downlink.value())),
                  BytesPerSecond(device.uplink.rate(declared.uplink.value()))};
  const Rates& before = device.believed;
  device.latest = now;
  worth_planning_ = worth_planning_ || differs(now.compute.value(), before.compute.value()) ||
                    differs(now.downlink.value(), before.downlink.value()) ||
                    differs(now.uplink.value(), before.uplink.value());
}

void Beliefs::renew(bool at_once) {
  if (!at_once && !worth_planning_) return;
  worth_planning_ = false;
  bool changed = false;
  for (auto& [id, device] : devices_) {
    changed = changed || !(device.latest == device.believed);
    device.believed = device.latest;
  }
  if (changed) ++version_;
}

void Beliefs::apply(std::vector<plan::DeviceState>& devices) const {
  for (plan::DeviceState& device : devices) {
    const auto found = devices_.find(device.profile.id);
    if (found == devices_.end()) continue;
    const Rates& rates = found->second.believed;
    device.down_busy = at_rate(device.down_busy, device.profile.downlink, rates.downlink);
    device.compute_busy = at_rate(device.compute_busy, device.profile.compute, rates.compute);
    device.up_busy = at_rate(device.up_busy, device.profile.uplink, rates.uplink);
    device.profile.downlink = rates.downlink;
    device.profile.compute = rates.compute;
    device.profile.uplink = rates.uplink;
  }
}

}  // namespace cleave::sched
