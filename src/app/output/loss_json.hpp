// A loss of blocks as metrics.jsonl and simulate --json tell it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cleave/sched/scheduler.hpp"

namespace cleave::app {

/// `operation`: its name, or its type where all of that type are alike.
[[nodiscard]] inline nlohmann::ordered_json to_json(const sched::Loss& loss, const std::string& operation) {
  return {{"operation", operation},
          {"at_s", loss.at.value()},
          {"devices", loss.devices},
          {"blocks", loss.blocks},
          {"operation_s", loss.operation.value()},
          {"detection_s", loss.detection.value()},
          {"planning_s", loss.planning.value()},
          {"resending_s", loss.resending.value()},
          {"recomputing_s", loss.recomputing.value()},
          {"added_s", loss.added.value()}};
}

}  // namespace cleave::app
