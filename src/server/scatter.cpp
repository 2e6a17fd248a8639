// Blocks in.
#include "scatter.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/wire.hpp"
#include "head_rows.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

using model::Operation;
using model::OpKind;

bool Scatter::adds(const sched::Tasklet& tasklet) const {
  const Operation& op = work_.operation(tasklet.op);
  return op.kind == OpKind::gemm && (op.accumulate || !work_.header_of(tasklet).gemm.whole_depth());
}

// Looks at each band of the result as it is put in its place.
bool Scatter::write(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Operation& op = work_.operation(tasklet.op);
  const DType type = result.header.output;
  std::atomic<bool> good{true};
  if (op.kind == OpKind::gemm) {
    const GemmBox& box = tasklet.piece.box;
    const kernels::Rows c = work_.tensors().rows(op.out[0]);
    const float scale = scale_of(op);
    work_.parallel().for_chunks(box.m(), rows_of_band(box.n()), [&](std::int64_t begin, std::int64_t end) {
      const std::byte* band = result.outputs[0].data() + begin * box.n() * size_of(type);
      const kernels::Rows to(c.row(box.m0 + begin) + box.n0, end - begin, box.n(), c.ld);
      if (!scatter_representable(band, type, to)) good = false;
      if (scale != 1) scale_rows(to, scale);
    });
    return good;
  }
  const std::int64_t head = op.attention.seq * op.attention.head_dim;
  const PairTensors results = pair_results(op);
  for (std::size_t i = 0; i < results.size(); ++i) {
    for_head_rows(work_.parallel(), op.attention, tasklet.piece.pairs, work_.tensors().rows(results[i].view),
                  results[i].queries, [&](const HeadRows& run) {
                    if (!scatter_representable_heads(result.outputs[i].data() + run.element * size_of(type), head,
                                                     run.heads, type, run.rows))
                      good = false;
                  });
  }
  return good;
}

void Scatter::add(const sched::Tasklet& tasklet, std::span<const std::byte> block, DType type) {
  const Operation& op = work_.operation(tasklet.op);
  const GemmBox& box = tasklet.piece.box;
  if (!work_.header_of(tasklet).gemm.whole_depth()) return add_to_sums(op, box, block, type);
  const kernels::Rows c = work_.tensors().rows(op.out[0]);
  scatter(work_.parallel(), block.data(), type, op.accumulate, {c.row(box.m0) + box.n0, box.m(), box.n(), c.ld},
          scale_of(op));
}

float Scatter::scale_of(const Operation& op) const {
  const InProgress* const state = work_.in_progress(op.id);
  return state != nullptr && state->in_units ? work_.unit().scale_of_sent() : 1.0F;
}

void Scatter::add_to_sums(const Operation& op, const GemmBox& box, std::span<const std::byte> block, DType type) {
  InProgress& state = work_.open(op);
  if (box.k0 == 0) state.finish.push_back(box);
  if (state.in_units && work_.wire() != DType::f32) {
    if (state.unit_sums.empty()) state.unit_sums = kernels::TokenSumMatrix(op.gemm.m, op.gemm.n, work_.unit());
    return state.unit_sums.add(work_.parallel(), {box.m0, box.m(), box.n0, box.n()}, {type, block.data(), box.n()});
  }
  const std::int64_t size = size_of(type);
  if (state.sums.empty()) {
    const auto bytes = static_cast<std::size_t>(op.gemm.m * op.gemm.n * size);
    state.sums = work_.pool().take(bytes);
    std::memset(state.sums.data(), 0, bytes);
  }
  std::byte* first = state.sums.data() + (box.m0 * op.gemm.n + box.n0) * size;
  kernels::add_partial_sums(work_.parallel(), box.m(), box.n(), {type, block.data(), box.n()},
                            {type, first, op.gemm.n});
}

// A result that is not added to anything is finished where it stays.
void Scatter::finish(const Operation& op) {
  const InProgress* const found = work_.in_progress(op.id);
  if (found == nullptr || found->finish.empty()) return;
  const InProgress& state = *found;
  const DType type = partial_sum_type(work_.wire());
  const kernels::Rows c = work_.tensors().rows(op.out[0]);
  for (const GemmBox& box : state.finish) {
    const kernels::Rows place(c.row(box.m0) + box.n0, box.m(), box.n(), c.ld);
    Block memory;
    if (op.accumulate) memory = work_.pool().take(static_cast<std::size_t>(box.m() * box.n()) * sizeof(float));
    const kernels::Rows block =
        op.accumulate ? kernels::Rows(reinterpret_cast<float*>(memory.data()), box.m(), box.n()) : place;
    kernels::ProductStatus status = kernels::ProductStatus::ok;
    if (!state.unit_sums.empty()) {
      status = state.unit_sums.finish(work_.parallel(), {box.m0, box.m(), box.n0, box.n()}, {block.data, block.ld});
      kernels::round_gradient(work_.parallel(), work_.unit(), block);
    } else {
      const std::byte* first = state.sums.data() + (box.m0 * op.gemm.n + box.n0) * size_of(type);
      status = kernels::finish_partial_sums(work_.parallel(), box.m(), box.n(), {type, first, op.gemm.n},
                                            part_of(state.row_exponents, box.m0, box.m()),
                                            part_of(state.column_exponents, box.n0, box.n()), {block.data, block.ld});
      kernels::round_to(work_.wire(), block);
    }
    if (status != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("the result of {} is not finite", op.name));
    if (op.accumulate) {
      scatter(work_.parallel(), memory.data(), DType::f32, true, place);
      work_.pool().give(std::move(memory));
    }
  }
}

}  // namespace cleave::server
