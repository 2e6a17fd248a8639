// A queue of steps, some of them with copies.
#include "step_history.hpp"

#include <algorithm>
#include <iterator>

#include "cleave/base/error.hpp"

namespace cleave::server {

// The copy that is needed is the last one that is far enough back; whatever is before it goes first.
void StepHistory::begin(std::int64_t step) {
  if (kept_.empty()) unknown_before_ = unknown_before_ || step > 0;
  const auto needed = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) {
    return !kept.before.empty() && kept.step <= step - steps_;
  });
  if (needed != kept_.rend()) {
    while (kept_.front().step < needed->step) {
      earlier_.insert(kept_.front().unverified.begin(), kept_.front().unverified.end());
      kept_.pop_front();
    }
  }
  const bool copied = kept_.empty() || step - last_copy_ >= spacing(steps_);
  kept_.push_back({.step = step, .before = {}, .unverified = {}});
  if (!copied) return;
  last_copy_ = step;
  for (Parameter& parameter : parameters_.parameters()) {
    if (parameter.exp_avg.empty()) continue;  // frozen: it never changes
    kept_.back().before.push_back({.parameter = &parameter,
                                   .value = {parameter.value.begin(), parameter.value.end()},
                                   .exp_avg = parameter.exp_avg,
                                   .exp_avg_sq = parameter.exp_avg_sq});
  }
}

void StepHistory::done(const std::vector<DeviceId>& unverified) {
  kept_.back().unverified = {unverified.begin(), unverified.end()};
}

std::optional<std::int64_t> StepHistory::first_part_of(const std::set<DeviceId>& devices) const {
  for (const Kept& kept : kept_) {
    if (&kept == &kept_.back()) break;
    if (std::ranges::any_of(devices, [&](DeviceId device) { return kept.unverified.contains(device); }))
      return kept.step;
  }
  return std::nullopt;
}

bool StepHistory::too_late_for(const std::set<DeviceId>& devices) const {
  if (devices.empty()) return false;
  return unknown_before_ || std::ranges::any_of(devices, [&](DeviceId device) { return earlier_.contains(device); });
}

std::int64_t StepHistory::go_back_to(std::int64_t step) {
  const auto at = std::find_if(kept_.rbegin(), kept_.rend(),
                               [&](const Kept& kept) { return !kept.before.empty() && kept.step <= step; });
  CLEAVE_ASSERT(at != kept_.rend(), "nothing is kept of step {}", step);
  for (const Values& before : at->before) {
    std::ranges::copy(before.value, before.parameter->value.begin());
    std::ranges::copy(before.exp_avg, before.parameter->exp_avg.begin());
    std::ranges::copy(before.exp_avg_sq, before.parameter->exp_avg_sq.begin());
  }
  const std::int64_t back = at->step;
  kept_.erase(std::prev(at.base()), kept_.end());
  for (const Kept& kept : kept_) {
    if (!kept.before.empty()) last_copy_ = kept.step;
  }
  return back;
}

}  // namespace cleave::server
