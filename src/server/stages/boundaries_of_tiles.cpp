// StageNumbers: where stages meet those that run in tiles. Those read and write tensors of the graph, the others
// boundaries as they travel; both hold the same values, since the residual stream is rounded to the wire type.
#include <vector>

#include "cleave/kernels/wire.hpp"
#include "cleave/model/pieces.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

void StageNumbers::find_tiles(const plan::StagePlan& plan) {
  in_tiles_.assign(work_.graph().operations.size(), false);
  if (!plan.has_tiles()) return;
  const std::vector<std::int64_t> places = model::pieces_of_operations(work_.graph());
  std::vector<OpId> operations;
  std::vector<TensorId> boundaries;
  for (std::int32_t s = 0; s < std::ssize(stages_); ++s) {
    Stage& stage = at(s);
    stage.tiles = plan.stages[static_cast<std::size_t>(s)].tiles;
    if (!stage.tiles) continue;
    for (const model::Operation& op : work_.graph().operations) {
      const std::int64_t place = places[static_cast<std::size_t>(op.id.value)];
      if (place < stage.first || place >= stage.end) continue;
      in_tiles_[static_cast<std::size_t>(op.id.value)] = true;
      operations.push_back(op.id);
    }
    for (const bool back : {false, true}) {
      const TensorId made = made_in_tiles(s, back);
      if (made.valid()) boundaries.push_back(made);
    }
  }
  work_.tensors().run_only(operations, boundaries);
}

TensorId StageNumbers::read_in_tiles(std::int32_t stage, bool back) {
  return back ? table_->program(at(stage).end - 1).dy() : table_->program(at(stage).first).x();
}

TensorId StageNumbers::made_in_tiles(std::int32_t stage, bool back) {
  return back ? table_->program(at(stage).first).dx() : table_->program(at(stage).end - 1).y();
}

void StageNumbers::begin_tiles(std::int32_t stage, bool back) {
  if (!back && stage == 0) return;  // what the embeddings made is read where it is
  const KeptVector<std::byte>& boundary = back ? at(stage).dy : x_of(stage);
  kernels::from_wire(wire_, boundary.data(), whole(read_in_tiles(stage, back)));
}

void StageNumbers::end_tiles(std::int32_t stage, bool back) {
  const TensorId made = made_in_tiles(stage, back);
  if (!made.valid() || (back && stage == 0)) return;  // nobody wants it, or the embeddings read it where it is
  KeptVector<std::byte>& boundary = back ? at(stage - 1).dy : x_of(stage + 1);
  kernels::to_wire(wire_, whole(made), boundary.data());
  work_.tensors().drop(made);
}

}  // namespace cleave::server
