// The median of the last observations: half of them must be wrong before the estimate is.
#include "cleave/plan/rates.hpp"

#include <algorithm>
#include <cmath>

namespace cleave::plan {

bool RateEstimator::is_observation(double amount, Seconds time) {
  const double rate = amount / time.value();
  return amount > 0 && time.value() > 0 && std::isfinite(rate) && rate > 0;
}

bool RateEstimator::agrees(double rate, double declared) { return std::abs(rate - declared) <= kTolerance * declared; }

void RateEstimator::observe(double amount, Seconds time) {
  if (is_observation(amount, time)) recent_[count_++ % kWindow] = amount / time.value();
}

double RateEstimator::rate(double declared) const {
  if (count_ < kEnough) return declared;
  const std::size_t held = std::min(count_, kWindow);
  const auto as_declared = [declared](double rate) { return agrees(rate, declared); };
  // Where every observation agrees, so does their median.
  if (std::all_of(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(held), as_declared)) return declared;
  std::array<double, kWindow> sorted = recent_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(held / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(held));
  return as_declared(*middle) ? declared : *middle;
}

void LearnedRates::observe(DeviceId device, Resource resource, double amount, Seconds time) {
  estimators_[device][static_cast<std::size_t>(resource)].observe(amount, time);
}

fleet::DeviceProfile LearnedRates::learned(const fleet::DeviceProfile& declared) const {
  fleet::DeviceProfile profile = declared;
  const auto found = estimators_.find(declared.id);
  if (found == estimators_.end()) return profile;
  const auto& [down, compute, up] = found->second;
  profile.downlink = BytesPerSecond(down.rate(declared.downlink.value()));
  profile.compute = FlopsPerSecond(compute.rate(declared.compute.value()));
  profile.uplink = BytesPerSecond(up.rate(declared.uplink.value()));
  return profile;
}

void LearnedRates::forget(DeviceId device) { estimators_.erase(device); }

}  // namespace cleave::plan
