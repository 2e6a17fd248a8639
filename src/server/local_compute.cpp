// Blocks that the server computes itself, with the bits that a device would return.
#include <fmt/format.h>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "executor.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

kernels::ProductStatus Executor::multiply(const sched::Tasklet& tasklet, std::span<std::byte> block) {
  const model::Operation& op = graph_->operation(tasklet.op);
  const InProgress& state = open(op);
  const GemmBox& box = tasklet.piece.box;
  const comm::Header header = header_of(tasklet);
  const GemmShape shape{box.m(), box.n(), box.k()};
  const RoundedBlock a(operand_a(op, box), box.m(), box.k(), options_.wire);
  const RoundedBlock b(operand_b(op, box), box.k(), box.n(), options_.wire);
  const auto rows = part_of(state.row_exponents, box.m0, box.m()),
             columns = part_of(state.column_exponents, box.n0, box.n());
  if (!header.gemm.whole_depth()) {
    return kernels::multiply_box(parallel_, shape, a.view, b.view, rows, columns,
                                 {header.output, block.data(), box.n()});
  }
  KeptVector<float> c(static_cast<std::size_t>(box.m() * box.n()));
  const auto status = kernels::multiply_whole(parallel_, shape, a.view, b.view, rows, columns,
                                              partial_sum_type(options_.wire), {c.data(), box.n()});
  server::gather({c.data(), box.n()}, box.m(), box.n(), options_.wire, block.data());
  return status;
}

void Executor::compute(const sched::Tasklet& tasklet) {
  const Profile::Scope scope(profile_, Phase::kernel, tasklet.op);
  const model::Operation& op = graph_->operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  if (op.kind == model::OpKind::gemm) {
    const comm::Header header = header_of(tasklet);
    KeptVector<std::byte> block(static_cast<std::size_t>(piece.box.m() * piece.box.n() * size_of(header.output)));
    if (multiply(tasklet, block) != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", op.name));
    if (header.gemm.whole_depth()) {
      place_finished(op, piece.box, block, header.output);
    } else {
      place_partial(op, piece.box, block, header.output);
    }
    return;
  }
  (void)open(op);
  AttentionPair computer(op, *store_, options_.wire);
  for (std::int64_t pair = piece.pairs.pair0; pair < piece.pairs.pair1; ++pair) {
    computer.compute(pair);
    computer.place(pair);
  }
}

}  // namespace cleave::server
