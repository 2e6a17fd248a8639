// What replicas and owners take of devices.
#include "stages/owner_costs.hpp"

#include <algorithm>

namespace cleave::plan::stages {

OwnerCosts::OwnerCosts(const Problem& problem, const Layout& layout)
    : problem_(problem), layout_(layout), work_(*problem.work) {
  for (const Role& role : layout.roles) {
    stages_.push_back(&problem.book->figures(role.cost, layout.settings.chunk));
    rates_.emplace_back(problem, role.cost, is_kept(layout.settings, role.cost));
    double all = 0;
    for (const std::size_t i : role.replicas) all += rates_.back().of(i);
    all_rates_.push_back(all);
  }
}

OwnerCosts::Part OwnerCosts::part_of(std::size_t s, std::size_t device) const {
  const StageCost& cost = layout_.roles[s].cost;
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
  for (const Role& role : layout_.roles)
    at_work = std::max(at_work, role.cost.is_head() ? 0 : in_bytes(role.cost.at_work()));
  // A device may come to stand in for a replica that is lost; where memory is counted to the last, it may not.
  if (layout_.settings.tight) at_work = 0;
  std::vector<double> room;
  for (const double memory : problem_.memory) room.push_back(memory - at_work);
  for (const Role& role : layout_.roles) {
    const double part = replica_bytes(work_, role, layout_.settings);
    const double more = std::max(0.0, in_bytes(role.cost.at_work()) - at_work);
    for (const std::size_t i : role.replicas) room[i] -= part + more;
  }
  return room;
}

double OwnerCosts::sending(const std::vector<Owned>& owners) const {
  std::vector<double> up(problem_.devices.size());
  for (const Owned& owned : owners) up[owned.device] += owned.share * sent(owned.stage) / problem_.up[owned.device];
  return *std::ranges::max_element(up);
}

double OwnerCosts::bytes(std::size_t s, bool replica, double share) const {
  const OwnerBytes& of = stages_[s]->of_owner[replica ? 1 : 0];
  return of.fixed + of.of_all * share + (replica ? 0 : stages_[s]->weights_for(share));
}

}  // namespace cleave::plan::stages
