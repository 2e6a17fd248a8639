// From observations to rates.
#include "estimation/rate_estimates.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cleave::sched {

namespace {

bool differs(double a, double b) { return std::abs(a - b) > RateEstimates::kWorthPlanning * b; }

// Work in hand, counted at a declared rate, at the estimated one. An unlimited rate has no work in hand.
template <class Rate>
Seconds at_rate(Seconds declared_time, Rate declared, Rate estimated) {
  return declared_time.value() > 0 ? declared_time * (declared.value() / estimated.value()) : declared_time;
}

}  // namespace

RateEstimates::Rates RateEstimates::rates_of(const fleet::DeviceProfile& profile) {
  return {profile.downlink.value(), profile.compute.value(), profile.uplink.value()};
}

void RateEstimates::know(const fleet::DeviceProfile& declared) {
  Device& device = devices_[declared.id];
  if (std::exchange(device.known, true)) return;
  device.declared = rates_of(declared);
}

std::pair<RateEstimates::Rates, RateEstimates::Times> RateEstimates::resources_of(const Measured& measured) {
  return {{static_cast<double>(measured.bytes_down.value()), measured.flops.value(),
           static_cast<double>(measured.bytes_up.value())},
          {measured.down, measured.compute, measured.up}};
}

// From here on every observation counts, those so far as what was declared: an estimator does not tell them from it.
void RateEstimates::learn(Device& device) {
  device.learned = std::make_unique<Learned>();
  device.learned->estimated = device.learned->latest = device.declared;
  for (std::size_t r = 0; r < kResources; ++r) {
    for (int i = 0; i < device.as_declared[r]; ++i)
      device.learned->estimators[r].observe(device.declared[r], Seconds(1));
  }
}

void RateEstimates::observe(DeviceId id, const Measured& measured) {
  Device& device = devices_[id];
  if (!device.known) return;
  const auto [amounts, times] = resources_of(measured);
  if (device.learned == nullptr) {
    std::array<bool, kResources> counts{};
    bool as_declared = true;
    for (std::size_t r = 0; r < kResources; ++r) {
      counts[r] = RateEstimator::is_observation(amounts[r], times[r]);
      as_declared =
          as_declared && (!counts[r] || RateEstimator::agrees(amounts[r] / times[r].value(), device.declared[r]));
    }
    if (as_declared) {
      for (std::size_t r = 0; r < kResources; ++r)
        if (counts[r] && device.as_declared[r] < RateEstimator::kWindow) ++device.as_declared[r];
      return;
    }
  }
  Learned& learned = learned_of(id, device);
  for (std::size_t r = 0; r < kResources; ++r) {
    learned.estimators[r].observe(amounts[r], times[r]);
    learned.latest[r] = learned.estimators[r].rate(device.declared[r]);
    worth_planning_ = worth_planning_ || differs(learned.latest[r], learned.estimated[r]);
  }
}

RateEstimates::Learned& RateEstimates::learned_of(DeviceId id, Device& device) {
  if (device.learned == nullptr) {
    learn(device);
    learned_.push_back(id);
  }
  return *device.learned;
}

void RateEstimates::believe(Learned& learned, std::size_t resource, double amount, Seconds time) {
  if (!RateEstimator::is_observation(amount, time)) return;
  learned.estimators[resource] = {};
  for (std::size_t i = 0; i < RateEstimator::kEnough; ++i) learned.estimators[resource].observe(amount, time);
  learned.latest[resource] = amount / time.value();
  worth_planning_ = worth_planning_ || differs(learned.latest[resource], learned.estimated[resource]);
}

void RateEstimates::slowed(DeviceId id, double factor) {
  Device& device = devices_[id];
  if (!device.known) return;
  Learned& learned = learned_of(id, device);
  for (std::size_t r = 0; r < kResources; ++r) believe(learned, r, learned.estimated[r] / factor, Seconds(1));
}

void RateEstimates::begin_again(DeviceId id, const Measured& measured) {
  Device& device = devices_[id];
  if (!device.known) return;
  Learned& learned = learned_of(id, device);
  const auto [amounts, times] = resources_of(measured);
  double share = 1;  // of what it declares
  for (std::size_t r = 0; r < kResources; ++r) {
    believe(learned, r, amounts[r], times[r]);
    if (RateEstimator::is_observation(amounts[r], times[r]))
      share = std::min(share, amounts[r] / times[r].value() / device.declared[r]);
  }
  for (std::size_t r = 0; r < kResources; ++r) {
    if (!RateEstimator::is_observation(amounts[r], times[r]) && learned.latest[r] > share * device.declared[r])
      believe(learned, r, share * device.declared[r], Seconds(1));
  }
}

void RateEstimates::renew(bool at_once) {
  if (!at_once && !worth_planning_) return;
  worth_planning_ = false;
  bool changed = false;
  for (const DeviceId id : learned_) {
    Learned& learned = *devices_[id].learned;
    changed = changed || learned.latest != learned.estimated;
    learned.estimated = learned.latest;
  }
  if (changed) ++version_;
}

void RateEstimates::apply(std::vector<plan::DeviceState>& devices) const {
  if (learned_.empty()) return;
  for (plan::DeviceState& device : devices) {
    const Device* const known = devices_.find(device.profile.id);
    if (known == nullptr || known->learned == nullptr) continue;
    const Rates& rates = known->learned->estimated;
    const BytesPerSecond downlink(rates[down]), uplink(rates[up]);
    const FlopsPerSecond processor(rates[compute]);
    device.down_busy = at_rate(device.down_busy, device.profile.downlink, downlink);
    device.compute_busy = at_rate(device.compute_busy, device.profile.compute, processor);
    device.up_busy = at_rate(device.up_busy, device.profile.uplink, uplink);
    device.profile.downlink = downlink;
    device.profile.compute = processor;
    device.profile.uplink = uplink;
  }
}

}  // namespace cleave::sched
