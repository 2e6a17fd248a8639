// See row_groups.hpp.
#include "row_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"
#include "dependencies.hpp"

namespace cleave::model {

namespace {

struct Group {
  std::int64_t index, sequence0, sequences;
};

// Kinds whose output rows need only the same rows of their activations (of a norm's backward pass: its first output).
bool row_by_row(const Operation& op) {
  switch (op.kind) {
    case OpKind::gemm:
    case OpKind::attention_forward:
    case OpKind::embed:
    case OpKind::layer_norm:
    case OpKind::rms_norm:
    case OpKind::add_bias:
    case OpKind::gelu:
    case OpKind::relu:
    case OpKind::swiglu:
    case OpKind::rope:
    case OpKind::add:
    case OpKind::attention_backward:
    case OpKind::layer_norm_backward:
    case OpKind::rms_norm_backward:
    case OpKind::gelu_backward:
    case OpKind::relu_backward:
    case OpKind::swiglu_backward:
    case OpKind::rope_backward:
    case OpKind::accumulate: return true;
    default: return false;
  }
}

bool is_norm_backward(const Operation& op) {
  return op.kind == OpKind::layer_norm_backward || op.kind == OpKind::rms_norm_backward;
}

class Splitter {
 public:
  Splitter(StepGraph graph, std::int64_t groups) : graph_(std::move(graph)) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t first = g * graph_.batch / groups, end = (g + 1) * graph_.batch / groups;
      groups_.push_back({g, first, end - first});
    }
  }

  StepGraph split() {
    std::vector<Operation> whole = std::move(graph_.operations);
    graph_.operations.clear();
    for (Operation& op : whole) {
      const bool on_chain = op.phase == Phase::forward || op.phase == Phase::input_gradient;
      if (on_chain && row_by_row(op) && spans_the_batch(op)) {
        if (is_norm_backward(op)) separate_parameters(op);
        split_rows(op);
      } else {
        append(std::move(op));
      }
    }
    return std::move(graph_);
  }

 private:
  [[nodiscard]] bool has_tokens(const TensorView& view) const {
    if (!view.valid()) return false;
    const TensorRole role = graph_.tensor(view.tensor).role;
    return role == TensorRole::activation || role == TensorRole::tokens || role == TensorRole::targets;
  }

  // True when every activation of `op` has all rows of the batch (a chunk of the loss has not).
  [[nodiscard]] bool spans_the_batch(const Operation& op) const {
    const std::int64_t rows = graph_.batch * graph_.seq;
    const auto spans = [&](const TensorView& view) {
      return !has_tokens(view) || (view.row0 == 0 && view.rows == rows);
    };
    return std::ranges::all_of(op.in, spans) && std::ranges::all_of(op.out, spans) && !op.out.empty() &&
           has_tokens(op.out[0]);
  }

  void append(Operation op) {
    op.id = OpId(static_cast<std::int64_t>(graph_.operations.size()));
    op.after = dependencies_.add(op.id, op.in, op.out);
    graph_.operations.push_back(std::move(op));
  }

  // Gradients of a gain and a bias are sums over all rows, in an order of their own: an operation beside the chain,
  // which leaves only the row-by-row gradient to `op`.
  void separate_parameters(Operation& op) {
    Operation sums = op;
    sums.name += ".parameters";
    sums.type += ".parameters";
    sums.phase = Phase::weight_gradient;
    sums.out[0] = TensorView{};
    sums.rounded = false;
    bool wanted = false;
    for (std::size_t i = 1; i < op.out.size(); ++i) {
      wanted = wanted || op.out[i].valid();
      op.out[i] = TensorView{};
    }
    if (wanted) append(std::move(sums));
  }

  [[nodiscard]] Operation part_of(const Operation& op, const Group& group) const {
    Operation part = op;
    part.name = fmt::format("{}.rows{}", op.name, group.index);
    const auto narrow = [&](TensorView& view) {
      if (!has_tokens(view)) return;
      view.row0 = group.sequence0 * graph_.seq;
      view.rows = group.sequences * graph_.seq;
    };
    std::ranges::for_each(part.in, narrow);
    std::ranges::for_each(part.out, narrow);
    if (op.kind == OpKind::gemm) part.gemm.m = part.out[0].rows;
    if (op.attention.batch > 0) part.attention.batch = group.sequences;
    return part;
  }

  void split_rows(const Operation& op) {
    const OpId first(static_cast<std::int64_t>(graph_.operations.size()));
    for (const Group& group : groups_) {
      Operation part = part_of(op, group);
      part.rows = {first, group.index, std::ssize(groups_)};
      append(std::move(part));
    }
  }

  StepGraph graph_;
  DependencyTracker dependencies_;
  std::vector<Group> groups_;
};

}  // namespace

StepGraph with_row_groups(StepGraph graph, std::int64_t groups) {
  CLEAVE_ASSERT(groups >= 1, "{} row groups", groups);
  groups = std::min(groups, graph.batch);
  if (groups == 1) return graph;
  return Splitter(std::move(graph), groups).split();
}

}  // namespace cleave::model
