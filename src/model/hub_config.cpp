// What files of Hugging Face models look like: asked of the family's definition.
#include "cleave/model/hub_config.hpp"

#include <algorithm>

#include "family_definition.hpp"

namespace cleave::model {

std::vector<std::string> hub_families() {
  std::vector<std::string> names = family_names();
  std::erase_if(names, [](const std::string& name) { return definition_of(name).hub.visit == nullptr; });
  return names;
}

std::string hub_class_of(std::string_view family) { return definition_of(family).hub.class_name; }

void visit_hub_config(HubConfig& file, ModelConfig& config) { definition_of(config.family).hub.visit(file, config); }

// Of "model.decoder.layers.0.fc1.weight": also "decoder.layers.0.fc1.weight" and "layers.0.fc1.weight".
std::vector<std::string> hub_names_of(const TensorSpec& parameter, const ModelConfig& config) {
  std::vector<std::string> names{parameter.name};
  const std::string& prefix = definition_of(config.family).prefix;
  if (parameter.name.starts_with(prefix)) {
    for (std::size_t dot = prefix.find('.'); dot != std::string::npos; dot = prefix.find('.', dot + 1))
      names.push_back(parameter.name.substr(dot + 1));
  }
  // Writers that store shared tensors once may keep the head's name. The token embedding is declared first.
  if (config.tie_embeddings && parameter.id.value == 0) names.emplace_back("lm_head.weight");
  return names;
}

bool is_hub_buffer(std::string_view name, std::string_view family) {
  return std::ranges::any_of(definition_of(family).hub.buffers,
                             [&](const std::string& end) { return name.ends_with(end); });
}

}  // namespace cleave::model
