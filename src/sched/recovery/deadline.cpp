// Quantiles of the latest ratios, taken again now and then.
#include "recovery/deadline.hpp"

#include <algorithm>
#include <cmath>

namespace cleave::sched {

void Deadline::observe(Seconds predicted, Seconds actual) {
  const double ratio = actual / predicted;
  if (!(predicted.value() > 0) || !(actual.value() > 0) || !std::isfinite(ratio)) return;
  ratios_[count_++ % kWindow] = ratio;
  if (count_ % kEnough == 0) update();
}

void Deadline::update() {
  const std::size_t held = std::min(count_, kWindow);
  std::array<double, kWindow> sorted = ratios_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(held);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(held / 2);
  const auto third_quarter = sorted.begin() + static_cast<std::ptrdiff_t>(held * 3 / 4);
  std::nth_element(sorted.begin(), middle, end);
  const double median = *middle;
  std::nth_element(middle, third_quarter, end);
  const double upper = *third_quarter;
  stretch_ = std::max(kLeast, median + kSpreads * (upper - median));
}

}  // namespace cleave::sched
