// Operands, weights and sums of a typical slice of each stage.
#include "stages/owner_costs.hpp"

#include <algorithm>
#include <limits>

namespace cleave::plan::stages {

OwnerCosts::OwnerCosts(const Problem& problem, const Layout& layout)
    : problem_(problem), layout_(layout), work_(*problem.work) {
  for (const Role& role : layout.roles) {
    rounding_.push_back(rounding_bytes(work_, role));
    typical_.push_back(cost_of_share(role.cost, 0.4, 0.6));
    for (const bool replica : {false, true}) {
      const double all = in_bytes(cost_of_share(role.cost, 0, 1).waiting(replica));
      const double fifth = in_bytes(typical_.back().waiting(replica)), grows = (all - fifth) / 0.8;
      waiting_[replica ? 1 : 0].push_back({in_bytes(typical_.back().at_work) + fifth - 0.2 * grows, grows});
    }
    const std::int64_t pieces = role.cost.end() - role.cost.first();
    if (pieces > 1) reach_pieces(role, pieces);
    double uplink = 0;
    for (const std::size_t i : role.replicas) uplink += problem_.up[i];
    uplinks_.push_back(uplink);
  }
}

// A slice reads whole operands, X and dY, of every piece that it reaches into: of two at least, and of one more for
// each least piece's share.
void OwnerCosts::reach_pieces(const Role& role, std::int64_t pieces) {
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t i = role.cost.first(); i < role.cost.end(); ++i) {
    const double elements = StageCost(work_, i, i + 1, layout_.settings.chunk).gradient_elements();
    if (elements > 0) least = std::min(least, elements);
  }
  const double whole = in_bytes(role.cost.boundary(2 * work_.seq));
  Waiting& waiting = waiting_[1].back();
  const double cut = in_bytes(cost_of_share(role.cost, 0, 1).waiting(true)) - static_cast<double>(pieces) * whole;
  waiting.fixed = in_bytes(typical_.back().at_work) + 2 * whole;
  waiting.of_all = cut + (pieces > 2 ? whole * role.cost.gradient_elements() / least : 0);
}

OwnerCost OwnerCosts::cost_of_share(const StageCost& stage, double from, double to) const {
  return owner_cost(work_, stage, slices_between(work_, stage, from, to), layout_.settings.chunk);
}

double OwnerCosts::sent(std::size_t s) const {
  return elements(s) * static_cast<double>(layout_.groups[s] == 1 ? size_of(work_.wire) : sum_bytes(work_.wire));
}

bool OwnerCosts::several_pieces(std::size_t s) const {
  return layout_.roles[s].cost.end() - layout_.roles[s].cost.first() > 1;
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

Busy OwnerCosts::reading(std::size_t s, std::size_t device, bool replica, double of_batch) const {
  const OwnerCost& typical = typical_[s];
  const double own = replica ? std::min(1.0, visits(s, device) / of_batch) : 0;
  const double sequences = static_cast<double>(work_.batch) * of_batch * (1 - own);
  return {sequences * in_bytes(typical.operands) / problem_.down[device] + loading(s, device, replica),
          sequences * typical.alone.value() / problem_.flops[device]};
}

double OwnerCosts::loading(std::size_t s, std::size_t device, bool replica) const {
  if (replica) return 0;
  return (several_pieces(s) ? weights_beside(s, 1) : in_bytes(typical_[s].weights)) / problem_.down[device];
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

double OwnerCosts::fixed(std::size_t s, bool replica) const {
  return waiting_[replica ? 1 : 0][s].fixed + rounding_[s];
}

double OwnerCosts::of_all(std::size_t s, bool replica) const {
  return static_cast<double>(sum_bytes(work_.wire)) * elements(s) + waiting_[replica ? 1 : 0][s].of_all;
}

double OwnerCosts::weights_beside(std::size_t s, double share) const {
  return in_bytes(layout_.roles[s].cost.weights()) * (several_pieces(s) ? 1 : std::min(1.0, share + parts_of_heads(s)));
}

// A slice of attention touches two heads at its ends that it may own little of.
double OwnerCosts::parts_of_heads(std::size_t s) const {
  const model::Piece& piece = work_.pieces[static_cast<std::size_t>(layout_.roles[s].cost.first())];
  if (several_pieces(s) || piece.kind != model::PieceKind::attention) return 0;
  return 2.0 / static_cast<double>(std::max<std::int64_t>(1, piece.attention.n_kv_head));
}

double OwnerCosts::held(std::size_t s, bool replica, double room) const {
  const bool several = several_pieces(s);
  const double beside = replica ? 0 : weights_beside(s, several ? 1 : 0);
  const double weights = replica || several ? 0 : in_bytes(layout_.roles[s].cost.weights());
  return (room - fixed(s, replica) - beside) / (of_all(s, replica) + weights);
}

double OwnerCosts::sending(const std::vector<Owned>& owners) const {
  std::vector<double> up(problem_.devices.size());
  for (const Owned& owned : owners) up[owned.device] += owned.share * sent(owned.stage) / problem_.up[owned.device];
  return *std::ranges::max_element(up);
}

double OwnerCosts::bytes(std::size_t s, bool replica, double share) const {
  return fixed(s, replica) + of_all(s, replica) * share + (replica ? 0 : weights_beside(s, share));
}

}  // namespace cleave::plan::stages
