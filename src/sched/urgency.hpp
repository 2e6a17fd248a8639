// Which operations go first.
#pragma once

#include <vector>

#include "cleave/model/graph.hpp"

namespace cleave::sched {

/// The urgency of every operation of a graph, by its index: 0 for the critical path (forward pass and input gradients),
/// 1 for weight gradients, 2 for updates; an operation is as urgent as the most urgent one that waits for it. Requires:
/// operations are in a legal serial order.
[[nodiscard]] std::vector<int> urgencies(const model::StepGraph& graph);

}  // namespace cleave::sched
