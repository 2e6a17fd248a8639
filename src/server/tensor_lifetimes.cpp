// Counting accesses.
#include "tensor_lifetimes.hpp"

#include <algorithm>

namespace cleave::server {

namespace {

// Every tensor that an operation touches, each once.
std::vector<TensorId> touched_by(const model::Operation& op) {
  std::vector<TensorId> ids;
  for (const auto* views : {&op.in, &op.out}) {
    for (const model::TensorView& view : *views) {
      if (view.valid() && std::find(ids.begin(), ids.end(), view.tensor) == ids.end()) ids.push_back(view.tensor);
    }
  }
  return ids;
}

}  // namespace

TensorLifetimes::TensorLifetimes(const model::StepGraph& graph) : graph_(graph), accesses_(graph.tensors.size(), 0) {
  for (const model::Operation& op : graph.operations) touched_.push_back(touched_by(op));
  for (const std::vector<TensorId>& tensors : touched_) {
    for (const TensorId id : tensors) ++accesses_[static_cast<std::size_t>(id.value)];
  }
  // What the caller reads after the step stays until the next one begins.
  if (graph.logits.valid()) ++accesses_[static_cast<std::size_t>(graph.logits.value)];
  left_ = accesses_;
}

void TensorLifetimes::begin_part(std::span<const OpId> operations, std::span<const TensorId> held) {
  left_.assign(left_.size(), 0);
  for (const OpId op : operations) {
    for (const TensorId id : touched_[static_cast<std::size_t>(op.value)])
      left_[static_cast<std::size_t>(id.value)] += graph_.tensor(id).role == model::TensorRole::gradient ? 2 : 1;
  }
  for (const TensorId id : held) ++left_[static_cast<std::size_t>(id.value)];
}

bool TensorLifetimes::comes_and_goes(TensorId id) const {
  const model::TensorRole role = graph_.tensor(id).role;
  return role != model::TensorRole::parameter && role != model::TensorRole::scalar;
}

}  // namespace cleave::server
