// Memory and seconds of replicas and of owners, from the figures of their stages.
#include "stages/owner_costs.hpp"

#include <algorithm>

namespace cleave::plan::stages {

OwnerCosts::OwnerCosts(const Problem& problem, const Layout& layout)
    : problem_(problem), layout_(layout), work_(*problem.work) {
  for (const StageDraft& draft : layout.stages) {
    figures_.push_back(&problem.book->figures(draft.cost, layout.settings.chunk));
    rates_.emplace_back(problem, draft.cost, is_kept(layout.settings, draft.cost));
    double all = 0;
    for (const std::size_t i : draft.replicas) all += rates_.back().of(i);
    all_rates_.push_back(all);
  }
}

OwnerCosts::Part OwnerCosts::part_of(std::size_t s, std::size_t device) const {
  const StageCost& cost = layout_.stages[s].cost;
  const bool kept = is_kept(layout_.settings, cost);
  const double sequences = static_cast<double>(work_.batch) * visits(s, device);
  const double boundary = sequences * in_bytes(cost.boundary(work_.seq)) / problem_.down[device];
  const double flops = sequences / problem_.flops[device];
  return {in_bytes(cost.weights()) / problem_.down[device],
          {boundary, flops * cost.forward(0, work_.seq).value()},
          {(kept ? 1 : 2) * boundary, flops * cost.way_back(work_.seq, kept).value()}};
}

std::vector<double> OwnerCosts::room() const {
  double at_work = 0;
  for (const StageDraft& draft : layout_.stages)
    at_work = std::max(at_work, draft.cost.is_head() ? 0 : in_bytes(draft.cost.at_work()));
  // A device may come to stand in for a replica that is lost; where memory is counted to the last, it may not.
  if (layout_.settings.tight) at_work = 0;
  std::vector<double> room;
  for (const double memory : problem_.memory) room.push_back(memory - at_work);
  for (const StageDraft& draft : layout_.stages) {
    const double part = replica_bytes(work_, draft, layout_.settings);
    const double more = std::max(0.0, in_bytes(draft.cost.at_work()) - at_work);
    for (const std::size_t i : draft.replicas) room[i] -= part + more;
  }
  return room;
}

double OwnerCosts::sending(const std::vector<OwnerShare>& owners) const {
  std::vector<double> up(problem_.devices.size());
  for (const OwnerShare& owned : owners)
    up[owned.device] += owned.share * sent(owned.stage) / problem_.up[owned.device];
  return *std::ranges::max_element(up);
}

double OwnerCosts::bytes(std::size_t s, bool replica, double share) const {
  const OwnerBytes& of = figures_[s]->of_owner[replica ? 1 : 0];
  return of.fixed + of.of_all * share + (replica ? 0 : figures_[s]->weights_for(share));
}

}  // namespace cleave::plan::stages
