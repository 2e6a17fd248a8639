// How `plan` shows a layout in stages: a table of stages, what they hold and what binds, and the same as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cleave/model/graph.hpp"
#include "cleave/plan/stage_plan.hpp"

namespace cleave::app {

/// One line a stage: pieces, weights, replicas, their uplinks and what they are taken for, owners of its gradient.
[[nodiscard]] std::string stage_table(const plan::StageWork& work, const plan::StagePlan& plan,
                                      const std::vector<fleet::DeviceProfile>& devices);

/// `stages`, `chunk_tokens` and `gradient_slices` of docs/interface.md.
void add_stages(nlohmann::ordered_json& out, const model::StepGraph& graph, const plan::StageWork& work,
                const plan::StagePlan& plan);

}  // namespace cleave::app
