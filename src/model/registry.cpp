// The list of families, and what family.hpp offers on top of it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "builder.hpp"
#include "family_definition.hpp"
#include "parameter_list.hpp"
#include "row_groups.hpp"

// One line for each family: the function of that name, in a file of its own, defines it.
#define CLEAVE_MODEL_FAMILIES(X) \
  X(gpt2)                        \
  X(opt)                         \
  X(llama)

namespace cleave::model {

#define CLEAVE_DECLARE(name) FamilyDefinition name();
CLEAVE_MODEL_FAMILIES(CLEAVE_DECLARE)
#undef CLEAVE_DECLARE

namespace {

const std::vector<std::pair<std::string, FamilyDefinition>>& registry() {
#define CLEAVE_LIST(name) {#name, name()},
  static const std::vector<std::pair<std::string, FamilyDefinition>> families{CLEAVE_MODEL_FAMILIES(CLEAVE_LIST)};
#undef CLEAVE_LIST
  return families;
}

}  // namespace

const FamilyDefinition& definition_of(std::string_view family) {
  const auto found = std::ranges::find(registry(), family, &std::pair<std::string, FamilyDefinition>::first);
  CLEAVE_ASSERT(found != registry().end(), "no family '{}'", family);
  return found->second;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& [name, family] : registry()) names.push_back(name);
  return names;
}

FamilyTraits traits_of(std::string_view family) { return definition_of(family).traits; }

std::int64_t default_d_ff(std::string_view family, std::int64_t d_model) {
  return definition_of(family).default_d_ff(d_model);
}

std::vector<TensorSpec> parameters_of(const ModelConfig& config) {
  const FamilyDefinition& family = definition_of(config.family);
  ParameterList list(family.layout, config.n_layer);
  family.declare(list, config);
  return list.take();
}

StepGraph build_step(const ModelConfig& config, const StepOptions& options) {
  const std::vector<Issue> faults = find_faults(config);
  CLEAVE_ASSERT(faults.empty(), "{}", to_string(faults.front()));
  CLEAVE_ASSERT(options.batch >= 1 && options.loss_rows >= 0, "batch {}, loss_rows {}", options.batch,
                options.loss_rows);
  const FamilyDefinition& family = definition_of(config.family);
  GraphBuilder builder(config, options, family);
  family.forward(builder, config);
  return with_row_groups(builder.finish(), options.row_groups);
}

}  // namespace cleave::model
