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

/// A config.json as a family visits it, key by key. Implementations: a reader, which sets the values and collects
/// faults, and a writer, which stores them. Where a value has several keys, the writer uses the first, the reader takes
/// any of them.
class HubConfig {
 public:
  using Keys = std::initializer_list<const char*>;
  virtual ~HubConfig() = default;

  /// A value; `field` is its name in ModelConfig. `otherwise`: the value of a file without the key; none: the key is
  /// required.
  virtual void integer(const char* field, Keys keys, std::int64_t& value, std::optional<std::int64_t> otherwise) = 0;
  virtual void number(const char* field, const char* key, double& value, double otherwise) = 0;
  /// A word that the family fixes. The writer stores the first word. The reader refuses a file whose value is none of
  /// the words; the key may be absent.
  virtual void word(Keys keys, std::initializer_list<const char*> words) = 0;

  /// A switch that the family supports in one position only: the reader refuses a file with any other value.
  struct Fixed {
    const char* key;
    bool value;            ///< also what a file without the key means
    bool written = false;  ///< the writer stores it, for readers with another default
  };
  virtual void fixed(const Fixed& variant) = 0;
  /// The same for a size that follows from other values.
  struct FixedSize {
    const char* key;
    std::int64_t value;    ///< also what a file without the key means
    const char* why;       ///< for the message: what the family lacks
    bool written = false;  ///< as Fixed
  };
  virtual void fixed_size(const FixedSize& size) = 0;

  /// A second key for a value, for older readers: written, never read.
  virtual void repeat(const char* key, std::int64_t value) = 0;

  /// An optional object about rotary positions: {"rope_type": "default", "rope_theta": ...}.
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
