// cleave import, cleave export: between safetensors under Hugging Face names and checkpoints.
//
// A file that cleave wrote states its whole configuration in its metadata; any other is read with the config.json
// beside it. Tensors are read straight into the parameters, one at a time.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/checkpoint/safetensors.hpp"
#include "cleave/data/tokenizer.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/hub_config.hpp"
#include "cleave/server/checkpointing.hpp"
#include "cli/one_file.hpp"
#include "commands/commands.hpp"
#include "input/model_files.hpp"

namespace cleave::app {

namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigKey = "cleave.config";
constexpr const char* kTokenizerKey = "cleave.tokenizer";

nlohmann::json json_of(const model::ModelConfig& config) {
  nlohmann::json out(nlohmann::json::value_t::object);
  for (const auto& [name, value] : server::attributes_of(config)) {
    std::visit([&, &key = name](const auto& v) { out[key] = v; }, value);
  }
  return out;
}

checkpoint::Attributes attributes_of(const nlohmann::json& object) {
  checkpoint::Attributes attributes;
  for (const auto& [name, value] : object.items()) {
    if (value.is_string()) attributes[name] = value.get<std::string>();
    if (value.is_number_integer()) attributes[name] = value.get<std::int64_t>();
    if (value.is_number_float()) attributes[name] = value.get<double>();
  }
  return attributes;
}

model::ModelConfig config_of(const checkpoint::SafetensorsFile& file, const std::string& from) {
  const auto stated = file.metadata().find(kConfigKey);
  if (stated != file.metadata().end()) {
    const nlohmann::json config = nlohmann::json::parse(stated->second, nullptr, false);
    if (!config.is_object()) throw InputError(fmt::format("{}: the configuration in its metadata is damaged", from));
    return server::config_from(attributes_of(config), from);
  }
  const fs::path beside = (fs::is_directory(from) ? fs::path(from) : fs::path(from).parent_path()) / "config.json";
  if (!fs::exists(beside)) {
    throw InputError(fmt::format("{} does not state its configuration, and there is no {}", from, beside.string()),
                     "put the model's config.json beside it");
  }
  return read_hub_config(beside);
}

// Leaves a config.json that is there alone: it may be another model's, and the file states its own in its metadata.
void export_config(const fs::path& beside, const model::ModelConfig& config) {
  if (std::ranges::count(model::hub_families(), config.family) == 0) {
    std::printf("no config.json: Hugging Face has none for %s\n", config.family.c_str());
    return;
  }
  if (!fs::exists(beside)) {
    replace_file(beside, hub_config_of(config));
    return;
  }
  model::ModelConfig here = config;
  here.seq_len = here.max_pos;
  try {
    if (read_hub_config(beside) == here) return;
  } catch (const InputError&) {
    // Of a family that cleave does not know: certainly another model's.
  }
  std::printf("%s describes another model and was left as it is\n", beside.c_str());
}

}  // namespace

int export_model(const CommandLine& line) {
  const std::string& from = line.files[0];
  refuse_one_file(from, line.files[1]);
  const checkpoint::Header header = checkpoint::read_header(from);
  const model::ModelConfig config = server::config_from(header.attributes, from);
  const std::vector<model::TensorSpec> specs = model::parameters_of(config);
  server::ParameterStore parameters{std::span(specs)};
  server::load_parameters(from, parameters);
  std::map<std::string, std::string> metadata{{"format", "pt"}, {kConfigKey, json_of(config).dump()}};
  if (const auto tokenizer = checkpoint::find_text(header.state, "tokenizer")) metadata[kTokenizerKey] = *tokenizer;
  std::vector<checkpoint::TensorView> views;
  for (const server::Parameter& p : parameters.parameters()) views.push_back({p.name, p.shape(), p.value});
  const fs::path to = line.files[1];
  checkpoint::write_safetensors(to, views, line.dtype == "bf16" ? DType::bf16 : DType::f32, metadata);
  export_config(to.parent_path() / "config.json", config);
  std::printf("%s: %zu tensors as %s\n", to.c_str(), views.size(), line.dtype.c_str());
  return 0;
}

int import_model(const CommandLine& line) {
  const std::string& from = line.files[0];
  refuse_one_file(from, line.files[1]);
  const checkpoint::SafetensorsFile file(from);
  const model::ModelConfig config = config_of(file, from);
  // Before memory is taken: the configuration may be a stranger's, the file's tensors are as large as the file.
  const std::map<std::string, std::string> places = match_tensors(config, file.tensors(), from);
  std::string tokenizer;
  if (const auto stated = file.metadata().find(kTokenizerKey); stated != file.metadata().end()) {
    tokenizer = stated->second;
    if (!tokenizer.empty()) (void)data::parse_tokenizer(tokenizer);
  }
  const std::vector<model::TensorSpec> specs = model::parameters_of(config);
  server::ParameterStore parameters{std::span(specs)};
  for (server::Parameter& p : parameters.parameters()) file.read(places.at(p.name), p.value);
  server::save_checkpoint(line.files[1], parameters, config, {.step = 0, .seed = 0, .tokenizer = tokenizer});
  std::printf("%s: %s, %zu tensors\n", line.files[1].c_str(), config.family.c_str(), specs.size());
  return 0;
}

}  // namespace cleave::app
