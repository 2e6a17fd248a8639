// Critical path first: weight gradients and updates wait until nothing else is ready.
#include "urgency.hpp"

#include <algorithm>
#include <ranges>

namespace cleave::sched {

namespace {

int urgency_by_phase(const model::Operation& op) {
  switch (op.phase) {
    case model::Phase::forward:
    case model::Phase::input_gradient: return 0;
    case model::Phase::weight_gradient: return 1;
    case model::Phase::update: return 2;
  }
  return 2;
}

}  // namespace

std::vector<int> urgencies(const model::StepGraph& graph) {
  std::vector<int> urgency;
  urgency.reserve(graph.operations.size());
  for (const model::Operation& op : graph.operations) urgency.push_back(urgency_by_phase(op));
  for (const model::Operation& op : graph.operations | std::views::reverse) {
    const int own = urgency[static_cast<std::size_t>(op.id.value)];
    for (const OpId before : op.after) {
      int& earlier = urgency[static_cast<std::size_t>(before.value)];
      earlier = std::min(earlier, own);
    }
  }
  return urgency;
}

}  // namespace cleave::sched
