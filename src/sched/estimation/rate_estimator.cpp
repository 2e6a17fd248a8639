// The median of the last observations: half of them must be wrong before the estimate is.
#include "estimation/rate_estimator.hpp"

#include <algorithm>
#include <cmath>

namespace cleave::sched {

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

}  // namespace cleave::sched
