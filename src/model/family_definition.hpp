// What a family's file gives the registry: its traits, presets, parameters, forward pass, and what its files look like.
//
// registry.cpp lists the families; nobody else knows their number. A family file holds nothing about training: the
// builder derives backward pass and update from the forward pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/hub_config.hpp"

namespace cleave::model {

class GraphBuilder;
class ParameterList;

/// How a linear layer stores its weight: y = x W (Conv1D of GPT-2) or y = x W^T (everybody else).
enum class Layout : std::uint8_t { in_out, out_in };

/// A published configuration.
struct Preset {
  const char* name;
  std::int64_t vocab_size, n_layer, n_head, n_kv_head, d_model, d_ff, seq_len;
  double rope_theta = 10000.0;
};

/// What the family's files at Hugging Face look like (hub_config.hpp); without `visit` there are none.
struct HubFormat {
  std::string class_name;            ///< of its ForCausalLM
  std::vector<std::string> buffers;  ///< ends of names of tensors that are no parameters
  void (*visit)(HubConfig& file, ModelConfig& config) = nullptr;
};

struct FamilyDefinition {
  FamilyTraits traits;
  Layout layout = Layout::out_in;
  std::string prefix;  ///< of most parameter names, e.g. "model.decoder."
  std::vector<Preset> presets;
  HubFormat hub;
  std::int64_t (*default_d_ff)(std::int64_t d_model) = nullptr;
  void (*declare)(ParameterList& list, const ModelConfig& config) = nullptr;  ///< the token embedding first
  void (*forward)(GraphBuilder& builder, const ModelConfig& config) = nullptr;
};

/// Requires: a registered name.
[[nodiscard]] const FamilyDefinition& definition_of(std::string_view family);

/// The usual feed-forward width.
[[nodiscard]] constexpr std::int64_t four_times(std::int64_t d_model) { return 4 * d_model; }

}  // namespace cleave::model
