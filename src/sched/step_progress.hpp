// StepProgress: how far every operation of a step is, and which of them are ready, most urgent first.
//
// An operation is ready when everything that it waits for is complete. Nothing here decides; the scheduler does.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/operation_set.hpp"

namespace cleave::sched {

struct OperationProgress {
  std::int64_t waiting_for = 0;  ///< operations that must be complete first
  std::int64_t blocks = 0;       ///< in flight
  std::int64_t sent = 0;         ///< blocks sent at first
  std::int64_t turn = 0;         ///< in the order in which operations were begun
  int urgency = 0;
  bool deferrable = false;  ///< planned to end with the critical path
  Seconds start, planned, lower_bound;
  Seconds expected;     ///< longest time that any of its answers should take
  Seconds undisturbed;  ///< end, had nothing been lost
  bool hit = false;     ///< by a loss
  std::vector<OpId> releases;
  [[nodiscard]] Priority priority() const { return {urgency, turn}; }
};

class StepProgress {
 public:
  /// A new step, or those operations of one that are in `part`; `urgency` of all as of urgencies().
  void begin(const model::StepGraph& graph, std::span<const int> urgency, const OperationSet& part) {
    ready_.clear();
    begun_ = 0;
    operations_.resize(graph.operations.size());
    for (OperationProgress& op : operations_) {
      std::vector<OpId> releases = std::move(op.releases);  // whose memory is kept
      releases.clear();
      op = OperationProgress{};
      op.releases = std::move(releases);
    }
    for (const model::Operation& op : graph.operations) {
      if (!part.contains(op.id)) continue;
      at(op.id).urgency = urgency[static_cast<std::size_t>(op.id.value)];
      for (const OpId before : op.after) {
        if (!part.contains(before)) continue;  // complete
        ++at(op.id).waiting_for;
        at(before).releases.push_back(op.id);
      }
    }
    for (const model::Operation& op : graph.operations) {
      if (part.contains(op.id) && at(op.id).waiting_for == 0) make_ready(op.id);
    }
  }

  [[nodiscard]] OperationProgress& at(OpId op) { return operations_[static_cast<std::size_t>(op.value)]; }
  [[nodiscard]] bool any_ready() const { return !ready_.empty(); }
  /// Operations that were begun.
  [[nodiscard]] std::size_t begun() const { return begun_; }

  /// False: it was ready already.
  bool make_ready(OpId op) { return ready_.emplace(at(op).urgency, op.value).second; }
  /// Begins the most urgent one that is ready, the `turn`th that was begun. Requires: any_ready().
  OpId begin_next(Seconds now, std::int64_t turn) {
    ++begun_;
    const OpId id(ready_.begin()->second);
    ready_.erase(ready_.begin());
    at(id).start = now;
    at(id).turn = turn;
    return id;
  }
  /// What waited only for it is ready.
  void complete(OpId op) {
    for (const OpId next : at(op).releases) {
      if (--at(next).waiting_for == 0) make_ready(next);
    }
  }

 private:
  NodePool nodes_;
  std::vector<OperationProgress> operations_;
  std::pmr::set<std::pair<int, std::int64_t>> ready_{&nodes_};  // (urgency, operation)
  std::size_t begun_ = 0;
};

}  // namespace cleave::sched
