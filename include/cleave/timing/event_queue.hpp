// Event queues of a discrete-event simulation: what happens next, in order of time and, at one time, of priority.
//
// Both are heaps with four children to a node: half the levels of a binary one, and the children of a node lie side by
// side. Source: LaMarca and Ladner 1996, "The influence of caches on the performance of heaps", section 4.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cleave/base/units.hpp"

namespace cleave::timing {

/// The order of events at one time: events within devices come first, so that all others find devices up to date; then
/// churn; then answers, in order of tasklet; then the server's kernels.
enum class EventPriority : std::uint8_t { within_device, churn, answer, kernel };

/// When something happens: the least is next.
struct EventKey {
  Seconds at{std::numeric_limits<double>::infinity()};
  std::uint64_t order = ~std::uint64_t{0};  ///< priority, then a number that is unique within it
  friend constexpr bool operator==(const EventKey&, const EventKey&) = default;
  friend constexpr bool operator<(const EventKey& a, const EventKey& b) {
    return a.at < b.at || (a.at == b.at && a.order < b.order);
  }
  friend constexpr bool operator>(const EventKey& a, const EventKey& b) { return b < a; }
};

/// Later than every event.
inline constexpr EventKey kNever{};

/// The key of an event; `number` is unique among events of its priority. Requires: 0 <= number < 2^60.
[[nodiscard]] constexpr EventKey event_key(Seconds at, EventPriority priority, std::int64_t number) {
  return {at, (static_cast<std::uint64_t>(priority) << 60U) | static_cast<std::uint64_t>(number)};
}
[[nodiscard]] constexpr bool is_of(const EventKey& key, EventPriority priority) {
  return key.order >> 60U == static_cast<std::uint64_t>(priority);
}

/// Children of a node of a heap.
inline constexpr std::size_t kChildren = 4;

/// Sift-down: the place, at `hole` or below, where an entry with key `when` belongs. Entries that come before it move
/// up by put(place, entry). Entries have a member `when`.
template <class Entry, class Put>
std::size_t sink(const std::vector<Entry>& heap, std::size_t hole, const EventKey& when, Put put) {
  for (std::size_t child = kChildren * hole + 1; child < heap.size(); child = kChildren * hole + 1) {
    std::size_t least = child;
    for (std::size_t c = child + 1; c < std::min(child + kChildren, heap.size()); ++c) {
      if (heap[c].when < heap[least].when) least = c;
    }
    if (!(heap[least].when < when)) break;
    put(hole, heap[least]);
    hole = least;
  }
  return hole;
}

/// Sift-up: the same at `hole` or above; entries that come after it move down.
template <class Entry, class Put>
std::size_t raise(const std::vector<Entry>& heap, std::size_t hole, const EventKey& when, Put put) {
  while (hole > 0) {
    const std::size_t parent = (hole - 1) / kChildren;
    if (!(when < heap[parent].when)) break;
    put(hole, heap[parent]);
    hole = parent;
  }
  return hole;
}

/// A priority queue of entries with a member `when`, an EventKey. The least is at the top.
template <class Entry>
class EventQueue {
 public:
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] EventKey next() const { return heap_.empty() ? kNever : heap_.front().when; }
  /// Requires: not empty.
  [[nodiscard]] const Entry& top() const { return heap_.front(); }

  void push(const Entry& entry) {
    heap_.push_back(entry);
    heap_[raise(heap_, heap_.size() - 1, entry.when, mover())] = entry;
  }

  /// Requires: not empty.
  void pop() {
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) heap_[sink(heap_, 0, last.when, mover())] = last;
  }

 private:
  auto mover() {
    return [this](std::size_t place, const Entry& entry) { heap_[place] = entry; };
  }

  std::vector<Entry> heap_;
};

/// A priority queue with one event for each of a fixed number of subjects; set() changes it at any time.
class IndexedEventQueue {
 public:
  /// Every subject's event is kNever.
  explicit IndexedEventQueue(std::size_t subjects) : heap_(subjects), place_(subjects) {
    for (std::size_t i = 0; i < subjects; ++i) {
      heap_[i].subject = static_cast<std::uint32_t>(i);
      place_[i] = static_cast<std::uint32_t>(i);
    }
  }

  [[nodiscard]] EventKey next() const { return heap_.empty() ? kNever : heap_.front().when; }
  /// Whose event is next. Requires: at least one subject.
  [[nodiscard]] std::size_t subject() const { return heap_.front().subject; }

  /// Calls visit(subject) for the children of the heap's root: the event after the next one is one of theirs. For
  /// prefetching.
  template <class Visit>
  void soon(Visit visit) const {
    for (std::size_t i = 1; i < std::min(kChildren + 1, heap_.size()); ++i) visit(heap_[i].subject);
  }

  /// Changes a subject's event.
  void set(std::size_t subject, EventKey when) {
    const std::size_t place = place_[subject];
    const auto move = [this](std::size_t to, const Node& node) { put(to, node); };
    const bool sooner = when < heap_[place].when;
    put(sooner ? raise(heap_, place, when, move) : sink(heap_, place, when, move),
        {when, static_cast<std::uint32_t>(subject)});
  }

 private:
  struct Node {
    EventKey when;
    std::uint32_t subject = 0;
  };

  void put(std::size_t place, const Node& node) {
    heap_[place] = node;
    place_[node.subject] = static_cast<std::uint32_t>(place);
  }

  std::vector<Node> heap_;
  std::vector<std::uint32_t> place_;
};

}  // namespace cleave::timing
