// Threshold accepting (Dueck and Scheuer 1990), the planner's one random search: a random change stays unless it makes
// the state worse by more than a threshold, which falls to nothing while the search goes on.
//
// States decide what a change is and when the search is over (GroupExchange, GroupSearch, GuillotineTree). Draws are
// Philox's (base/random.hpp) with one seed, so a plan is a function of its inputs alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cleave/base/random.hpp"

namespace cleave::plan {

/// Random numbers of one search, `stream`: blocks of Philox in turn.
class Draws {
 public:
  explicit Draws(std::uint32_t stream) : stream_(stream) {}

  [[nodiscard]] std::uint32_t bits() {
    if (used_ == block_.size()) {
      block_ = philox({static_cast<std::uint32_t>(blocks_), static_cast<std::uint32_t>(blocks_ >> 32U), stream_,
                       static_cast<std::uint32_t>(Purpose::planning)},
                      {0, 0});
      ++blocks_;
      used_ = 0;
    }
    return block_[used_++];
  }
  /// A number below `end`. Requires: 0 < end < 2^32.
  [[nodiscard]] std::size_t below(std::size_t end) {
    return static_cast<std::size_t>((std::uint64_t{bits()} * end) >> 32U);
  }

 private:
  std::uint32_t stream_;
  std::uint64_t blocks_ = 0;
  std::array<std::uint32_t, 4> block_{};
  std::size_t used_ = 4;
};

/// How much worse a change may leave the state: `first` in the beginning, in proportion less as the search goes on, and
/// nothing in its last tenth, which only improves.
struct Schedule {
  double first = 0;

  /// After a share of the search; at(0.45) is half of `first`.
  [[nodiscard]] double at(double spent) const {
    constexpr double kFalls = 0.9;
    return first * std::max(0.0, 1 - spent / kFalls);
  }
};

/// Searches until the state's effort is spent. A State has
///   double advance()           what it does between changes; returns the share of its effort that is spent
///   bool propose(Draws&)       draws a change; false where it changes nothing
///   double loss(double worse)  makes it; returns how much worse the state then is. Where that is more than `worse`,
///   any
///                              number above `worse` will do
///   void keep(), void undo()   settles the change, or takes it back
template <class State>
void threshold_accept(State& state, Draws& draws, const Schedule& schedule) {
  for (double spent = state.advance(); spent < 1; spent = state.advance()) {
    if (!state.propose(draws)) continue;
    const double worse = schedule.at(spent);
    if (state.loss(worse) <= worse) {
      state.keep();
    } else {
      state.undo();
    }
  }
}

}  // namespace cleave::plan
