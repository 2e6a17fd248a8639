// Blocks that the server computes itself, and the check of blocks that others computed.
//
// Both see the operands as a device does: rounded once to the wire type.
#include <fmt/format.h>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/wire.hpp"
#include "executor.hpp"

namespace cleave::server {

namespace {

// The block of an operand that a tasklet works on, in fp32, rounded to the wire type: a copy only where rounding needs
// one.
struct RoundedBlock {
  RoundedBlock(kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, DType wire) : view(from) {
    if (wire == DType::f32) return;
    copy.resize(static_cast<std::size_t>(rows * cols));
    gather(from, rows, cols, DType::f32, reinterpret_cast<std::byte*>(copy.data()));
    kernels::round_to(wire, kernels::Rows(copy.data(), rows, cols));
    view = kernels::ConstMatrix(copy.data(), cols);
  }
  std::vector<float> copy;
  kernels::ConstMatrix view;
};

std::span<const std::int16_t> part(const std::vector<std::int16_t>& exponents, std::int64_t begin, std::int64_t count) {
  if (exponents.empty()) return {};
  return std::span(exponents).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace

void Executor::compute(const sched::Tasklet& tasklet) {
  const model::Operation& op = graph_->operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  const InProgress& state = open(op);
  const comm::Header header = header_of(tasklet);
  comm::ResultDraft draft = comm::begin_result(comm::result_header(header, Seconds(0), Seconds(0)));
  if (op.kind == model::OpKind::gemm) {
    const GemmBox& box = piece.box;
    const GemmShape shape{box.m(), box.n(), box.k()};
    const RoundedBlock a(operand_a(op).from(box.m0, box.k0), box.m(), box.k(), options_.wire);
    const RoundedBlock b(operand_b(op).from(box.k0, box.n0), box.k(), box.n(), options_.wire);
    const auto rows = part(state.row_exponents, box.m0, box.m()),
               columns = part(state.column_exponents, box.n0, box.n());
    kernels::ProductStatus status = kernels::ProductStatus::ok;
    if (header.gemm.whole_depth()) {
      std::vector<float> c(static_cast<std::size_t>(box.m() * box.n()));
      status = kernels::multiply_whole(parallel_, shape, a.view, b.view, rows, columns, partial_sum_type(options_.wire),
                                       {c.data(), box.n()});
      gather({c.data(), box.n()}, box.m(), box.n(), options_.wire, draft.outputs[0].data());
      place_finished(op, box, draft.outputs[0], header.output);
    } else {
      status = kernels::multiply_box(parallel_, shape, a.view, b.view, rows, columns,
                                     {header.output, draft.outputs[0].data(), box.n()});
      place_partial(op, box, draft.outputs[0], header.output);
    }
    if (status != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", op.name));
    return;
  }

  AttentionPair computer(op, *store_, options_.wire);
  for (std::int64_t pair = piece.pairs.pair0; pair < piece.pairs.pair1; ++pair) {
    computer.compute(pair);
    computer.place(pair);
  }
}

Verdict Executor::check(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Verification& terms = options_.verification;
  if (terms.mode == Verification::Mode::off) return Verdict::good;
  const auto index = static_cast<std::uint64_t>(tasklet.id.value);
  if (terms.mode == Verification::Mode::sample && draws_.uniform(index) >= terms.fraction) return Verdict::good;

  const model::Operation& op = graph_->operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  const Random signs(terms.seed, Purpose::verification, static_cast<std::uint32_t>(1 + tasklet.id.value));
  if (op.kind == model::OpKind::gemm) {
    const InProgress& state = open(op);
    const GemmBox& box = piece.box;
    const GemmShape shape{box.m(), box.n(), box.k()};
    const RoundedBlock a(operand_a(op).from(box.m0, box.k0), box.m(), box.k(), options_.wire);
    const RoundedBlock b(operand_b(op).from(box.k0, box.n0), box.k(), box.n(), options_.wire);
    double ratio = 0;
    if (result.header.output == options_.wire) {
      std::vector<float> c(static_cast<std::size_t>(box.m() * box.n()));
      scatter(result.outputs[0].data(), options_.wire, false, kernels::Rows(c.data(), box.m(), box.n()));
      ratio = kernels::check_product(shape, a.view, b.view, {c.data(), box.n()}, options_.wire, signs);
    } else {
      ratio = kernels::check_partial_sums(
          shape, a.view, b.view, {result.header.output, result.outputs[0].data(), box.n()},
          part(state.row_exponents, box.m0, box.m()), part(state.column_exponents, box.n0, box.n()), signs);
    }
    return ratio <= 1.0 ? Verdict::good : Verdict::wrong;
  }

  // Attention has no cheap linear check: pairs are computed again, to the last bit. `all` takes every pair of the
  // block, `sample` one, which the device cannot foresee.
  AttentionPair computer(op, *store_, options_.wire);
  std::int64_t first = 0, last = piece.pairs.count();
  if (terms.mode == Verification::Mode::sample) {
    first = static_cast<std::int64_t>(signs.below(0, static_cast<std::uint64_t>(last)));
    last = first + 1;
  }
  for (std::int64_t pair = first; pair < last; ++pair) {
    computer.compute(piece.pairs.pair0 + pair);
    for (std::size_t i = 0; i < computer.results(); ++i) {
      if (!computer.equals(i, result.outputs[i].data() + pair * computer.result_bytes(i))) return Verdict::wrong;
    }
  }
  return Verdict::good;
}

}  // namespace cleave::server
