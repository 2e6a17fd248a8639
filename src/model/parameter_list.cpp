// See parameter_list.hpp.
#include "parameter_list.hpp"

#include <cmath>
#include <utility>

namespace cleave::model {

namespace {
constexpr double kDeviation = 0.02;  // GPT-2's initializer_range
}

void ParameterList::embedding(const std::string& name, std::int64_t rows, std::int64_t width) {
  matrix(name + ".weight", rows, width, kDeviation);
}

void ParameterList::linear(const std::string& name, std::int64_t n_in, std::int64_t n_out, Bias bias, Use use) {
  const double deviation =
      use == Use::residual ? kDeviation / std::sqrt(2.0 * static_cast<double>(n_layer_)) : kDeviation;
  if (layout_ == Layout::in_out) {
    matrix(name + ".weight", n_in, n_out, deviation);
  } else {
    matrix(name + ".weight", n_out, n_in, deviation);
  }
  if (bias == Bias::zero) vector(name + ".bias", n_out, 0);
}

void ParameterList::norm(const std::string& name, std::int64_t width, Bias bias) {
  vector(name + ".weight", width, 1);
  if (bias == Bias::zero) vector(name + ".bias", width, 0);
}

void ParameterList::matrix(std::string name, std::int64_t rows, std::int64_t cols, double deviation) {
  TensorSpec spec;
  spec.id = TensorId(static_cast<std::int64_t>(specs_.size()));
  spec.name = std::move(name);
  spec.role = TensorRole::parameter;
  spec.rows = rows;
  spec.cols = cols;
  spec.init_deviation = deviation;
  specs_.push_back(std::move(spec));
}

void ParameterList::vector(std::string name, std::int64_t width, double value) {
  matrix(std::move(name), 1, width, 0);
  specs_.back().vector = true;
  specs_.back().init_value = value;
}

}  // namespace cleave::model
