// The registry of model families. A new family is one file in src/model/ and one line in registry.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::model {

/// Builds the DAG of one step: forward, loss and, when training, backward and update.
/// Requires: find_faults(config) is empty; options.batch >= 1.
[[nodiscard]] StepGraph build_step(const ModelConfig& config, const StepOptions& options);

/// Names of the families, in order of registration.
[[nodiscard]] std::vector<std::string> family_names();

/// What a family fixes: activation name and position offset, as reference files state them.
struct FamilyTraits {
  std::string activation;          ///< "gelu_new", "relu", "silu"
  std::int64_t pos_offset = 0;     ///< first row of the position table that is used
  bool has_positions = true;       ///< learned position table
  bool grouped_query = false;      ///< n_kv_head may differ from n_head
  bool default_tied = true;
};
[[nodiscard]] FamilyTraits traits_of(std::string_view family);

/// Default feed-forward width of a family for a model width: 4d, or Llama's 8/3 d rounded up to a multiple of 8... see
/// the family's file.
[[nodiscard]] std::int64_t default_d_ff(std::string_view family, std::int64_t d_model);

}  // namespace cleave::model
