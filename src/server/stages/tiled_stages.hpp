// TiledStages: for the stages of a plan that run in tiles, their operations in the graph, and the tensors at their
// ends.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cleave/pieces/stage_parts.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/operation_set.hpp"

namespace cleave::server {

class TiledStages {
 public:
  /// The tensors that a stage reads and makes in one direction: forward X and Y, backward dY and dX. `made` is invalid
  /// where nothing reads it.
  struct Boundaries {
    TensorId read, made;
  };

  TiledStages() = default;
  TiledStages(pieces::PieceTable& table, const plan::StagePlan& plan);

  [[nodiscard]] bool contains(std::int32_t stage) const { return boundaries_.contains({stage, false}); }
  /// Requires: contains(stage).
  [[nodiscard]] const Boundaries& of(std::int32_t stage, bool back) const { return boundaries_.at({stage, back}); }
  [[nodiscard]] bool runs(OpId op) const { return operations_.contains(op); }
  [[nodiscard]] const std::vector<OpId>& operations() const { return order_; }
  /// All boundaries that the stages make.
  [[nodiscard]] std::vector<TensorId> made() const;

 private:
  std::map<std::pair<std::int32_t, bool>, Boundaries> boundaries_;  // by stage and whether backward
  sched::OperationSet operations_;
  std::vector<OpId> order_;
};

}  // namespace cleave::server
