// ReadySet: operations for devices that are ready at the same time, and the plan of each.
//
// An operation of a partition is planned for its partition; one that nothing urgent waits for gets few devices, if
// those end in time; all others share the fleet.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "background_scheduler.hpp"
#include "plan_cache.hpp"
#include "residency/device_partitions.hpp"

namespace cleave::sched {

class ReadySet {
 public:
  struct Entry {
    OpId op;
    plan::Work work;
    bool may_wait = false;                      ///< nothing urgent waits for it
    const plan::OperationPlan* plan = nullptr;  ///< valid until the next clear() or renewal of plans
    bool deferrable = false;                    ///< planned to end with the critical path
  };

  void clear() { entries_.clear(); }
  void add(OpId op, const plan::Work& work, bool may_wait) { entries_.push_back({op, work, may_wait}); }
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }

  /// Plans them all. Errors: as plan::plan_operation.
  void choose(const DevicePartitions& partitions, PlanCache& plans, BackgroundScheduler& background, Seconds now) {
    sharing_.clear();
    deferrable_.clear();
    for (Entry& entry : entries_) {
      if (const auto partition = partitions.in_use_by(entry.op)) {
        entry.plan = &partitions.plan_of(*partition, entry.work);
        continue;
      }
      auto plan = entry.may_wait ? background.plan(entry.work, now) : std::nullopt;
      entry.deferrable = plan.has_value();
      if (plan) {
        entry.plan = &deferrable_.emplace_back(std::move(*plan));
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
  std::deque<plan::OperationPlan> deferrable_;
};

}  // namespace cleave::sched
