// StagesInTiles: a round whose stage runs in tiles (plan::Stage::tiles). The scheduler of tiles runs the stage's
// operations for all sequences at once, forward in one phase and backward in a later one. Other stages see only the
// boundaries, which are at the server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "cleave/sched/scheduler.hpp"
#include "stages/run_state.hpp"

namespace cleave::sched::stages {

struct StageRun;

class StagesInTiles {
 public:
  explicit StagesInTiles(StageRun& run) : run_(run) {}

  /// A step begins: nothing runs in tiles yet.
  void clear() { stage_ = kNobody; }
  /// Begins the stage of the open round.
  void begin();
  [[nodiscard]] bool under_way() const { return stage_ != kNobody; }
  [[nodiscard]] bool has(OpId op) const { return part_.contains(op); }
  [[nodiscard]] Seconds deadline() const { return scheduler_->part_deadline(); }
  /// Sends what is ready; ends the stage when all its operations are done.
  void advance();
  /// Handles an event of a stage in tiles. True: it concerns nothing else.
  bool take(const Event& event);
  /// Returns how many kernels of the server are under way.
  std::int64_t give_up();

 private:
  [[nodiscard]] OperationSet operations(std::int32_t s, bool back) const;
  void with_scheduler(const std::function<void(Scheduler&)>& act);
  void done();

  StageRun& run_;
  std::optional<Scheduler> scheduler_;
  std::int32_t stage_ = kNobody;  // the stage under way
  OperationSet part_;             // its operations of this phase
};

}  // namespace cleave::sched::stages
