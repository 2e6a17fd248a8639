// Binding, operands, and headers of tasks.
#include "workspace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/comm/transport.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

namespace {

using model::Operation;
using model::OpKind;

constexpr std::int64_t kRoundedAtOnce = std::int64_t{1} << 21;  // elements of weights

comm::Work work_code(OpKind kind) {
  switch (kind) {
    case OpKind::attention_forward: return comm::Work::attention_forward;
    case OpKind::attention_backward: return comm::Work::attention_backward;
    default: return comm::Work::gemm;
  }
}

kernels::ConstMatrix as_stored(const kernels::Rows& rows, bool transposed) {
  const kernels::ConstMatrix stored(rows.data, rows.ld);
  return transposed ? stored.transposed() : stored;
}

}  // namespace

Workspace::Workspace(ParameterStore& parameters, DType wire, const ExecutorOptions& options)
    : parameters_(parameters), wire_(wire), parallel_(options.threads) {
  if (options.profile) profile_.enable();
}
Workspace::~Workspace() = default;

void Workspace::begin_step(const model::StepGraph& graph, const StepInputs& inputs) {
  std::unique_ptr<TensorStore>& store = stores_[&graph];
  if (!store) store = std::make_unique<TensorStore>(graph, parameters_, pool_);
  if (store_ != nullptr && store_ != store.get()) store_->begin_step({}, {});  // gives its activations back
  store_ = store.get();
  graph_ = &graph;
  inputs_ = inputs;
  for (auto& entry : in_progress_) {
    if (!entry.second.sums.empty()) pool_.give(std::move(entry.second.sums));
  }
  in_progress_.clear();
  store_->begin_step(inputs.tokens, inputs.targets);
}

kernels::ConstMatrix Workspace::operand_a(const Operation& op) { return as_stored(store_->rows(op.in[0]), op.trans_a); }

kernels::ConstMatrix Workspace::operand_b(const Operation& op) { return as_stored(store_->rows(op.in[1]), op.trans_b); }

bool Workspace::sums_over_tokens(const Operation& op) {
  return op.kind == OpKind::gemm && op.phase == model::Phase::weight_gradient;
}

InProgress& Workspace::open(const Operation& op) {
  const auto found = in_progress_.find(op.id);
  if (found != in_progress_.end()) return found->second;
  store_->begin(op);
  InProgress& state = in_progress_[op.id];
  state.in_units = sums_over_tokens(op);
  if (state.in_units || (op.kind == OpKind::gemm && k_blocks(op.gemm.k) > 1)) {
    state.row_exponents.resize(static_cast<std::size_t>(op.gemm.m));
    state.column_exponents.resize(static_cast<std::size_t>(op.gemm.n));
    if (!state.in_units) take_exponents(op, state);
  }
  if (state.in_units) {
    const kernels::TokenUnit::Exponents exponents = unit().exponents(partial_sum_type(wire_));
    std::ranges::fill(state.row_exponents, exponents.row);
    std::ranges::fill(state.column_exponents, exponents.column);
  }
  return state;
}

void Workspace::take_exponents(const Operation& op, InProgress& state) {
  const auto rows = kernels::norm_exponents(parallel_, operand_a(op), op.gemm.m, op.gemm.k, state.row_exponents);
  if (rows != kernels::ProductStatus::ok || !take_column_exponents(op, 0, state.column_exponents))
    throw CheckFailure(fmt::format("an operand of {} is not finite: the training has diverged", op.name));
  if (op.row_bound > 0) std::ranges::fill(state.row_exponents, kernels::exponent_of_bound(op.row_bound));
}

// Of weights as they are sent: whoever holds them in the wire type has nothing else. Of rows of A before they are
// rounded: that changes a norm by far less than the headroom.
bool Workspace::take_column_exponents(const Operation& op, std::int64_t first, std::span<std::int16_t> exponents) {
  const std::int64_t k = op.gemm.k, count = std::ssize(exponents);
  const std::int64_t band = wire_ == DType::f32 ? count : std::max<std::int64_t>(1, kRoundedAtOnce / k);
  for (std::int64_t j = 0; j < count; j += band) {
    const std::int64_t columns = std::min(band, count - j);
    const RoundedBlock rounded(operand_b(op).from(0, first + j), k, columns, wire_);
    const auto status =
        kernels::norm_exponents(parallel_, rounded.view.transposed(), columns, k,
                                exponents.subspan(static_cast<std::size_t>(j), static_cast<std::size_t>(columns)));
    if (status != kernels::ProductStatus::ok) return false;
  }
  return true;
}

InProgress* Workspace::in_progress(OpId op) {
  const auto found = in_progress_.find(op);
  return found == in_progress_.end() ? nullptr : &found->second;
}

void Workspace::retire(const Operation& op) {
  const auto found = in_progress_.find(op.id);
  if (found != in_progress_.end()) {
    if (!found->second.sums.empty()) pool_.give(std::move(found->second.sums));
    in_progress_.erase(found);
  }
  store_->retire(op);
}

comm::Header Workspace::header_of(const sched::Tasklet& tasklet) {
  const Operation& op = operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  comm::Header header;
  header.kind = comm::Kind::task;
  header.tasklet = tasklet.id;
  header.device = piece.device;
  header.op = op.id;
  header.work = work_code(op.kind);
  header.wire = header.output = wire_;
  header.panel_order = static_cast<std::uint8_t>(piece.order);
  header.panels = piece.panels;
  if (op.kind == OpKind::gemm) {
    if (tasklet.stays_on_device()) {
      header.columns = comm::Columns::bring;
    } else if (tasklet.columns.valid()) {
      header.columns = comm::Columns::kept;
      header.brought_by = tasklet.columns;
    }
    header.gemm = {piece.box.m(), piece.box.n(), piece.box.k(), k_blocks(op.gemm.k), piece.box.k0 / kBlockK};
    if (sums_over_tokens(op) && open(op).in_units) {
      header.gemm.seq = graph_->seq;
      header.gemm.loss_bits = graph_->loss_bits;
    }
    if (!header.gemm.whole_depth()) header.output = partial_sum_type(wire_);
  } else {
    header.attention = {piece.pairs.count(), op.attention.seq, op.attention.head_dim, op.attention.queries_per_pair()};
  }
  return header;
}

}  // namespace cleave::server
