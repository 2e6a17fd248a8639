// How the families state a model in a config.json of Hugging Face transformers. The keys stand in each family's file;
// what reads and writes JSON (app) goes through them as a HubConfig.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::model {

/// A config.json that a family goes through, key by key. One that is read fills in the values and collects faults; one
/// that is written states the values. Of several keys for one value the first is written, and any is read.
class HubConfig {
 public:
  using Keys = std::initializer_list<const char*>;
  virtual ~HubConfig() = default;

  /// `field` is the value's name in ModelConfig. Without `otherwise` a file must state it.
  virtual void integer(const char* field, Keys keys, std::int64_t& value, std::optional<std::int64_t> otherwise) = 0;
  virtual void number(const char* field, const char* key, double& value, double otherwise) = 0;
  /// The first word is written; a file that has none of the words is refused, one without the keys is not.
  virtual void word(Keys keys, std::initializer_list<const char*> words) = 0;

  /// A variant that the family does not have. Files that leave it out have `value`.
  struct Fixed {
    const char* key;
    bool value;
    bool written = false;  ///< to a file, for readers with another idea of what a file without it has
  };
  virtual void fixed(const Fixed& variant) = 0;
  /// The same of a size that follows from others; `why` tells what the family lacks.
  struct FixedSize {
    const char* key;
    std::int64_t value;
    const char* why;
    bool written = false;
  };
  virtual void fixed_size(const FixedSize& size) = 0;

  /// Repeats a value for older readers: written, never read.
  virtual void repeat(const char* key, std::int64_t value) = 0;

  /// An object about rotary positions, where there is one: {"rope_type": "default", "rope_theta": ...}.
  virtual void rotary(const char* key, double& rope_theta) = 0;

 protected:
  HubConfig() = default;
  HubConfig(const HubConfig&) = default;
  HubConfig& operator=(const HubConfig&) = default;
};

/// Families that have such files, by the name of their `model_type`.
[[nodiscard]] std::vector<std::string> hub_families();

/// The name of a family's ForCausalLM class. Requires: a name of hub_families().
[[nodiscard]] std::string hub_class_of(std::string_view family);

/// Goes through the keys of config.family, but for those that all families have: model_type, architectures, vocab_size
/// and tie_word_embeddings.
/// Requires: config.family is a name of hub_families().
void visit_hub_config(HubConfig& file, ModelConfig& config);

/// The names that files of the family give a parameter, likeliest first. Files leave out the prefix of the ForCausalLM
/// state dict ("h.0.ln_1.weight" for "transformer.h.0.ln_1.weight") or a part of it, and may keep a tied embedding
/// under the head's name. Requires: one of parameters_of(config).
[[nodiscard]] std::vector<std::string> hub_names_of(const TensorSpec& parameter, const ModelConfig& config);

/// Whether a tensor's name is that of a mask or table which older versions stored beside the family's parameters.
[[nodiscard]] bool is_hub_buffer(std::string_view name, std::string_view family);

}  // namespace cleave::model
