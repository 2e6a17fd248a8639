// cleave import, cleave export: between safetensors under Hugging Face names and checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/checkpoint/safetensors.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/checkpointing.hpp"
#include "commands.hpp"

namespace cleave::app {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMetadataKey = "cleave.config";

nlohmann::json json_of(const model::ModelConfig& config) {
  nlohmann::json out;
  for (const auto& [name, value] : server::attributes_of(config)) {
    std::visit([&, &key = name](const auto& v) { out[key] = v; }, value);
  }
  return out;
}

checkpoint::Attributes attributes_of(const nlohmann::json& json) {
  checkpoint::Attributes attributes;
  for (const auto& [name, value] : json.items()) {
    if (value.is_string()) attributes[name] = value.get<std::string>();
    if (value.is_number_integer()) attributes[name] = value.get<std::int64_t>();
    if (value.is_number_float()) attributes[name] = value.get<double>();
  }
  return attributes;
}

}  // namespace

int export_model(const CommandLine& line) {
  const std::string& from = line.files[0];
  const checkpoint::Header header = checkpoint::read_header(from);
  const model::ModelConfig config = server::config_from(header.attributes, from);
  const checkpoint::Snapshot snapshot = checkpoint::read_snapshot(from);
  std::map<std::string, std::string> metadata{{"format", "pt"}, {kMetadataKey, json_of(config).dump()}};
  if (const auto tokenizer = checkpoint::find_text(header.state, "tokenizer"))
    metadata["cleave.tokenizer"] = *tokenizer;
  checkpoint::write_safetensors(line.files[1], checkpoint::views_of(snapshot.model),
                                line.dtype == "bf16" ? DType::bf16 : DType::f32, metadata);
  std::printf("%s: %zu tensors as %s\n", line.files[1].c_str(), snapshot.model.size(), line.dtype.c_str());
  return 0;
}

int import_model(const CommandLine& line) {
  const std::string& from = line.files[0];
  const checkpoint::SafetensorsFile file(from);
  const auto stated = file.metadata().find(kMetadataKey);
  if (stated == file.metadata().end())
    throw InputError(fmt::format("{} does not state its configuration", from),
                     "only files that cleave exported can be imported without a config.json");
  const nlohmann::json json = nlohmann::json::parse(stated->second, nullptr, false);
  if (!json.is_object()) throw InputError(fmt::format("{}: the configuration in its metadata is damaged", from));
  const model::ModelConfig config = server::config_from(attributes_of(json), from);
  server::ParameterStore parameters(model::build_step(
      config, {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0}));
  std::vector<checkpoint::TensorInfo> expected, found;
  for (const server::Parameter& p : parameters.parameters()) expected.push_back({p.name, p.shape()});
  for (const checkpoint::SafetensorsInfo& t : file.tensors()) found.push_back({t.name, t.shape});
  const std::vector<std::string> mismatch = checkpoint::describe_mismatch(expected, found);
  if (!mismatch.empty()) {
    std::vector<Issue> issues;
    for (const std::string& text : mismatch)
      issues.push_back({.file = from, .line = 0, .key = {}, .message = text, .hint = {}});
    throw InputError(issues);
  }
  for (server::Parameter& p : parameters.parameters()) file.read(p.name, p.value);
  const auto tokenizer = file.metadata().find("cleave.tokenizer");
  server::save_checkpoint(
      line.files[1], parameters, config,
      {.step = 0, .seed = 0, .tokenizer = tokenizer == file.metadata().end() ? std::string() : tokenizer->second});
  std::printf("%s: %zu tensors\n", line.files[1].c_str(), expected.size());
  return 0;
}

}  // namespace cleave::app
