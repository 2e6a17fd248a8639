// Lifetimes of activations, and views of them.
#include "tensor_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cleave/base/error.hpp"

namespace cleave::server {

TensorStore::TensorStore(const model::StepGraph& graph, ParameterStore& parameters, BlockPool& pool)
    : graph_(graph), pool_(pool), lifetimes_(graph), slots_(graph.tensors.size()), scalars_(graph.tensors.size(), 0.0) {
  for (const model::TensorSpec& spec : graph.tensors) {
    if (spec.role != model::TensorRole::parameter) continue;
    Slot& bound = slot(spec.id);
    bound.parameter = &parameters.at(spec.name);
    bound.data = bound.parameter->value.data();
    CLEAVE_ASSERT(static_cast<std::int64_t>(bound.parameter->value.size()) == spec.elements(), "shape of {}",
                  spec.name);
  }
}

TensorStore::~TensorStore() {
  for (const model::TensorSpec& spec : graph_.tensors) release(spec.id);
}

void TensorStore::begin_step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  tokens_ = tokens;
  targets_ = targets;
  std::fill(scalars_.begin(), scalars_.end(), 0.0);
  for (const model::TensorSpec& spec : graph_.tensors) release(spec.id);
  lifetimes_.begin_step();
}

void TensorStore::begin(const model::Operation& op) {
  lifetimes_.begin(op, [&](TensorId id) { need(id); });
}

void TensorStore::need(TensorId id) {
  Slot& target = slot(id);
  if (target.data != nullptr) return;
  const model::TensorSpec& spec = graph_.tensor(id);
  const std::size_t bytes = static_cast<std::size_t>(spec.elements()) * sizeof(float);
  try {
    target.block = pool_.take(bytes);
  } catch (const std::bad_alloc&) {
    throw EnvironmentError("allocate", fmt::format("{} bytes for {}", bytes, spec.name), "out of memory");
  }
  target.data = reinterpret_cast<float*>(target.block.data());
}

void TensorStore::retire(const model::Operation& op) {
  lifetimes_.retire(op, [&](TensorId id) { release(id); });
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
