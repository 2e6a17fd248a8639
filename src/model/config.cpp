// Presets, asked of the families that have them, and the legal ranges of every field.
#include "cleave/model/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "cleave/model/family.hpp"
#include "family_definition.hpp"

namespace cleave::model {

namespace {

// Upper limits: far above any model, low enough that no size in bytes, of a tensor or of the whole model, leaves 64
// bits (a layer has at most 4 d^2 + 3 d d_ff + ... parameters). Tokens are 32-bit.
constexpr std::int64_t kMaxVocabulary = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24;

}  // namespace

std::optional<ModelConfig> find_preset(std::string_view name) {
  for (const std::string& family : family_names()) {
    for (const Preset& preset : definition_of(family).presets) {
      if (name != preset.name) continue;
      ModelConfig config;
      config.family = family;
      config.vocab_size = preset.vocab_size;
      config.n_layer = preset.n_layer;
      config.n_head = preset.n_head;
      config.n_kv_head = preset.n_kv_head;
      config.d_model = preset.d_model;
      config.d_ff = preset.d_ff;
      config.seq_len = preset.seq_len;
      config.max_pos = preset.seq_len;
      config.tie_embeddings = traits_of(family).default_tied;
      config.norm_eps = 1e-5;
      config.rope_theta = preset.rope_theta;
      return config;
    }
  }
  return std::nullopt;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const std::string& family : family_names()) {
    for (const Preset& preset : definition_of(family).presets) names.emplace_back(preset.name);
  }
  return names;
}

std::vector<Issue> find_faults(const ModelConfig& config) {
  std::vector<Issue> issues;
  const auto report = [&issues](const char* key, std::string message, std::string hint = {}) {
    Issue issue;
    issue.key = key;
    issue.message = std::move(message);
    issue.hint = std::move(hint);
    issues.push_back(std::move(issue));
  };
  // True when the value is usable in the checks that combine several fields.
  const auto check_range = [&](const char* key, std::int64_t value, std::int64_t most) {
    if (value >= 1 && value <= most) return true;
    report(key, fmt::format("{} is not within 1 and {}", value, most));
    return false;
  };

  const std::vector<std::string> families = family_names();
  bool known = false;
  for (const std::string& family : families) known = known || family == config.family;
  if (!known) {
    report("family", fmt::format("'{}' is not a family", config.family),
           fmt::format("one of {}", fmt::join(families, ", ")));
  }
  check_range("vocab_size", config.vocab_size, kMaxVocabulary);
  check_range("n_layer", config.n_layer, kMaxLayers);
  const bool heads = check_range("n_head", config.n_head, kMaxWidth);
  const bool kv_heads = check_range("n_kv_head", config.n_kv_head, kMaxWidth);
  const bool width = check_range("d_model", config.d_model, kMaxWidth);
  check_range("d_ff", config.d_ff, kWidestFeedForward);
  const bool sequence = check_range("seq_len", config.seq_len, kMaxPositions);
  const bool positions = check_range("max_pos", config.max_pos, kMaxPositions);

  if (heads && width && config.d_model % config.n_head != 0) {
    report("n_head", fmt::format("d_model {} is not a multiple of n_head {}", config.d_model, config.n_head),
           "every head has d_model / n_head features");
  } else if (heads && width && known && !traits_of(config.family).has_positions && config.head_dim() % 2 != 0) {
    report("n_head", fmt::format("d_model / n_head is {}, an odd number", config.head_dim()),
           "rotary positions turn pairs of features");
  }
  if (heads && kv_heads) {
    if (known && !traits_of(config.family).grouped_query) {
      if (config.n_kv_head != config.n_head) {
        report("n_kv_head", fmt::format("{} is not n_head {}", config.n_kv_head, config.n_head),
               fmt::format("{} has no grouped-query attention; leave it out", config.family));
      }
    } else if (config.n_head % config.n_kv_head != 0) {
      report("n_kv_head", fmt::format("n_head {} is not a multiple of n_kv_head {}", config.n_head, config.n_kv_head),
             "every key/value head serves as many query heads as the others");
    }
  }
  if (sequence && positions && config.max_pos < config.seq_len) {
    report("max_pos", fmt::format("{} is less than seq_len {}", config.max_pos, config.seq_len),
           "the position table needs a row for every token of a sequence");
  }
  if (!(config.norm_eps > 0 && config.norm_eps < 1)) {
    report("norm_eps", fmt::format("{} is not between 0 and 1", config.norm_eps));
  }
  if (!(config.rope_theta >= 1 && std::isfinite(config.rope_theta))) {
    report("rope_theta", fmt::format("{} is not a finite number of at least 1", config.rope_theta));
  }
  return issues;
}

}  // namespace cleave::model
