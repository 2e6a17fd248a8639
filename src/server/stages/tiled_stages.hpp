// What stages of a plan that run in tiles have of a graph: their operations, and the boundaries at their ends.
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
  /// What a stage reads on one of its ways, and what it makes. Invalid: nobody wants it.
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
  /// Boundaries that the stages make.
  [[nodiscard]] std::vector<TensorId> made() const;

 private:
  std::map<std::pair<std::int32_t, bool>, Boundaries> boundaries_;  // forward and back
  sched::OperationSet operations_;
  std::vector<OpId> order_;
};

}  // namespace cleave::server
