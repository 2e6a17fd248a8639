// Rounds of stages (plan::StagePlan). A step has phases, in each of which the stages of one round are open. First all
// sequences go forward through the rounds, from the lowest to the highest. The highest round is passed backward too, in
// the same phase; then the others are, from high to low, in a phase each. With three rounds: phases 0, 1, 2, 3, 4 have
// rounds 0, 1, 2, 1, 0. Boundaries are at the server, and a backward pass recomputes the values that it needs, so
// nothing stays on devices from one phase to the next.
#include <algorithm>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

std::int64_t StageRun::open_round() const {
  const std::int64_t last = plan.rounds() - 1;
  return phase <= last ? phase : 2 * last - phase;
}

bool StageRun::is_last_phase() const {
  if (!goes_back()) return false;
  const auto lowest_back = static_cast<std::size_t>(std::min(lowest, top()));
  return open_round() == plan.stages[lowest_back].round;
}

std::int32_t StageRun::lowest_open() const {
  return static_cast<std::int32_t>(std::ranges::lower_bound(plan.stages, open_round(), {}, &plan::Stage::round) -
                                   plan.stages.begin());
}

std::int32_t StageRun::highest_open() const {
  return static_cast<std::int32_t>(std::ranges::upper_bound(plan.stages, open_round(), {}, &plan::Stage::round) -
                                   plan.stages.begin()) -
         1;
}

bool StageRun::phase_is_over() {
  if (is_last_phase() || recovery.is_pending() || pairs_left()) return false;
  if (!goes_back()) return through == batch;
  for (std::int32_t s = lowest_open(); s <= highest_open(); ++s) {
    if (at(s).backward_left > 0 || at(s).gradients_left > 0) return false;
  }
  return true;
}

void StageRun::begin_next_phase() {
  close_round();
  ++phase;
  through = 0;
  const bool replicas = load_replicas(), owners = load_owners();
  enter_round();
  if (!replicas || !owners) recovery.fill_gaps();  // some are gone since the step was planned
}

void StageRun::close_round() {
  for (std::int32_t s = lowest_open(); s <= highest_open(); ++s) {
    for (const ActiveReplica& replica : at(s).replicas) {
      if (!replica.retired) give_back(replica.places, replica.device, places(at(s).cost, replica));
      give_up_weights(replica, s);
      --book(replica.device).roles;
    }
    at(s).replicas.clear();
  }
}

void StageRun::enter_round() {
  if (runs_in_tiles(lowest_open())) return tiles.begin();
  if (open_round() == phase) {                                                      // upward
    const std::int32_t first = lowest_open(), last = first < head ? first : top();  // parts of the head: all at once
    for (std::int64_t q = 0; q < batch; ++q) {
      for (std::int32_t s = first; s <= last; ++s) enter_forward(q, s);
      for (std::int32_t part = first; in_parts() && part >= head && part <= last; ++part) want_backward(q, part);
    }
    return;
  }
  const std::int32_t highest = highest_open();
  for (std::int64_t q = 0; q < batch; ++q) {
    sum_elsewhere(q, highest);
    want_backward(q, highest);
    if (visit(backward, highest, q).placed()) send_backward(q, highest);
  }
}

}  // namespace cleave::sched::stages
