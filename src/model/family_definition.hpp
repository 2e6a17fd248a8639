// What a family's file gives the registry: its traits, its parameters and its forward pass.
//
// registry.cpp lists the families; nobody else knows their number. A family file holds nothing about training: the
// builder derives backward pass and update from the forward pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/family.hpp"

namespace cleave::model {

class GraphBuilder;
class ParameterList;

/// How a linear layer stores its weight: y = x W (Conv1D of GPT-2) or y = x W^T (everybody else).
enum class Layout : std::uint8_t { in_out, out_in };

struct FamilyDefinition {
  FamilyTraits traits;
  Layout layout = Layout::out_in;
  std::string prefix;  ///< of most parameter names, e.g. "model.decoder."
  std::int64_t (*default_d_ff)(std::int64_t d_model) = nullptr;
  void (*declare)(ParameterList& list, const ModelConfig& config) = nullptr;
  void (*forward)(GraphBuilder& builder, const ModelConfig& config) = nullptr;
};

/// Requires: a registered name.
[[nodiscard]] const FamilyDefinition& definition_of(std::string_view family);

/// The usual feed-forward width.
[[nodiscard]] constexpr std::int64_t four_times(std::int64_t d_model) { return 4 * d_model; }

}  // namespace cleave::model
