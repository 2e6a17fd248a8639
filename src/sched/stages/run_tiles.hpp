// StagesInTiles: a round whose stage runs in tiles (plan::Stage::tiles). The scheduler of tiles runs its operations,
// all sequences at once, forward and back in rounds of their own. What passes between it and other stages are the
// boundaries at the server.
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
  /// The stage of the open round.
  void begin();
  [[nodiscard]] bool under_way() const { return stage_ != kNobody; }
  [[nodiscard]] bool has(OpId op) const { return part_.contains(op); }
  [[nodiscard]] Seconds deadline() const { return scheduler_->part_deadline(); }
  /// What is ready is sent; the end of it all is noticed.
  void advance();
  /// Whether an event is for what runs in tiles alone.
  bool take(const Event& event);
  /// Returns how many kernels of the server are under way.
  std::int64_t give_up();

 private:
  [[nodiscard]] OperationSet operations(std::int32_t s, bool back) const;
  void with_scheduler(const std::function<void(Scheduler&)>& act);
  void done();

  StageRun& run_;
  std::optional<Scheduler> scheduler_;
  std::int32_t stage_ = kNobody;  // that is under way
  OperationSet part_;             // its operations, one way
};

}  // namespace cleave::sched::stages
