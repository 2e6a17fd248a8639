// Names of tensors in files of Hugging Face models, as their writers really leave them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "input/model_files.hpp"

namespace cleave::app {

namespace {

// Prefixes of the ForCausalLM state dict that a file of the bare model leaves out, longest first.
constexpr std::array kPrefixes{"model.decoder.", "transformer.", "model."};
// Of the masks and tables that older versions of transformers stored beside the parameters.
constexpr std::array kBuffers{".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "decoder.version"};

bool is_buffer(std::string_view name) {
  return std::ranges::any_of(kBuffers, [&](std::string_view end) { return name.ends_with(end); });
}

// The names that a file may give a parameter, likeliest first.
std::vector<std::string> names_of(const std::string& parameter, const model::ModelConfig& config) {
  std::vector<std::string> names{parameter};
  for (const std::string_view prefix : kPrefixes) {
    if (!parameter.starts_with(prefix)) continue;
    const std::string bare = parameter.substr(prefix.size());
    if (prefix == "model.decoder.") names.push_back("decoder." + bare);
    names.push_back(bare);
    break;
  }
  // Writers that store shared tensors once may keep the head's name.
  const bool is_embedding = parameter.ends_with("wte.weight") || parameter.ends_with("embed_tokens.weight");
  if (config.tie_embeddings && is_embedding) names.emplace_back("lm_head.weight");
  return names;
}

}  // namespace

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
    for (const std::string& name : names_of(spec.name, config)) {
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
    if (used.contains(tensor.name) || is_buffer(tensor.name) || tied_head) continue;
    report(fmt::format("tensor {} {} is not part of a {} model of this configuration", tensor.name,
                       checkpoint::to_string(tensor.shape), config.family));
  }
  if (!issues.empty()) throw InputError(std::move(issues));
  return place;
}

}  // namespace cleave::app
