// Operations follow from the pieces of a stage, boundaries from the programs of its first and last piece.
#include "stages/tiled_stages.hpp"

#include "cleave/model/pieces.hpp"

namespace cleave::server {

TiledStages::TiledStages(pieces::PieceTable& table, const plan::StagePlan& plan) : operations_(table.graph(), false) {
  if (!plan.has_tiles()) return;
  const std::vector<std::int64_t> places = model::pieces_of_operations(table.graph());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Stage& stage = plan.stages[s];
    if (!stage.tiles) continue;
    for (const model::Operation& op : table.graph().operations) {
      const std::int64_t place = places[static_cast<std::size_t>(op.id.value)];
      if (place < stage.first || place >= stage.end) continue;
      operations_.add(op.id);
      order_.push_back(op.id);
    }
    const pieces::Program &lowest = table.program(stage.first), &highest = table.program(stage.end - 1);
    const auto number = static_cast<std::int32_t>(s);
    boundaries_[{number, false}] = {lowest.x(), highest.y()};
    boundaries_[{number, true}] = {highest.dy(), lowest.dx()};
  }
}

std::vector<TensorId> TiledStages::made() const {
  std::vector<TensorId> all;
  for (const auto& [stage, of] : boundaries_) {
    if (of.made.valid()) all.push_back(of.made);
  }
  return all;
}

}  // namespace cleave::server
