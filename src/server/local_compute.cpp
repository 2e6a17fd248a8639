// Blocks that the server computes itself, and the check of blocks that others computed.
//
// Both see the operands as a device does: rounded once to the wire type.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/attention.hpp"
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

  // Attention, pair by pair, on contiguous copies as a device has them.
  const AttentionShape& at = op.attention;
  const kernels::PairShape shape{at.queries_per_pair(), at.seq, at.head_dim};
  const std::int64_t head = at.seq * at.head_dim, group = head * shape.heads;
  const bool backward = op.kind == model::OpKind::attention_backward;
  const Bytes scratch_bytes =
      backward ? kernels::attention_backward_scratch(shape) : kernels::attention_forward_scratch(shape);
  std::vector<float> scratch(static_cast<std::size_t>(scratch_bytes.value()) / sizeof(float));
  std::vector<float> q(static_cast<std::size_t>(group)), k(static_cast<std::size_t>(head)), v(k), d_o(q), out_q(q),
      out_k(k), out_v(k);
  for (std::int64_t pair = piece.pairs.pair0; pair < piece.pairs.pair1; ++pair) {
    const std::int64_t sequence = pair / at.n_kv_head, kv = pair % at.n_kv_head;
    const auto load = [&](const model::TensorView& view, std::int64_t heads, std::vector<float>& into) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const kernels::Rows from = head_view(store_->rows(view), at.seq, at.head_dim, {sequence, kv * heads + h});
        gather({from.data, from.ld}, at.seq, at.head_dim, DType::f32,
               reinterpret_cast<std::byte*>(into.data() + h * head));
      }
      kernels::round_to(options_.wire, kernels::Rows(into.data(), heads * at.seq, at.head_dim));
    };
    const auto store = [&](const model::TensorView& view, std::int64_t heads, std::vector<float>& from) {
      kernels::round_to(options_.wire, kernels::Rows(from.data(), heads * at.seq, at.head_dim));
      for (std::int64_t h = 0; h < heads; ++h) {
        scatter(reinterpret_cast<const std::byte*>(from.data() + h * head), DType::f32, false,
                head_view(store_->rows(view), at.seq, at.head_dim, {sequence, kv * heads + h}));
      }
    };
    load(op.in[0], shape.heads, q);
    load(op.in[1], 1, k);
    load(op.in[2], 1, v);
    if (!backward) {
      kernels::attention_forward(shape, q.data(), k.data(), v.data(), out_q.data(), scratch);
      store(op.out[0], shape.heads, out_q);
      continue;
    }
    load(op.in[3], shape.heads, d_o);
    kernels::attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), out_q.data(), out_k.data(),
                                out_v.data(), scratch);
    store(op.out[0], shape.heads, out_q);
    store(op.out[1], 1, out_k);
    store(op.out[2], 1, out_v);
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

  // Attention has no cheap linear check: one pair, which the device cannot foresee, is computed again, to the last bit.
  const AttentionShape& at = op.attention;
  const kernels::PairShape shape{at.queries_per_pair(), at.seq, at.head_dim};
  const std::int64_t chosen =
      static_cast<std::int64_t>(signs.below(0, static_cast<std::uint64_t>(piece.pairs.count())));
  const std::int64_t pair = piece.pairs.pair0 + chosen, sequence = pair / at.n_kv_head, kv = pair % at.n_kv_head;
  const std::int64_t head = at.seq * at.head_dim, group = head * shape.heads;
  const auto load = [&](const model::TensorView& view, std::int64_t heads) {
    std::vector<float> into(static_cast<std::size_t>(heads * head));
    for (std::int64_t h = 0; h < heads; ++h) {
      const kernels::Rows from = head_view(store_->rows(view), at.seq, at.head_dim, {sequence, kv * heads + h});
      gather({from.data, from.ld}, at.seq, at.head_dim, DType::f32,
             reinterpret_cast<std::byte*>(into.data() + h * head));
    }
    kernels::round_to(options_.wire, kernels::Rows(into.data(), heads * at.seq, at.head_dim));
    return into;
  };
  const auto same = [&](const std::vector<float>& expected, std::size_t output, std::int64_t heads) {
    std::vector<std::byte> bytes(expected.size() * static_cast<std::size_t>(size_of(options_.wire)));
    gather({expected.data(), at.head_dim}, heads * at.seq, at.head_dim, options_.wire, bytes.data());
    return std::memcmp(bytes.data(), result.outputs[output].data() + chosen * static_cast<std::int64_t>(bytes.size()),
                       bytes.size()) == 0;
  };
  const std::vector<float> q = load(op.in[0], shape.heads), k = load(op.in[1], 1), v = load(op.in[2], 1);
  std::vector<float> out_q(static_cast<std::size_t>(group));
  if (op.kind == model::OpKind::attention_forward) {
    std::vector<float> scratch(static_cast<std::size_t>(kernels::attention_forward_scratch(shape).value()) /
                               sizeof(float));
    kernels::attention_forward(shape, q.data(), k.data(), v.data(), out_q.data(), scratch);
    return same(out_q, 0, shape.heads) ? Verdict::good : Verdict::wrong;
  }
  const std::vector<float> d_o = load(op.in[3], shape.heads);
  std::vector<float> out_k(static_cast<std::size_t>(head)), out_v(out_k);
  std::vector<float> scratch(static_cast<std::size_t>(kernels::attention_backward_scratch(shape).value()) /
                             sizeof(float));
  kernels::attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), out_q.data(), out_k.data(), out_v.data(),
                              scratch);
  return same(out_q, 0, shape.heads) && same(out_k, 1, 1) && same(out_v, 2, 1) ? Verdict::good : Verdict::wrong;
}

}  // namespace cleave::server
