// OperationDeadlines: when the last blocks of each operation are late, the soonest first.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/base/units.hpp"

namespace cleave::sched {

class OperationDeadlines {
 public:
  /// A new step of so many operations: none has a deadline.
  void begin(std::size_t operations) {
    soonest_.clear();
    due_.assign(operations, Seconds(0));
  }
  [[nodiscard]] bool empty() const { return soonest_.empty(); }
  /// Requires: not empty.
  [[nodiscard]] Seconds next() const { return soonest_.begin()->first; }
  [[nodiscard]] OpId operation() const { return soonest_.begin()->second; }

  /// In place of the operation's deadline, if it has one.
  void set(OpId op, Seconds due) {
    erase(op);
    of(op) = due;
    soonest_.emplace(due, op);
  }
  void erase(OpId op) { soonest_.erase({of(op), op}); }

 private:
  [[nodiscard]] Seconds& of(OpId op) { return due_[static_cast<std::size_t>(op.value)]; }

  NodePool nodes_;
  std::pmr::set<std::pair<Seconds, OpId>> soonest_{&nodes_};
  std::vector<Seconds> due_;
};

}  // namespace cleave::sched
