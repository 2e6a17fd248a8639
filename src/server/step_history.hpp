// StepHistory: the state before some of the last steps, so that training can go back to before a liar had a part in it.
//
// A step is begun with its number, and done with who delivered blocks in it that nobody looked at. Copies are whole and
// in memory, so that going back is at once and cannot fail for want of room on a disk in the middle of a run. They are
// made of every step only where few steps are kept: else of each kSpans-th part of the steps that are to be reached,
// and whoever goes back takes some more steps back than it must. Those are run again to the same bits.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/server/parameter_store.hpp"

namespace cleave::server {

class StepHistory {
 public:
  /// Reaches `steps` steps back from the one under way. `parameters` must outlive it. Requires: steps >= 1.
  StepHistory(ParameterStore& parameters, std::int64_t steps) : parameters_(parameters), steps_(steps) {}

  /// Copies that are kept at once, at most, if it reaches `steps` steps back: ceil(steps / spacing) + 1.
  [[nodiscard]] static std::int64_t copies(std::int64_t steps) {
    return (steps + spacing(steps) - 1) / spacing(steps) + 1;
  }

  /// A step begins with the state as it is. Requires: moments are there for whatever is trained.
  void begin(std::int64_t step);
  /// The step begun last is done; these delivered blocks in it, unchecked.
  void done(const std::vector<DeviceId>& unverified);

  /// The earliest step kept, before the one begun last, in which one of these had a part, unchecked; empty: none.
  [[nodiscard]] std::optional<std::int64_t> first_part_of(const std::set<DeviceId>& devices) const;
  /// Whether one of them had a part in a step that is not kept any more; of steps before the first one begun, which
  /// another process may have run, anybody may.
  [[nodiscard]] bool too_late_for(const std::set<DeviceId>& devices) const;
  /// The earliest step that it reaches. Requires: one was begun.
  [[nodiscard]] std::int64_t reach() const { return kept_.front().step; }

  /// Puts the state before `step`, or before an earlier one, back, and forgets that step and those after it. Returns
  /// its number. Requires: reach() <= step, and step was begun.
  [[nodiscard]] std::int64_t go_back_to(std::int64_t step);

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
  std::set<DeviceId> earlier_;   // had a part in steps that are not kept any more
  bool unknown_before_ = false;  // steps were trained before the first one begun
};

}  // namespace cleave::server
