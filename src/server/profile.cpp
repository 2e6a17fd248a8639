// Sums of the profile.
#include "cleave/server/profile.hpp"

#include <numeric>

namespace cleave::server {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kernel: return "kernel";
    case Phase::pack: return "pack";
    case Phase::send: return "send";
    case Phase::wait: return "wait";
    case Phase::receive: return "receive";
    case Phase::verify: return "verify";
    case Phase::place: return "place";
    case Phase::schedule: return "schedule";
  }
  return "";
}

void add(const PhaseTimes& times, PhaseTimes& to) {
  for (std::size_t phase = 0; phase < kPhases; ++phase) to[phase] += times[phase];
}

Seconds sum_of(const PhaseTimes& times) { return std::accumulate(times.begin(), times.end(), Seconds(0)); }

void Profile::begin_step(const model::StepGraph& graph) {
  if (!enabled_) return;
  graph_ = &graph;
  by_op_.clear();
  phase_ = Phase::schedule;
  op_ = OpId{};
  since_ = clock_.now();
}

void Profile::turn_to(Phase phase, OpId op) {
  const Seconds now = clock_.now();
  by_op_[op_][static_cast<std::size_t>(phase_)] += now - since_;
  since_ = now;
  phase_ = phase;
  op_ = op;
}

void Profile::end_step() {
  if (!enabled_ || graph_ == nullptr) return;
  turn_to(Phase::schedule, OpId{});
  last_step_ = {};
  for (const auto& [op, times] : by_op_) {
    add(times, last_step_);
    add(times, by_type_[op.valid() ? graph_->operation(op).type : std::string()]);
  }
  add(last_step_, all_);
  graph_ = nullptr;
  ++steps_;
}

}  // namespace cleave::server
