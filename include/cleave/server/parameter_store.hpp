// ParameterStore: the state that training carries from step to step: parameters and AdamW's moments, by name.
//
// Owned by the trainer; graphs for training and for evaluation bind to the same store. Names and shapes are those of
// the Hugging Face state dict, as the model family declares them.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::server {

/// One parameter. value, exp_avg, exp_avg_sq: rows * cols floats, row-major; the moments are empty for frozen ones.
struct Parameter {
  std::string name;
  std::int64_t rows = 0, cols = 0;
  bool vector = false;
  std::pmr::vector<float> value;
  std::vector<float> exp_avg, exp_avg_sq;

  /// Shape as files have it: [cols] for a vector, otherwise [rows, cols].
  [[nodiscard]] std::vector<std::int64_t> shape() const;
};

/// See the file comment.
class ParameterStore {
 public:
  ParameterStore() = default;

  /// Makes every parameter of `graph`, all zero.
  explicit ParameterStore(const model::StepGraph& graph);

  /// Makes the parameters of model::parameters_of(), all zero.
  explicit ParameterStore(std::span<const model::TensorSpec> parameters);

  /// Makes every parameter of `graph`, drawn as its tensors say: element i of parameter number p is
  /// init_deviation * normal(i) of the stream (seed, parameter_init, p), or init_value; the same for any number of
  /// threads. About 80 ns an element on one.
  ParameterStore(const model::StepGraph& graph, std::uint64_t seed, int threads = 1);

  [[nodiscard]] std::span<Parameter> parameters() { return parameters_; }
  [[nodiscard]] std::span<const Parameter> parameters() const { return parameters_; }
  /// Requires: there is a parameter of that name.
  [[nodiscard]] Parameter& at(std::string_view name);
  [[nodiscard]] const Parameter* find(std::string_view name) const;

  /// Moves the values to comm::shared_memory(), where devices of this host can read them in place. To be called once a
  /// transport shares memory. Errors: std::bad_alloc.
  void move_to_shared_memory();

  /// Makes zero moments for the parameters that `step` updates and that have none yet.
  void ensure_moments(const model::StepGraph& step);

  /// One number over the bytes of all parameters, in order: equal if and only if (but for 2^-64) every bit is.
  [[nodiscard]] std::uint64_t hash() const;
  /// Bytes of values and moments.
  [[nodiscard]] Bytes size() const;

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace cleave::server
