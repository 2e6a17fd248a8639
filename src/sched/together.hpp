// Together: operations for devices that are ready at the same time, and the plan of each.
//
// An operation of a lane is planned for its lane; one that nothing urgent waits for gets few devices, if those end in
// time; all others share the fleet.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "lanes.hpp"
#include "patience.hpp"
#include "plan_cache.hpp"

namespace cleave::sched {

class Together {
 public:
  struct Entry {
    OpId op;
    plan::Work work;
    bool may_wait = false;                      ///< nothing urgent waits for it
    const plan::OperationPlan* plan = nullptr;  ///< valid until the next clear() or renewal of plans
    bool patient = false;                       ///< planned to end with the chain
  };

  void clear() { entries_.clear(); }
  void add(OpId op, const plan::Work& work, bool may_wait) { entries_.push_back({op, work, may_wait}); }
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }

  /// Plans them all. Errors: as plan::plan_operation.
  void choose(const Lanes& lanes, PlanCache& plans, Patience& patience, Seconds now) {
    sharing_.clear();
    patient_.clear();
    for (Entry& entry : entries_) {
      if (const auto lane = lanes.in_use_by(entry.op)) {
        entry.plan = &lanes.plan_of(*lane, entry.work);
        continue;
      }
      auto plan = entry.may_wait ? patience.plan(entry.work, now) : std::nullopt;
      entry.patient = plan.has_value();
      if (plan) {
        entry.plan = &patient_.emplace_back(std::move(*plan));
      } else {
        sharing_.push_back(entry.work);
      }
    }
    const std::span<const plan::OperationPlan* const> shared = plans.plans_for(sharing_);
    auto next = shared.begin();
    for (Entry& entry : entries_) {
      if (entry.plan == nullptr) entry.plan = *next++;
    }
  }

 private:
  std::vector<Entry> entries_;
  std::vector<plan::Work> sharing_;
  std::deque<plan::OperationPlan> patient_;
};

}  // namespace cleave::sched
