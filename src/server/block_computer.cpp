// Products and attention pairs by the kernels that devices use.
#include "block_computer.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

kernels::ProductStatus BlockComputer::multiply(const sched::Tasklet& tasklet, std::span<std::byte> block) {
  const model::Operation& op = work_.operation(tasklet.op);
  const InProgress& state = work_.open(op);
  const GemmBox& box = tasklet.piece.box;
  const comm::Header header = work_.header_of(tasklet);
  const GemmShape shape{box.m(), box.n(), box.k()};
  const RoundedBlock a(work_.operand_a(op, box), box.m(), box.k(), work_.wire());
  const RoundedBlock b(work_.operand_b(op, box), box.k(), box.n(), work_.wire());
  const kernels::SumRule rule{part_of(state.row_exponents, box.m0, box.m()),
                              part_of(state.column_exponents, box.n0, box.n()),
                              {header.gemm.seq, header.gemm.first_block * kBlockK}};
  if (!header.gemm.whole_depth()) {
    return kernels::multiply_run(work_.parallel(), shape, a.view, b.view, rule, {header.output, block.data(), box.n()},
                                 kernels::Accumulate::no);
  }
  KeptVector<float> c(static_cast<std::size_t>(box.m() * box.n()));
  const auto status = kernels::multiply_depth(work_.parallel(), shape, a.view, b.view, rule,
                                              partial_sum_type(work_.wire()), {c.data(), box.n()});
  gather({c.data(), box.n()}, box.m(), box.n(), work_.wire(), block.data());
  return status;
}

void BlockComputer::compute(const sched::Tasklet& tasklet, Scatter& scatter) {
  const Profile::Scope scope(work_.profile(), Phase::kernel, tasklet.op);
  const model::Operation& op = work_.operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  if (op.kind == model::OpKind::gemm) {
    const DType type = work_.header_of(tasklet).output;
    KeptVector<std::byte> block(static_cast<std::size_t>(piece.box.m() * piece.box.n() * size_of(type)));
    if (multiply(tasklet, block) != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", op.name));
    scatter.add(tasklet, block, type);
    return;
  }
  (void)work_.open(op);
  AttentionPair computer(op, work_.tensors(), work_.wire());
  for (std::int64_t pair = piece.pairs.pair0; pair < piece.pairs.pair1; ++pair) {
    computer.compute(pair);
    computer.place(pair);
  }
}

std::optional<SipTag> BlockComputer::digest(const sched::Tasklet& tasklet, const SipKey& key) {
  const model::Operation& op = work_.operation(tasklet.op);
  (void)work_.open(op);
  std::array<KeptVector<std::byte>, 3> blocks;
  if (op.kind == model::OpKind::gemm) {
    const GemmBox& box = tasklet.piece.box;
    blocks[0].resize(static_cast<std::size_t>(box.m() * box.n() * size_of(work_.header_of(tasklet).output)));
    if (multiply(tasklet, blocks[0]) != kernels::ProductStatus::ok) return std::nullopt;
  } else {
    const PairRange& pairs = tasklet.piece.pairs;
    AttentionPair computer(op, work_.tensors(), work_.wire());
    for (std::size_t i = 0; i < computer.results(); ++i)
      blocks[i].resize(static_cast<std::size_t>(pairs.count() * computer.result_bytes(i)));
    for (std::int64_t pair = pairs.pair0; pair < pairs.pair1; ++pair) {
      computer.compute(pair);
      for (std::size_t i = 0; i < computer.results(); ++i)
        computer.write(i, blocks[i].data() + (pair - pairs.pair0) * computer.result_bytes(i));
    }
  }
  std::array<std::span<const std::byte>, 3> outputs;
  for (std::size_t i = 0; i < blocks.size(); ++i) outputs[i] = blocks[i];
  return comm::digest_of(key, outputs);
}

bool BlockComputer::equals(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const model::Operation& op = work_.operation(tasklet.op);
  if (op.kind == model::OpKind::gemm) {
    KeptVector<std::byte> own(result.outputs[0].size());
    return multiply(tasklet, own) == kernels::ProductStatus::ok &&
           std::memcmp(own.data(), result.outputs[0].data(), own.size()) == 0;
  }
  const PairRange& pairs = tasklet.piece.pairs;
  AttentionPair computer(op, work_.tensors(), work_.wire());
  for (std::int64_t pair = pairs.pair0; pair < pairs.pair1; ++pair) {
    computer.compute(pair);
    for (std::size_t i = 0; i < computer.results(); ++i) {
      if (!computer.equals(i, result.outputs[i].data() + (pair - pairs.pair0) * computer.result_bytes(i))) return false;
    }
  }
  return true;
}

}  // namespace cleave::server
