// Kernels in order of their inputs.
#include "stages/server_work.hpp"

#include <utility>

namespace cleave::sched::stages {

using model::OpKind;

ServerWork::ServerWork(Fleet& fleet, const model::StepGraph& graph)
    : fleet_(fleet),
      graph_(graph),
      of_embedding_(graph.operations.size()),
      followers_(graph.operations.size()),
      needed_(graph.operations.size()) {
  for (const model::Operation& op : graph.operations) {
    const auto index = static_cast<std::size_t>(op.id.value);
    if (op.kind == OpKind::embed || op.kind == OpKind::zero) {
      first_.push_back(op.id);
      of_embedding_[index] = op.kind == OpKind::embed;
    }
    if (op.kind == OpKind::embed_backward) {
      embedding_gradients_.push_back(op.id);
      for (const model::TensorView& out : op.out) {
        if (out.valid()) expect_source(graph.tensor(out.tensor).parameter);
      }
    }
    if (!is_update(op)) continue;
    updates_.push_back(op.id);
    for (const model::TensorView& in : op.in) {
      const model::TensorSpec& tensor = graph.tensor(in.tensor);
      if (tensor.role != model::TensorRole::gradient) continue;
      readers_[tensor.parameter.value].push_back(op.id);
      ++needed_[index];
    }
    for (const OpId before : op.after) {
      if (!is_update(graph.operation(before))) continue;
      followers_[static_cast<std::size_t>(before.value)].push_back(op.id);
      ++needed_[index];
    }
  }
}

void ServerWork::expect_source(TensorId parameter) { ++sources_[parameter.value]; }

void ServerWork::begin() {
  waiting_ = needed_;
  open_ = sources_;
  left_ = std::ssize(first_) + std::ssize(embedding_gradients_) + std::ssize(updates_);
  embeddings_left_ = 0;
  held_ = false;
  ready_.clear();
  for (const OpId op : first_) {
    if (of_embedding_[static_cast<std::size_t>(op.value)]) ++embeddings_left_;
    start(graph_.operation(op));
  }
}

void ServerWork::start(const model::Operation& op) {
  ++under_way_;
  fleet_.start(op);
}

void ServerWork::start_ready(OpId op) {
  if (--waiting_[static_cast<std::size_t>(op.value)] > 0) return;
  if (held_ && graph_.operation(op).kind == OpKind::adamw) {
    ready_.push_back(op);
  } else {
    start(graph_.operation(op));
  }
}

void ServerWork::release_updates() {
  held_ = false;
  for (const OpId op : std::exchange(ready_, {})) start(graph_.operation(op));
}

void ServerWork::source_done(TensorId parameter) {
  if (--open_[parameter.value] > 0) return;
  const auto found = readers_.find(parameter.value);
  if (found == readers_.end()) return;
  for (const OpId op : found->second) start_ready(op);
}

void ServerWork::residual_gradient_done() {
  for (const OpId op : embedding_gradients_) start(graph_.operation(op));
}

bool ServerWork::kernel_done(OpId op) {
  --left_;
  --under_way_;
  const auto index = static_cast<std::size_t>(op.value);
  const model::Operation& done = graph_.operation(op);
  if (done.kind == OpKind::embed_backward) {
    for (const model::TensorView& out : done.out) {
      if (out.valid()) source_done(graph_.tensor(out.tensor).parameter);
    }
  }
  for (const OpId follower : followers_[index]) start_ready(follower);
  return of_embedding_[index] && --embeddings_left_ == 0;
}

}  // namespace cleave::sched::stages
