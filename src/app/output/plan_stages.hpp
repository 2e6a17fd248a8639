// How a layout in stages is shown: as a table of stages, what they hold and what binds them; as the JSON of `plan`; and
// as layout.json, from which the report draws it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/plan/stage_plan.hpp"

namespace cleave::app {

/// A stage beside what its devices' links and processors are taken for in a step. Times are of each resource alone.
struct StageFigures {
  std::string pieces;               ///< "h.0.attn .. h.1.mlp"
  bool tiles = false;               ///< it runs in tiles, and the other figures are 0
  Bytes least_memory, most_memory;  ///< that a replica reserves
  BytesPerSecond uplinks;           ///< of the replicas together
  Seconds weights;                  ///< until the slowest replica has them
  Seconds passes;                   ///< the results of all sequences over these uplinks
  Seconds processors;               ///< the passes' FLOP over the replicas' processors
  std::int64_t owners = 0;          ///< of its gradient
  Bytes slices;                     ///< most memory of one of them
  Seconds owner_links;              ///< longest that one of them receives operands and sends sums
  Bytes down, up;                   ///< that cross its devices' links, as planned
  std::string bound_by;             ///< the longest of these times
  [[nodiscard]] Seconds longest() const;
};

[[nodiscard]] std::vector<StageFigures> stage_figures(const plan::StageWork& whole, const plan::StagePlan& plan,
                                                      const std::vector<fleet::DeviceProfile>& devices);

/// One line a stage, and a last one that says which of them binds the step.
[[nodiscard]] std::string stage_table(const plan::StageWork& work, const plan::StagePlan& plan,
                                      const std::vector<fleet::DeviceProfile>& devices);

/// `chunk_tokens`, `stages` and `gradient_slices` of docs/interface.md. `graph` is the one that `work` was made of.
void add_stages(nlohmann::ordered_json& out, const model::StepGraph& graph, const plan::StageWork& whole,
                const plan::StagePlan& plan);

/// layout.json (docs/report.md): the stages with their figures, and what every device holds.
[[nodiscard]] nlohmann::ordered_json layout_json(const plan::StageWork& work, const plan::StagePlan& plan,
                                                 const std::vector<fleet::DeviceProfile>& devices);

}  // namespace cleave::app
