// A family's parameters in the order of its Hugging Face state dict, with shapes and initial values.
//
// Initialisation is GPT-2's: N(0, 0.02) for matrices and embeddings, N(0, 0.02 / sqrt(2L)) for the two projections of
// each of the L layers that write to the residual stream (so that its variance does not grow with depth), gains 1,
// biases 0. Source: Radford et al. 2019, section 2.3; nanoGPT.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/model/graph.hpp"
#include "family_definition.hpp"

namespace cleave::model {

class ParameterList {
 public:
  explicit ParameterList(Layout layout, std::int64_t n_layer) : layout_(layout), n_layer_(n_layer) {}

  enum class Use : std::uint8_t { inner, residual };
  enum class Bias : std::uint8_t { none, zero };

  /// name.weight [rows, width]: token or position table, or untied head.
  void embedding(const std::string& name, std::int64_t rows, std::int64_t width);
  /// name.weight [n_in, n_out] or [n_out, n_in] by the family's layout, and name.bias [n_out].
  void linear(const std::string& name, std::int64_t n_in, std::int64_t n_out, Bias bias, Use use = Use::inner);
  /// name.weight [width] and, for a LayerNorm, name.bias [width].
  void norm(const std::string& name, std::int64_t width, Bias bias);

  [[nodiscard]] std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  void matrix(std::string name, std::int64_t rows, std::int64_t cols, double deviation);
  void vector(std::string name, std::int64_t width, double value);

  Layout layout_;
  std::int64_t n_layer_;
  std::vector<TensorSpec> specs_;
};

}  // namespace cleave::model
