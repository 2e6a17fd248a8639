// Names of tensors in files of Hugging Face models, as their writers really leave them.
#include <fmt/format.h>

#include <set>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/hub_config.hpp"
#include "input/model_files.hpp"

namespace cleave::app {

std::map<std::string, std::string> match_tensors(const model::ModelConfig& config,
                                                 const std::vector<checkpoint::SafetensorsInfo>& found,
                                                 const std::string& file) {
  std::map<std::string, const checkpoint::SafetensorsInfo*> by_name;
  for (const checkpoint::SafetensorsInfo& tensor : found) by_name[tensor.name] = &tensor;

  std::vector<Issue> issues;
  const auto report = [&](std::string message) {
    issues.push_back({.file = file, .line = 0, .key = {}, .message = std::move(message), .hint = {}});
  };
  std::map<std::string, std::string> place;
  std::set<std::string> used;
  for (const model::TensorSpec& spec : model::parameters_of(config)) {
    const checkpoint::SafetensorsInfo* tensor = nullptr;
    for (const std::string& name : model::hub_names_of(spec, config)) {
      const auto at = by_name.find(name);
      if (at == by_name.end()) continue;
      tensor = at->second;
      break;
    }
    const checkpoint::Shape shape =
        spec.vector ? checkpoint::Shape{spec.cols} : checkpoint::Shape{spec.rows, spec.cols};
    if (tensor == nullptr) {
      report(fmt::format("tensor {} {} is missing", spec.name, checkpoint::to_string(shape)));
      continue;
    }
    used.insert(tensor->name);
    if (tensor->shape != shape) {
      report(fmt::format("tensor {} is {}, expected {}", tensor->name, checkpoint::to_string(tensor->shape),
                         checkpoint::to_string(shape)));
    }
    place[spec.name] = tensor->name;
  }
  for (const checkpoint::SafetensorsInfo& tensor : found) {
    const bool tied_head = config.tie_embeddings && tensor.name == "lm_head.weight";
    if (used.contains(tensor.name) || model::is_hub_buffer(tensor.name, config.family) || tied_head) continue;
    report(fmt::format("tensor {} {} is not part of a {} model of this configuration", tensor.name,
                       checkpoint::to_string(tensor.shape), config.family));
  }
  if (!issues.empty()) throw InputError(std::move(issues));
  return place;
}

}  // namespace cleave::app
