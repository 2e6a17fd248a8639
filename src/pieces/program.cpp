// What depends on what, operation by operation, from the last to the first.
#include "cleave/pieces/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/model/pieces.hpp"

namespace cleave::pieces {

namespace {

using model::Operation;
using model::OpKind;
using model::Phase;
using model::TensorView;

Columns columns_of(const TensorView& view) { return {view.col0, view.col0 + view.cols}; }

bool is_parameter(const model::StepGraph& graph, const TensorView& view) {
  return graph.tensor(view.tensor).role == model::TensorRole::parameter;
}

void want_all(Wanted& wanted, const TensorView& view) { wanted[view.tensor].add(columns_of(view)); }

// The wanted columns of a view, counted from its first one.
ColumnSet part_of(const Wanted& wanted, const TensorView& view) {
  const auto found = wanted.find(view.tensor);
  return found == wanted.end() ? ColumnSet() : found->second.within(columns_of(view), view.col0);
}

void want_part(Wanted& wanted, const TensorView& view, const ColumnSet& part) {
  if (!part.empty()) wanted[view.tensor].add(part.moved(view.col0));
}

bool writes_in_place(OpKind kind) {
  return kind == OpKind::add_bias || kind == OpKind::rope || kind == OpKind::rope_backward ||
         kind == OpKind::accumulate;
}

bool is_loss(const Operation* op) {
  return op->kind == OpKind::cross_entropy || op->kind == OpKind::cross_entropy_loss;
}

// The heads of attention that wanted columns of its outputs belong to, as columns of K.
ColumnSet heads_wanted(const Operation& op, const Wanted& wanted) {
  const AttentionShape& shape = op.attention;
  const std::int64_t key = shape.head_dim, query = key * shape.queries_per_pair();
  ColumnSet heads;
  for (std::size_t i = 0; i < op.out.size(); ++i)
    heads.add(part_of(wanted, op.out[i]).groups(i == 0 ? query : key, key));
  return heads;
}

}  // namespace

Program::Program(const model::StepGraph& graph, std::int64_t piece) : graph_(&graph) {
  const std::vector<std::int64_t> places = model::pieces_of_operations(graph);
  std::set<TensorId> made;
  for (const Operation& op : graph.operations) {
    if (places[static_cast<std::size_t>(op.id.value)] != piece) continue;
    if (op.kind == OpKind::attention_forward) attention_ = &op;
    if (op.kind == OpKind::layer_norm_backward || op.kind == OpKind::rms_norm_backward) norm_backward_ = &op;
    if (op.phase == Phase::weight_gradient) {
      sums_.push_back(&op);
      continue;
    }
    std::vector<const Operation*>& list = op.phase == Phase::forward ? forward_ : backward_;
    // What the first operation of either pass reads and nobody here made comes in.
    for (const TensorView& in : op.in) {
      if (graph.tensor(in.tensor).role != model::TensorRole::activation || made.contains(in.tensor)) continue;
      TensorId& from_outside = op.phase == Phase::forward ? x_ : dy_;
      if (in.tensor == x_) continue;
      CLEAVE_ASSERT(!from_outside.valid() || from_outside == in.tensor, "{} reads {} of another piece", op.name,
                    graph.tensor(in.tensor).name);
      from_outside = in.tensor;
    }
    for (const TensorView& out : op.out) {
      if (out.valid()) made.insert(out.tensor);
    }
    list.push_back(&op);
  }
  CLEAVE_ASSERT(!forward_.empty() && x_.valid(), "piece {} reads nothing", piece);
  if (forward_.back()->kind == OpKind::add) y_ = forward_.back()->out[0].tensor;
  CLEAVE_ASSERT(y_.valid() || std::ranges::count(forward_, OpKind::cross_entropy, &Operation::kind) <= 1,
                "the loss of {} rows has several chunks", graph.batch * graph.seq);
  if (norm_backward_ != nullptr && norm_backward_->out[0].valid()) dx_ = norm_backward_->out[0].tensor;
  std::set<TensorId> forward_values{x_};
  for (const Operation* op : forward_) {
    for (const TensorView& out : op->out) forward_values.insert(out.tensor);
  }
  for (const auto* operations : {&backward_, &sums_}) {
    for (const Operation* op : *operations) {
      for (const TensorView& in : op->in) {
        const bool value = operations == &sums_ || forward_values.contains(in.tensor);
        if (graph.tensor(in.tensor).role != model::TensorRole::activation || !value) continue;
        if (kept_.emplace(in.tensor, kept_columns_).second) kept_columns_ += graph.tensor(in.tensor).cols;
      }
    }
  }
  for (const Operation* op : forward_) {
    if (has_logits() && op->kind == OpKind::gemm) product_ = op;
  }
  for (const Operation* op : backward_) {
    if (product_ != nullptr && op->kind == OpKind::gemm && op->in[0].tensor == product_->out[0].tensor)
      gradient_product_ = op;
  }
  for (const Operation* op : backward_) {  // the residual stream's other way joins what came through the norm
    if (op->kind == OpKind::accumulate && op->out[0].tensor != dx_ && op->in[0].tensor == dx_) dx_ = op->out[0].tensor;
  }
}

Program::Program(const model::StepGraph& graph, std::int64_t head, Columns vocabulary) : Program(graph, head) {
  CLEAVE_ASSERT(product_ != nullptr, "piece {} has no logits", head);
  vocabulary_ = vocabulary;
}

std::vector<Instruction> Program::needed(std::span<const Operation* const> operations, Wanted& wanted,
                                         Known known) const {
  std::vector<Instruction> list;
  for (std::size_t i = operations.size(); i-- > 0;) {
    const Operation& op = *operations[i];
    if (op.rounded && graph_->boundary == DType::mxint8) {  // of whole blocks
      const ColumnSet blocks = part_of(wanted, op.out[0]).groups(kMxBlock, kMxBlock);
      want_part(wanted, op.out[0], blocks.within({0, op.out[0].cols}, 0));
    }
    Instruction instruction{&op, {}};
    bool any = false;
    for (const TensorView& out : op.out) {
      instruction.columns.push_back(out.valid() ? part_of(wanted, out).moved(out.col0) : ColumnSet());
      any = any || !instruction.columns.back().empty();
    }
    if (!any) continue;
    const ColumnSet first = op.out[0].valid() ? part_of(wanted, op.out[0]) : ColumnSet();
    switch (op.kind) {
      case OpKind::gemm: want_all(wanted, op.in[0]); break;
      case OpKind::attention_forward:
      case OpKind::attention_backward: {
        const ColumnSet keys = heads_wanted(op, wanted);
        const std::int64_t key = op.attention.head_dim, query = key * op.attention.queries_per_pair();
        const ColumnSet queries = keys.groups(key, query);
        want_part(wanted, op.in[0], queries);
        if (!known.keys_values) {
          want_part(wanted, op.in[1], keys);
          want_part(wanted, op.in[2], keys);
        }
        if (op.in.size() > 3) want_part(wanted, op.in[3], queries);
        for (std::size_t out = 0; out < op.out.size(); ++out)
          instruction.columns[out] = (out == 0 ? queries : keys).moved(op.out[out].col0);
        break;
      }
      case OpKind::rope:
      case OpKind::rope_backward: {  // of whole heads
        const ColumnSet heads = first.groups(op.integer, op.integer);
        want_part(wanted, op.out[0], heads);
        instruction.columns[0] = heads.moved(op.out[0].col0);
        break;
      }
      case OpKind::layer_norm:
      case OpKind::rms_norm:
      case OpKind::layer_norm_backward:
      case OpKind::rms_norm_backward:
      case OpKind::cross_entropy:
      case OpKind::cross_entropy_loss:
        if (known.row_sums) break;  // element by element, in place
        for (const TensorView& in : op.in) {
          if (graph_->tensor(in.tensor).role == model::TensorRole::activation) want_all(wanted, in);
        }
        break;
      default: {  // element by element: of several outputs all columns that one is wanted of
        ColumnSet columns;
        for (const TensorView& out : op.out) columns.add(part_of(wanted, out));
        for (const TensorView& in : op.in) {
          if (!is_parameter(*graph_, in)) want_part(wanted, in, columns);
        }
        for (std::size_t out = 0; out < op.out.size(); ++out)
          instruction.columns[out] = columns.moved(op.out[out].col0);
        CLEAVE_ASSERT(!op.in.empty() || writes_in_place(op.kind), "{} makes something of nothing", op.name);
      }
    }
    list.push_back(std::move(instruction));
  }
  std::ranges::reverse(list);
  return list;
}

std::vector<Instruction> Program::forward(const Wanted& wanted) const {
  Wanted all = wanted;
  return needed(forward_, all, {});
}

Wanted Program::outputs() const {
  Wanted wanted;
  want_all(wanted, forward_.back()->out[has_logits() ? forward_.back()->out.size() - 1 : 0]);
  return wanted;
}

Wanted Program::logit_gradient() const {
  const std::int64_t col0 = product_->out[0].col0;
  Wanted wanted;
  wanted[logits()].add(Columns{col0 + vocabulary_.begin, col0 + vocabulary_.end});
  return wanted;
}

std::vector<Instruction> Program::forward_to_logits() const {
  Wanted wanted = logit_gradient();  // the loss makes it in the place of the logits
  const auto loss = std::ranges::find_if(forward_, is_loss);
  return needed(std::span(forward_).first(static_cast<std::size_t>(loss - forward_.begin())), wanted, {});
}

std::vector<Instruction> Program::back_from_product() const {
  Wanted wanted = input_gradient();
  std::vector<const Operation*> after, norm;
  std::ranges::copy_if(backward_, std::back_inserter(after),
                       [&](const Operation* op) { return op != gradient_product_; });
  std::ranges::copy_if(forward_, std::back_inserter(norm),
                       [&](const Operation* op) { return op != product_ && !is_loss(op); });
  std::vector<Instruction> gradients = needed(after, wanted, {});
  std::vector<Instruction> list = needed(norm, wanted, {});
  std::ranges::move(gradients, std::back_inserter(list));
  return list;
}

Wanted Program::keys_values() const {
  Wanted wanted;
  if (attention_ == nullptr) return wanted;
  want_all(wanted, attention_->in[1]);
  want_all(wanted, attention_->in[2]);
  return wanted;
}

std::vector<Instruction> Program::back(const Wanted& wanted, bool row_sums) const {
  const Known known{.keys_values = true, .row_sums = row_sums};
  Wanted all = wanted;
  std::vector<Instruction> gradients = needed(backward_, all, known);
  std::vector<Instruction> list = needed(forward_, all, known);
  std::ranges::move(gradients, std::back_inserter(list));
  return list;
}

std::vector<Instruction> Program::back_of_kept(const Wanted& wanted) const {
  Wanted all = wanted;
  return needed(backward_, all, {.keys_values = true});
}

Wanted Program::keys_values_of(std::span<const Instruction> instructions) {
  Wanted wanted;
  for (const Instruction& instruction : instructions) {
    const Operation& op = *instruction.op;
    if (op.kind != OpKind::attention_forward && op.kind != OpKind::attention_backward) continue;
    const std::int64_t key = op.attention.head_dim, query = key * op.attention.queries_per_pair();
    const ColumnSet keys = instruction.columns[0].moved(-op.out[0].col0).groups(query, key);
    want_part(wanted, op.in[1], keys);
    want_part(wanted, op.in[2], keys);
  }
  return wanted;
}

Wanted Program::input_gradient() const {
  Wanted wanted;
  if (dx_.valid()) wanted[dx_].add(Columns{0, graph_->tensor(dx_).cols});
  if (norm_backward_ == nullptr) return wanted;
  want_all(wanted, norm_backward_->in[0]);
  for (std::size_t i = 1; i < norm_backward_->out.size(); ++i) {
    if (norm_backward_->out[i].valid()) want_all(wanted, norm_backward_->out[i]);
  }
  return wanted;
}

Wanted Program::operands_of(std::span<const SumInstruction> sums) {
  Wanted wanted;
  for (const SumInstruction& sum : sums) {
    want_part(wanted, sum.op->in[0], sum.a);
    if (sum.op->in.size() > 1) want_part(wanted, sum.op->in[1], sum.b);
  }
  return wanted;
}

}  // namespace cleave::pieces
