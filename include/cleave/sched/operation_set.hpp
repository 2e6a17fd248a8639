// Which operations of a graph are meant: a part of a step that is run on its own.
#pragma once

#include <cstddef>
#include <vector>

#include "cleave/model/graph.hpp"

namespace cleave::sched {

/// A set of operations of one graph.
class OperationSet {
 public:
  OperationSet() = default;
  /// All operations of the graph, or none of them.
  OperationSet(const model::StepGraph& graph, bool all)
      : in_(graph.operations.size(), all), size_(all ? graph.operations.size() : 0) {}
  /// Adds an operation; nothing happens if it is there. Requires: it is of the graph, also for contains().
  void add(OpId op) {
    if (!contains(op)) ++size_;
    in_[static_cast<std::size_t>(op.value)] = true;
  }
  [[nodiscard]] bool contains(OpId op) const { return in_[static_cast<std::size_t>(op.value)]; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::vector<bool> in_;
  std::size_t size_ = 0;
};

}  // namespace cleave::sched
