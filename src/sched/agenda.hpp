// The agenda of a discrete-event simulation: what happens next, in order of time and, at one time, of making.
//
// A heap with four children to a node: half the levels of a binary one, and the children of a node lie side by side.
// Source: LaMarca and Ladner 1996, "The influence of caches on the performance of heaps", section 4.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace cleave::sched {

/// `Entry` has `at` (a time) and `sequence` (unique); the least pair of both is on top.
template <class Entry>
class Agenda {
 public:
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }
  /// Requires: not empty.
  [[nodiscard]] const Entry& top() const { return heap_.front(); }

  void push(const Entry& entry) {
    std::size_t hole = heap_.size();
    heap_.push_back(entry);
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / kChildren;
      if (!before(entry, heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = entry;
  }

  /// Requires: not empty.
  void pop() {
    const Entry last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    const std::size_t size = heap_.size();
    std::size_t hole = 0;
    for (std::size_t child = 1; child < size; child = kChildren * hole + 1) {
      std::size_t least = child;
      for (std::size_t c = child + 1; c < std::min(child + kChildren, size); ++c) {
        if (before(heap_[c], heap_[least])) least = c;
      }
      if (!before(heap_[least], last)) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    heap_[hole] = last;
  }

 private:
  static constexpr std::size_t kChildren = 4;
  static bool before(const Entry& a, const Entry& b) { return a.at != b.at ? a.at < b.at : a.sequence < b.sequence; }
  std::vector<Entry> heap_;
};

}  // namespace cleave::sched
