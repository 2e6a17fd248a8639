// Settings as text: numbers with as many digits as it takes to tell them apart.
#include "input/run_settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace cleave::app {

RunSettings run_settings(const Input& input, const TrainingData& data, const std::string& gemm_kernels) {
  const server::TrainSettings& t = input.train;
  RunSettings settings{
      {"data", fmt::format("{:016x}", data.batches->digest())},
      {"train.batch", fmt::format("{}", input.step.batch)},
      {"train.seed", fmt::format("{}", t.seed)},
      {"train.lr", fmt::format("{}", t.lr)},
      {"train.min_lr", fmt::format("{}", t.min_lr)},
      {"train.warmup_steps", fmt::format("{}", t.warmup_steps)},
      {"train.lr_decay_steps", fmt::format("{}", t.lr_decay_steps)},
      {"train.beta1", fmt::format("{}", t.beta1)},
      {"train.beta2", fmt::format("{}", t.beta2)},
      {"train.adam_eps", fmt::format("{}", t.adam_eps)},
      {"train.weight_decay", fmt::format("{}", t.weight_decay)},
      {"train.grad_clip", fmt::format("{}", t.grad_clip)},
      {"train.freeze", fmt::format("[{}]", fmt::join(input.step.freeze, ", "))},
      {"plan.wire", std::string(name_of(input.step.wire))},
      {"plan.boundary", std::string(input.step.boundary ? name_of(*input.step.boundary) : "wire")},
      {"server.gemm_kernels", gemm_kernels},
  };
  // Reference batches are used as they are.
  if (input.data.kind != DataKind::batches) settings["data.val_fraction"] = fmt::format("{}", input.data.val_fraction);
  return settings;
}

std::string to_text(const RunSettings& settings) {
  return nlohmann::json(settings).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RunSettings settings_from(const std::string& text) {
  RunSettings settings;
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) return settings;
  for (const auto& [key, value] : object.items()) {
    if (value.is_string()) settings[key] = value.get<std::string>();
  }
  return settings;
}

std::vector<std::string> differences(const RunSettings& then, const RunSettings& now) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : now) {
    const auto old = then.find(key);
    if (old != then.end() && old->second != value) lines.push_back(fmt::format("{} {} -> {}", key, old->second, value));
  }
  return lines;
}

}  // namespace cleave::app
