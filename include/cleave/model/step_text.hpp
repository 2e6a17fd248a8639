// A training step as text, so that another process builds the same StepGraph: the architecture, the batch, what is not
// trained and the types in which it travels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::model {

/// What a device must know to build the graph of a step in stages.
struct StepText {
  ModelConfig config;
  std::int64_t batch = 1;
  std::vector<std::string> freeze;
  DType wire = DType::f32;
  std::optional<DType> boundary{};  ///< StepOptions::boundary
  bool operator==(const StepText&) const = default;
};

/// One line a field, "name value"; real numbers in full.
[[nodiscard]] std::string to_text(const StepText& step);
/// None where the text is malformed or says what cannot be built. Text may come from anywhere.
[[nodiscard]] std::optional<StepText> parse_step_text(std::string_view text);

/// Options of the graph from whose pieces a step in stages is made: one row group, the loss in one chunk. `clip`: as
/// StepOptions::clip.
[[nodiscard]] StepOptions options_of_stages(const StepText& step, bool clip);
/// The graph of options_of_stages(), for devices. Devices do not update parameters, and pieces do not depend on
/// clipping. Requires: as build_step(). Errors: InputError.
[[nodiscard]] StepGraph graph_of_stages(const StepText& step);

}  // namespace cleave::model
