// Products and attention pairs by the kernels that devices use.
#include "block_computer.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

std::optional<BlockComputer::ProductBlock> BlockComputer::multiply(const sched::Tasklet& tasklet) {
  const model::Operation& op = work_.operation(tasklet.op);
  const InProgress& state = work_.open(op);
  const GemmBox& box = tasklet.piece.box;
  const comm::Header header = work_.header_of(tasklet);
  const GemmShape shape{box.m(), box.n(), box.k()};
  const RoundedBlock a(work_.operand_a(op, box), box.m(), box.k(), work_.wire());
  const RoundedBlock b(work_.operand_b(op, box), box.k(), box.n(), work_.wire());
  const kernels::SumRule rule{part_of(state.row_exponents, box.m0, box.m()),
                              part_of(state.column_exponents, box.n0, box.n()), tokens_of(header)};
  ProductBlock block{header.output, {}};
  const auto make_room = [&] {
    block.bytes.resize(static_cast<std::size_t>(box.m() * box.n() * size_of(block.type)));
    return block.bytes.data();
  };
  kernels::ProductStatus status = kernels::ProductStatus::ok;
  if (!header.gemm.whole_depth() && kernels::TokenSumMatrix::sums(rule)) {
    kernels::TokenSumMatrix sums(box.m(), box.n(), rule.tokens.unit);
    status = sums.add_product(work_.parallel(), box.k(), a.view, b.view, rule.tokens);
    block.type = sums.partial_type(sums.whole());
    sums.partial_sums(work_.parallel(), sums.whole(), {block.type, make_room(), box.n()});
  } else if (!header.gemm.whole_depth()) {
    status = kernels::multiply_run(work_.parallel(), shape, a.view, b.view, rule, {block.type, make_room(), box.n()},
                                   kernels::Accumulate::no);
  } else {
    KeptVector<float> c(static_cast<std::size_t>(box.m() * box.n()));
    status = kernels::multiply_depth(work_.parallel(), shape, a.view, b.view, rule, partial_sum_type(work_.wire()),
                                     {c.data(), box.n()});
    gather({c.data(), box.n()}, box.m(), box.n(), work_.wire(), make_room());
  }
  if (status != kernels::ProductStatus::ok) return std::nullopt;
  return block;
}

void BlockComputer::compute(const sched::Tasklet& tasklet, Scatter& scatter) {
  const Profile::Scope scope(work_.profile(), Phase::kernel, tasklet.op);
  const model::Operation& op = work_.operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  if (op.kind == model::OpKind::gemm) {
    const std::optional<ProductBlock> block = multiply(tasklet);
    if (!block) throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", op.name));
    scatter.add(tasklet, block->bytes, block->type);
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
    std::optional<ProductBlock> block = multiply(tasklet);
    if (!block) return std::nullopt;
    blocks[0] = std::move(block->bytes);
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

bool BlockComputer::can_compute(const sched::Tasklet& tasklet) {
  const model::Operation& op = work_.operation(tasklet.op);
  const auto is_finite = [](DType type, const KeptVector<std::byte>& bytes) {
    return kernels::all_representable(type, bytes.data(), std::ssize(bytes) / size_of(type));
  };
  if (op.kind == model::OpKind::gemm) {
    const std::optional<ProductBlock> block = multiply(tasklet);
    return block && (work_.open(op).may_be_any(block->type) || is_finite(block->type, block->bytes));
  }
  (void)work_.open(op);
  AttentionPair computer(op, work_.tensors(), work_.wire());
  for (std::int64_t pair = tasklet.piece.pairs.pair0; pair < tasklet.piece.pairs.pair1; ++pair) {
    computer.compute(pair);
    for (std::size_t i = 0; i < computer.results(); ++i) {
      KeptVector<std::byte> bytes(static_cast<std::size_t>(computer.result_bytes(i)));
      computer.write(i, bytes.data());
      if (!is_finite(work_.wire(), bytes)) return false;
    }
  }
  return true;
}

bool BlockComputer::equals(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const model::Operation& op = work_.operation(tasklet.op);
  if (op.kind == model::OpKind::gemm) {
    const std::optional<ProductBlock> own = multiply(tasklet);
    return own && own->bytes.size() == result.outputs[0].size() &&
           std::memcmp(own->bytes.data(), result.outputs[0].data(), own->bytes.size()) == 0;
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
