// The registry of model families. A new family is one file in src/model/ and one line in registry.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::model {

/// Builds the DAG of one step: forward, loss and, when training, backward and update.
/// With every parameter frozen a training step is its forward pass and loss, and grad_norm is invalid.
/// Requires: find_faults(config) and, but for all frozen, find_faults(config, options) are empty.
/// Complexity: linear in layers and loss chunks; about 10 ms for 80 layers.
[[nodiscard]] StepGraph build_step(const ModelConfig& config, const StepOptions& options);

/// The parameters of a model without its graph: Hugging Face names, order and shapes; ids are indices.
/// Requires: find_faults(config) is empty.
[[nodiscard]] std::vector<TensorSpec> parameters_of(const ModelConfig& config);

/// The patterns of `freeze` that match no parameter name (`*` any run of characters, `?` any one), in their order.
[[nodiscard]] std::vector<std::string> find_unmatched_freeze(const ModelConfig& config,
                                                             const std::vector<std::string>& patterns);

/// What is wrong with the options of a step: a batch out of range, freeze patterns that match nothing, nothing left to
/// train. Keys are the bare names of the fields, which are those of the input's `train` section.
/// Requires: find_faults(config) is empty.
[[nodiscard]] std::vector<Issue> find_faults(const ModelConfig& config, const StepOptions& options);

/// Names of the families, in order of registration.
[[nodiscard]] std::vector<std::string> family_names();

/// What a family fixes, as reference files state it, and its defaults.
struct FamilyTraits {
  std::string activation;       ///< "gelu_new", "relu", "silu"
  std::int64_t pos_offset = 0;  ///< first row of the position table that is used
  bool has_positions = true;    ///< learned position table
  bool grouped_query = false;   ///< n_kv_head may differ from n_head
  bool default_tied = true;     ///< tie_embeddings where the input does not say
};
/// Requires: a name of family_names().
[[nodiscard]] FamilyTraits traits_of(std::string_view family);

/// Feed-forward width where the input does not say: 4d; Llama: 8/3 d rounded up to a multiple of 8.
/// Requires: a name of family_names().
[[nodiscard]] std::int64_t default_d_ff(std::string_view family, std::int64_t d_model);

}  // namespace cleave::model
