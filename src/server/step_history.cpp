// A queue of steps, some of them with copies.
#include "step_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cleave/base/error.hpp"

namespace cleave::server {

namespace {

bool have_common(const std::set<DeviceId>& some, const std::set<DeviceId>& others) {
  return std::ranges::any_of(others, [&](DeviceId device) { return some.contains(device); });
}

}  // namespace

// The copy that is needed is the last one that is far enough back; whatever is before it goes first.
void StepHistory::begin(std::int64_t step) {
  if (!before_) before_ = PartRecord{.steps = {}, .earlier = {}, .unknown_before = step > 0};
  const auto drop = [&](const std::set<DeviceId>& devices) { before_->earlier.insert(devices.begin(), devices.end()); };
  const auto needed = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) {
    return !kept.before.empty() && kept.step <= step - steps_;
  });
  if (needed != kept_.rend()) {
    while (kept_.front().step < needed->step) {
      drop(kept_.front().unverified);
      kept_.pop_front();
    }
  }
  while (!before_->steps.empty() && before_->steps.begin()->first < step - steps_) {
    drop(before_->steps.begin()->second);
    before_->steps.erase(before_->steps.begin());
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

PartRecord StepHistory::record(std::int64_t next) const {
  PartRecord record = before_.value_or(PartRecord{.steps = {}, .earlier = {}, .unknown_before = next > 0});
  for (const Kept& kept : kept_) {
    if (kept.step < next) record.steps[kept.step] = kept.unverified;
  }
  return record;
}

std::optional<std::int64_t> StepHistory::first_part_of(const std::set<DeviceId>& devices) const {
  if (before_) {
    for (const auto& [step, unverified] : before_->steps) {
      if (have_common(unverified, devices)) return step;
    }
  }
  return first_copied_part_of(devices);
}

std::optional<std::int64_t> StepHistory::first_copied_part_of(const std::set<DeviceId>& devices) const {
  for (const Kept& kept : kept_) {
    if (have_common(kept.unverified, devices)) return kept.step;
  }
  return std::nullopt;
}

bool StepHistory::too_late_for(const std::set<DeviceId>& devices) const {
  return !devices.empty() && before_ && (before_->unknown_before || have_common(before_->earlier, devices));
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

void StepHistory::go_on_from(std::int64_t step) {
  CLEAVE_ASSERT(!kept_.empty() && step < reach(), "step {} is kept", step);
  kept_.clear();
  before_->steps.erase(before_->steps.lower_bound(step), before_->steps.end());
}

}  // namespace cleave::server
