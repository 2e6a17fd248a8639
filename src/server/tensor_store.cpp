// Lifetimes of activations, and views of them.
#include "tensor_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cleave/base/error.hpp"

namespace cleave::server {

namespace {

// Every tensor that an operation touches, each once.
std::vector<TensorId> touched(const model::Operation& op) {
  std::vector<TensorId> ids;
  for (const auto* views : {&op.in, &op.out}) {
    for (const model::TensorView& view : *views) {
      if (view.valid() && std::find(ids.begin(), ids.end(), view.tensor) == ids.end()) ids.push_back(view.tensor);
    }
  }
  return ids;
}

}  // namespace

TensorStore::TensorStore(const model::StepGraph& graph, ParameterStore& parameters, BlockPool& pool)
    : graph_(graph), pool_(pool), slots_(graph.tensors.size()), scalars_(graph.tensors.size(), 0.0) {
  for (const model::Operation& op : graph.operations) touched_.push_back(touched(op));
  for (const model::TensorSpec& spec : graph.tensors) {
    if (spec.role != model::TensorRole::parameter) continue;
    Slot& bound = slot(spec.id);
    bound.parameter = &parameters.at(spec.name);
    bound.data = bound.parameter->value.data();
    CLEAVE_ASSERT(static_cast<std::int64_t>(bound.parameter->value.size()) == spec.elements(), "shape of {}",
                  spec.name);
  }
  for (const std::vector<TensorId>& tensors : touched_) {
    for (const TensorId id : tensors) ++slot(id).accesses;
  }
  // What the caller reads after the step stays until the next one begins.
  if (graph.logits.valid()) ++slot(graph.logits).accesses;
}

TensorStore::~TensorStore() {
  for (const model::TensorSpec& spec : graph_.tensors) release(spec.id);
}

void TensorStore::begin_step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  tokens_ = tokens;
  targets_ = targets;
  std::fill(scalars_.begin(), scalars_.end(), 0.0);
  for (const model::TensorSpec& spec : graph_.tensors) {
    release(spec.id);
    slot(spec.id).left = slot(spec.id).accesses;
  }
}

void TensorStore::begin(const model::Operation& op) {
  for (const model::TensorView& view : op.out) {
    if (!view.valid()) continue;
    Slot& target = slot(view.tensor);
    const model::TensorSpec& spec = graph_.tensor(view.tensor);
    if (target.data != nullptr || spec.role == model::TensorRole::scalar) continue;
    const std::size_t bytes = static_cast<std::size_t>(spec.elements()) * sizeof(float);
    try {
      target.block = pool_.take(bytes);
    } catch (const std::bad_alloc&) {
      throw EnvironmentError("allocate", fmt::format("{} bytes for {}", bytes, spec.name), "out of memory");
    }
    target.data = reinterpret_cast<float*>(target.block.data());
  }
}

void TensorStore::retire(const model::Operation& op) {
  for (const TensorId id : touched_[static_cast<std::size_t>(op.id.value)]) {
    if (--slot(id).left == 0) release(id);
  }
}

void TensorStore::release(TensorId id) {
  Slot& target = slot(id);
  if (target.block.empty()) return;
  pool_.give(std::move(target.block));
  target.data = nullptr;
}

kernels::Rows TensorStore::rows(const model::TensorView& view) {
  const model::TensorSpec& spec = graph_.tensor(view.tensor);
  float* data = slot(view.tensor).data;
  CLEAVE_ASSERT(data != nullptr, "tensor {} has no memory", spec.name);
  return {data + view.row0 * spec.cols + view.col0, view.rows, view.cols, spec.cols};
}

std::span<const std::int32_t> TensorStore::integers(const model::TensorView& view) const {
  const std::span<const std::int32_t> all =
      graph_.tensor(view.tensor).role == model::TensorRole::tokens ? tokens_ : targets_;
  return all.subspan(static_cast<std::size_t>(view.row0), static_cast<std::size_t>(view.rows));
}

double& TensorStore::scalar(TensorId id) { return scalars_[static_cast<std::size_t>(id.value)]; }

Parameter& TensorStore::parameter(TensorId id) {
  Parameter* found = slot(id).parameter;
  CLEAVE_ASSERT(found != nullptr, "{} is not a parameter", graph_.tensor(id).name);
  return *found;
}

}  // namespace cleave::server
