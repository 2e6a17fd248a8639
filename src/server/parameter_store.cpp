// Initialisation, look-up and hash of the parameters.
#include "cleave/server/parameter_store.hpp"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/comm/frame.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::server {

namespace {

constexpr std::int64_t kDrawn = 1 << 16;  // elements that a thread draws at a time

std::vector<model::TensorSpec> specs_of(const model::StepGraph& graph) {
  std::vector<model::TensorSpec> specs;
  for (const TensorId id : graph.parameters()) specs.push_back(graph.tensor(id));
  return specs;
}

}  // namespace

std::vector<std::int64_t> Parameter::shape() const {
  if (vector) return {cols};
  return {rows, cols};
}

ParameterStore::ParameterStore(std::span<const model::TensorSpec> parameters) {
  for (const model::TensorSpec& spec : parameters) {
    Parameter parameter{.name = spec.name,
                        .rows = spec.rows,
                        .cols = spec.cols,
                        .vector = spec.vector,
                        .value = std::pmr::vector<float>(&comm::shared_memory()),
                        .exp_avg = {},
                        .exp_avg_sq = {}};
    parameter.value.resize(static_cast<std::size_t>(spec.elements()));
    parameters_.push_back(std::move(parameter));
  }
}

ParameterStore::ParameterStore(const model::StepGraph& graph) : ParameterStore(specs_of(graph)) {}

ParameterStore::ParameterStore(const model::StepGraph& graph, std::uint64_t seed, int threads) : ParameterStore(graph) {
  kernels::Parallel parallel(threads);
  std::uint32_t number = 0;
  for (const TensorId id : graph.parameters()) {
    const model::TensorSpec& spec = graph.tensor(id);
    std::pmr::vector<float>& value = parameters_[number].value;
    const Random random(seed, Purpose::parameter_init, number++);
    parallel.for_chunks(spec.elements(), kDrawn, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        value[static_cast<std::size_t>(i)] = static_cast<float>(
            spec.init_deviation > 0 ? spec.init_deviation * random.normal(static_cast<std::uint64_t>(i))
                                    : spec.init_value);
      }
    });
  }
}

Parameter& ParameterStore::at(std::string_view name) {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const Parameter& p) { return p.name == name; });
  CLEAVE_ASSERT(found != parameters_.end(), "no parameter {}", name);
  return *found;
}

const Parameter* ParameterStore::find(std::string_view name) const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const Parameter& p) { return p.name == name; });
  return found == parameters_.end() ? nullptr : &*found;
}

void ParameterStore::move_to_shared_memory() {
  for (Parameter& p : parameters_) p.value = std::pmr::vector<float>(p.value, &comm::shared_memory());
}

void ParameterStore::ensure_moments(const model::StepGraph& step) {
  for (const model::Operation& op : step.operations) {
    if (op.kind != model::OpKind::adamw) continue;
    Parameter& parameter = at(step.tensor(op.out[0].tensor).name);
    parameter.exp_avg.resize(parameter.value.size(), 0.0F);
    parameter.exp_avg_sq.resize(parameter.value.size(), 0.0F);
  }
}

std::uint64_t ParameterStore::hash() const {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const Parameter& parameter : parameters_) {
    XXH3_64bits_update(&state, parameter.name.data(), parameter.name.size());
    XXH3_64bits_update(&state, parameter.value.data(), parameter.value.size() * sizeof(float));
  }
  return XXH3_64bits_digest(&state);
}

Bytes ParameterStore::size() const {
  std::int64_t bytes = 0;
  for (const Parameter& p : parameters_) {
    bytes += static_cast<std::int64_t>((p.value.size() + p.exp_avg.size() + p.exp_avg_sq.size()) * sizeof(float));
  }
  return Bytes(bytes);
}

}  // namespace cleave::server
