// StageNumbers: boundaries between stages that run in tiles and other stages. Stages in tiles read and write tensors of
// the graph; other stages read and write boundaries as they travel. Both hold the same values, since the residual
// stream is rounded to that type.
#include "cleave/kernels/wire.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

void StageNumbers::begin_tiles(std::int32_t stage, bool back) {
  if (!back && stage == 0) return;  // the stage reads the tensor that the embeddings made
  const KeptVector<std::byte>& boundary = back ? at(stage).dy : x_of(stage);
  kernels::from_wire(boundary_type(), boundary.data(), whole(tiled_.of(stage, back).read));
}

void StageNumbers::end_tiles(std::int32_t stage, bool back) {
  const TensorId made = tiled_.of(stage, back).made;
  if (!made.valid() || (back && stage == 0)) return;  // nothing reads it, or the embeddings' gradients read the tensor
  KeptVector<std::byte>& boundary = back ? at(stage - 1).dy : x_of(stage + 1);
  kernels::to_wire(boundary_type(), whole(made), boundary.data());
  work_.tensors().drop(made);
}

}  // namespace cleave::server
