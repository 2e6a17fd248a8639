// Which candidates have memory, and which of them lends uplink soonest.
#include "stages/stand_ins.hpp"

#include <algorithm>

#include "stages/run_state.hpp"

namespace cleave::sched::stages {

bool Candidate::is_server() const { return device == kServer; }

bool Candidate::is_replica(std::int32_t stage) const {
  return std::ranges::any_of(holds, [&](const Held& held) { return held.stage == stage; });
}

double Candidate::memory_for(std::int32_t stage) const {
  double sum = memory;
  for (const Held& held : holds) sum += held.stage == stage ? 0 : held.gives;
  return sum;
}

Bytes owner_memory(const plan::StageWork& work, const plan::OwnerCost& cost, bool replica) {
  return cost.at_work + cost.waiting(replica) +
         Bytes(static_cast<std::int64_t>(cost.elements) * plan::sum_bytes(work.wire)) +
         (replica ? Bytes(0) : cost.weights);
}

std::optional<Candidate> choose_helper(std::span<const Candidate> candidates, const plan::StageCost& cost,
                                       const Shortage& shortage) {
  const double need = in_bytes(cost.least_replica()), weights = in_bytes(cost.weights());
  std::optional<Candidate> best;
  double most = 0;
  for (const Candidate& candidate : candidates) {
    const double loading = weights / candidate.downlink;
    if (candidate.is_replica(shortage.stage) || candidate.memory_for(shortage.stage) < need ||
        loading > shortage.patience.value())
      continue;
    const double lent = kLent * candidate.uplink, share = lent / (shortage.uplink + lent);
    const double reads = loading + kDownOfUp * share * shortage.sends / candidate.downlink;
    const double late = candidate.own_sums + std::max(0.0, reads - candidate.own_gaps) - shortage.step_left.value();
    if (shortage.uplink > 0 && candidate.own_sums > 0 && late > 0) continue;
    const double worth =
        candidate.uplink / (static_cast<double>(1 + candidate.roles) * (loading + 0.2 * candidate.down_busy + 5));
    if (worth <= most) continue;
    most = worth;
    best = candidate;
  }
  return best;
}

}  // namespace cleave::sched::stages
