// StepHistory: the state before some of the last steps, so that training can go back to before a liar had a part in it.
//
// A step begins with its number. It ends with the devices whose blocks were not verified. Copies are whole and in
// memory, so going back is immediate and cannot fail for want of disk space in the middle of a run. Where few steps are
// kept there is a copy of every step; else there is one for each kSpans-th part of the steps to be reached, and going
// back may take back more steps than it must. Those are run again to the same bits.
//
// There are no copies of steps that an earlier process ran. Its checkpoint says which devices had a part in them. If
// one of these is found out, the state before this process began may be needed; it then comes from a checkpoint.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/server/parameter_store.hpp"
#include "part_record.hpp"

namespace cleave::server {

class StepHistory {
 public:
  /// Reaches `steps` steps back from the one under way. `parameters` must outlive it. Requires: steps >= 1.
  StepHistory(ParameterStore& parameters, std::int64_t steps) : parameters_(parameters), steps_(steps) {}

  /// Copies that are kept at once, at most, if it reaches `steps` steps back: ceil(steps / spacing) + 1.
  [[nodiscard]] static std::int64_t copies(std::int64_t steps) {
    return (steps + spacing(steps) - 1) / spacing(steps) + 1;
  }

  /// Takes what is known of steps before the first one. Requires: none was begun.
  void remember(PartRecord record) { before_ = std::move(record); }
  /// What is known of steps before `next`.
  [[nodiscard]] PartRecord record(std::int64_t next) const;

  /// A step begins with the state as it is. Requires: moments are there for whatever is trained.
  void begin(std::int64_t step);
  /// The step begun last is done; these delivered blocks in it, unchecked.
  void done(const std::vector<DeviceId>& unverified);

  /// The earliest step, of those that it reaches, in which one of these had a part, unchecked; empty: none. It may be
  /// one from before the first one begun, of which there is no copy.
  [[nodiscard]] std::optional<std::int64_t> first_part_of(const std::set<DeviceId>& devices) const;
  /// The same of steps from reach() on.
  [[nodiscard]] std::optional<std::int64_t> first_copied_part_of(const std::set<DeviceId>& devices) const;
  /// Whether one of them had a part in a step that is not kept any more; of steps of which nothing is known anybody may
  /// have had one.
  [[nodiscard]] bool too_late_for(const std::set<DeviceId>& devices) const;
  /// The earliest step whose state it can put back. Requires: one was begun.
  [[nodiscard]] std::int64_t reach() const { return kept_.front().step; }

  /// Puts the state before `step`, or before an earlier one, back, and forgets that step and those after it. Returns
  /// its number. Requires: reach() <= step, and step was begun.
  [[nodiscard]] std::int64_t go_back_to(std::int64_t step);
  /// The state before `step` is in place, from elsewhere: forgets that step and those after it. Requires: step <
  /// reach().
  void go_on_from(std::int64_t step);

 private:
  static constexpr std::int64_t kSpans = 4;
  [[nodiscard]] static std::int64_t spacing(std::int64_t steps) { return (steps + kSpans - 1) / kSpans; }

  struct Values {
    Parameter* parameter;
    std::vector<float> value, exp_avg, exp_avg_sq;
  };
  struct Kept {
    std::int64_t step = 0;
    std::vector<Values> before;  // empty: no copy
    std::set<DeviceId> unverified;
  };
  ParameterStore& parameters_;
  std::int64_t steps_;
  std::deque<Kept> kept_;  // the first one has a copy
  std::int64_t last_copy_ = 0;
  std::optional<PartRecord> before_;  // of steps before kept_; empty: nothing was begun, nor told
};

}  // namespace cleave::server
