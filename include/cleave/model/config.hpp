// The architecture of a transformer: what tells one model from another, and nothing about how it is trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/error.hpp"

namespace cleave::model {

/// Largest d_ff: indices of a layer's products stay far from the end of their type.
inline constexpr std::int64_t kWidestFeedForward = std::int64_t{1} << 22;

/// B batch, T sequence, V vocabulary, L layers, H heads, K key/value heads, d model width, f feed-forward width.
struct ModelConfig {
  std::string family = "gpt2";  ///< a name of the registry (family.hpp)
  std::int64_t vocab_size = 256;
  std::int64_t n_layer = 4;
  std::int64_t n_head = 4;
  std::int64_t n_kv_head = 4;  ///< fewer than n_head: grouped-query attention (llama)
  std::int64_t d_model = 128;
  std::int64_t d_ff = 512;
  std::int64_t seq_len = 64;  ///< length of a training sequence
  std::int64_t max_pos = 64;  ///< rows of the position table, where the family has one; >= seq_len
  bool tie_embeddings = true;
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;

  [[nodiscard]] std::int64_t head_dim() const { return d_model / n_head; }
  bool operator==(const ModelConfig&) const = default;
};

/// The published configuration of a preset, e.g. "opt-13b"; none for an unknown name.
[[nodiscard]] std::optional<ModelConfig> find_preset(std::string_view name);

/// Every preset name, in the order of the documentation.
[[nodiscard]] std::vector<std::string> preset_names();

/// What is wrong with a configuration; empty when it can be built. Keys are the bare names of the fields ("n_head"):
/// the caller puts the place in front (`model.` in an input, nothing for a file's attributes).
[[nodiscard]] std::vector<Issue> find_faults(const ModelConfig& config);

}  // namespace cleave::model
