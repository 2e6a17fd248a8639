// The machinery of GraphBuilder: names, parameters, values, gradients. builder_operations.cpp has the operations.
#include "builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "freeze.hpp"

namespace cleave::model {

namespace {
TensorView whole(const TensorSpec& spec) { return {spec.id, 0, spec.rows, 0, spec.cols}; }
}  // namespace

GraphBuilder::GraphBuilder(const ModelConfig& config, const StepOptions& options, const FamilyDefinition& family)
    : config_(config), options_(options), family_(family), rows_(options.batch * config.seq_len) {
  graph_.batch = options.batch;
  graph_.seq = config.seq_len;
  graph_.wire = options.wire;
  graph_.boundary = options.boundary.value_or(options.wire);
  graph_.loss_bits = loss_bits(options.wire, rows_);
  graph_.tensors = parameters_of(config);
  for (const TensorSpec& spec : graph_.tensors) {
    parameter_by_name_.emplace(spec.name, parameters_.size());
    Parameter p;
    p.view = whole(spec);
    p.trained = options.kind == StepKind::train && !matches_any(options.freeze, spec.name);
    parameters_.push_back(p);
  }
  graph_.tokens = new_tensor("tokens", TensorRole::tokens, rows_, 1).tensor;
  graph_.targets = new_tensor("targets", TensorRole::targets, rows_, 1).tensor;
  graph_.loss = new_tensor("loss", TensorRole::scalar, 1, 1).tensor;
}

void GraphBuilder::enter_layer(const std::string& list, std::int64_t index) {
  scope_ = fmt::format("{}.{}.", list, index);
}

void GraphBuilder::leave_layers() { scope_.clear(); }

GraphBuilder::Label GraphBuilder::label(const std::string& name) const { return {scope_ + name, name}; }

// "transformer.h.3.ln_1.bias" gives "h.3.ln_1.bias" and "ln_1.bias".
GraphBuilder::Label GraphBuilder::label_of(const Parameter& p) const {
  std::string name = graph_.tensor(p.view.tensor).name;
  if (name.starts_with(family_.prefix)) name.erase(0, family_.prefix.size());
  std::string type = name;
  const std::size_t number = type.find('.') + 1, end = type.find('.', number);
  const bool in_layer = end != std::string::npos && type.find_first_not_of("0123456789", number) == end;
  if (in_layer) type.erase(0, end + 1);
  return {std::move(name), std::move(type)};
}

GraphBuilder::Parameter* GraphBuilder::find(const std::string& name) {
  auto found = parameter_by_name_.find(family_.prefix + scope_ + name);
  if (found == parameter_by_name_.end()) found = parameter_by_name_.find(name);  // "lm_head.weight" has no prefix
  return found == parameter_by_name_.end() ? nullptr : &parameters_[found->second];
}

GraphBuilder::Parameter& GraphBuilder::parameter(const std::string& name) {
  Parameter* p = find(name);
  CLEAVE_ASSERT(p != nullptr, "{} declares no parameter {}{}", config_.family, scope_, name);
  return *p;
}

TensorView GraphBuilder::new_tensor(std::string name, TensorRole role, std::int64_t rows, std::int64_t cols) {
  TensorSpec spec;
  spec.id = TensorId(static_cast<std::int64_t>(graph_.tensors.size()));
  spec.name = std::move(name);
  spec.role = role;
  spec.rows = rows;
  spec.cols = cols;
  graph_.tensors.push_back(std::move(spec));
  return whole(graph_.tensors.back());
}

const TensorView& GraphBuilder::read(Value x) {
  Node& node = nodes_[x.node];
  CLEAVE_ASSERT(!node.overwritten, "{} is read after an operation in place", node.label.name);
  ++node.readers;
  return node.view;
}

Value GraphBuilder::record(const Label& label, const TensorView& y, bool needs_gradient, Backward backward) {
  Node node;
  node.label = label;
  node.view = y;
  node.needs_gradient = needs_gradient;
  if (needs_gradient) node.backward = std::move(backward);
  nodes_.push_back(std::move(node));
  return Value{nodes_.size() - 1};
}

Value GraphBuilder::record_in_place(const Label& label, Value x, Backward backward) {
  Node& before = nodes_[x.node];
  CLEAVE_ASSERT(before.readers == 0 && !before.overwritten, "{} has another reader", before.label.name);
  before.overwritten = true;
  const auto [parent, is_slice] = std::pair(before.parent, before.is_slice);
  const Value y = record(label, before.view, before.needs_gradient, std::move(backward));
  nodes_[y.node].parent = parent;
  nodes_[y.node].is_slice = is_slice;
  return y;
}

TensorView GraphBuilder::gradient_target(Value x, const Label& label) {
  const Node& node = nodes_[x.node];
  const std::string name = fmt::format("{}.gradient by {}", node.label.name, label.name);
  if (!node.is_slice) return new_tensor(name, TensorRole::activation, node.view.rows, node.view.cols);
  Node& parent = nodes_[node.parent];
  if (parent.gradients.empty()) {
    const TensorView whole_gradient = new_tensor(name, TensorRole::activation, parent.view.rows, parent.view.cols);
    nodes_[node.parent].gradients.push_back({whole_gradient, true});
  }
  const TensorView& whole_gradient = nodes_[node.parent].gradients.front().view;
  return {whole_gradient.tensor, 0, node.view.rows, node.view.col0 - parent.view.col0, node.view.cols};
}

Value GraphBuilder::in_residual_stream(Value x) {
  nodes_[x.node].residual = graph_.boundary != DType::f32;
  if (nodes_[x.node].residual) round_last_write(nodes_[x.node].view.tensor);
  return x;
}

void GraphBuilder::round_last_write(TensorId tensor) {
  for (std::size_t i = graph_.operations.size(); i-- > 0;) {
    Operation& op = graph_.operations[i];
    if (std::ranges::none_of(op.out, [&](const TensorView& out) { return out.tensor == tensor; })) continue;
    CLEAVE_ASSERT(op.out[0].tensor == tensor, "{} writes the residual stream beside something else", op.name);
    op.rounded = true;
    return;
  }
}

void GraphBuilder::contribute(Value x, const Gradient& gradient) {
  Node& node = nodes_[x.node];
  if (node.needs_gradient) node.gradients.push_back(gradient);
}

GraphBuilder::Gradient GraphBuilder::sum_gradients(std::size_t index) {
  std::vector<Gradient> parts = std::move(nodes_[index].gradients);
  const Label& of = nodes_[index].label;
  CLEAVE_ASSERT(!parts.empty(), "{} has no consumer", of.name);
  if (parts.size() == 1) return parts.front();

  std::size_t target = 0;
  while (target < parts.size() && !parts[target].owned) ++target;
  CLEAVE_ASSERT(target < parts.size(), "no consumer of {} gives a gradient of its own", of.name);
  int count = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == target) continue;
    emit(of, fmt::format(".gradient_sum{}", count++), OpKind::accumulate, Phase::input_gradient, {parts[i].view},
         {parts[target].view});
  }
  return parts[target];
}

Operation& GraphBuilder::emit(const Label& label, const std::string& suffix, OpKind kind, Phase phase,
                              std::vector<TensorView> in, std::vector<TensorView> out) {
  Operation op;
  op.id = OpId(static_cast<std::int64_t>(graph_.operations.size()));
  op.name = label.name + suffix;
  op.type = label.type + suffix;
  op.kind = kind;
  op.phase = phase;
  op.after = dependencies_.add(op.id, in, out);
  op.in = std::move(in);
  op.out = std::move(out);
  graph_.operations.push_back(std::move(op));
  return graph_.operations.back();
}

Operation& GraphBuilder::emit_gemm(const Label& label, const std::string& suffix, Phase phase, const TensorView& a,
                                   bool trans_a, const TensorView& b, bool trans_b, const TensorView& c,
                                   bool accumulate) {
  Operation& op = emit(label, suffix, OpKind::gemm, phase, {a, b}, {c});
  op.trans_a = trans_a;
  op.trans_b = trans_b;
  op.accumulate = accumulate;
  op.gemm = {trans_a ? a.cols : a.rows, trans_b ? b.rows : b.cols, trans_a ? a.rows : a.cols};
  const std::int64_t k_of_b = trans_b ? b.cols : b.rows;
  CLEAVE_ASSERT(op.gemm.k == k_of_b && op.gemm.m == c.rows && op.gemm.n == c.cols,
                "{}: {} x {} x {} into {} x {} with k {}", op.name, op.gemm.m, op.gemm.n, op.gemm.k, c.rows, c.cols,
                k_of_b);
  return op;
}

bool GraphBuilder::use(Parameter* p) {
  if (p == nullptr || !p->trained) return false;
  ++p->uses;
  return true;
}

TensorView GraphBuilder::gradient_of(Parameter& p) {
  if (!p.gradient.valid()) {
    const TensorSpec& spec = graph_.tensor(p.view.tensor);
    const bool vector = spec.vector;
    p.gradient = new_tensor(spec.name + ".gradient", TensorRole::gradient, spec.rows, spec.cols);
    graph_.tensors.back().parameter = p.view.tensor;
    graph_.tensors.back().vector = vector;
  }
  return p.gradient;
}

TensorView GraphBuilder::zeroed_gradient_of(Parameter& p) {
  if (!p.gradient.valid()) {
    const TensorView gradient = gradient_of(p);
    emit(label_of(p), ".zero", OpKind::zero, Phase::weight_gradient, {}, {gradient});
  }
  return p.gradient;
}

void GraphBuilder::finish_use(Parameter& p) {
  CLEAVE_ASSERT(p.uses > 0, "{} has no use left", graph_.tensor(p.view.tensor).name);
  if (--p.uses > 0) return;
  const Label label = label_of(p);
  p.square_norm = new_tensor(label.name + ".square_norm", TensorRole::scalar, 1, 1);
  emit(label, ".square_norm", OpKind::square_norm, Phase::update, {p.gradient}, {p.square_norm});
  if (!options_.clip) emit_adamw(p, {});
}

void GraphBuilder::emit_adamw(Parameter& p, const TensorView& norm) {
  std::vector<TensorView> in{p.gradient};
  if (norm.valid()) in.push_back(norm);
  emit(label_of(p), ".adamw", OpKind::adamw, Phase::update, std::move(in), {p.view});
}

StepGraph GraphBuilder::finish() {
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    if (!nodes_[i].needs_gradient) continue;
    const Gradient dy = sum_gradients(i);
    if (nodes_[i].residual) round_last_write(dy.view.tensor);
    nodes_[i].backward(dy);
  }
  std::vector<TensorView> squares;
  for (const Parameter& p : parameters_) {
    CLEAVE_ASSERT(!p.trained || p.square_norm.valid(), "{} is trained but not used", graph_.tensor(p.view.tensor).name);
    if (p.trained) squares.push_back(p.square_norm);
  }
  if (!squares.empty()) {
    const TensorView norm = new_tensor("grad_norm", TensorRole::scalar, 1, 1);
    graph_.grad_norm = norm.tensor;
    emit({"global_norm", "global_norm"}, "", OpKind::global_norm, Phase::update, std::move(squares), {norm});
    for (Parameter& p : parameters_) {
      if (p.trained && options_.clip) emit_adamw(p, norm);
    }
  }
  return std::move(graph_);
}

}  // namespace cleave::model
