// Figures of a run, from its costs and from those of a typical slice of it.
#include "stages/run_book.hpp"

#include <algorithm>
#include <limits>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

struct Waiting {
  double fixed = 0, of_all = 0;
};

OwnerCost cost_of_share(const StageWork& work, const StageCost& stage, std::int64_t chunk, double from, double to) {
  return owner_cost(work, stage, slices_between(work, stage, from, to), chunk);
}

// Memory for operands of a replica's slice of several pieces. A slice reads whole operands, X and dY, of every piece
// that it reaches into: two pieces at least, and one more for each further share as large as that of the smallest
// piece.
Waiting of_pieces(const StageWork& work, const StageCost& stage, const OwnerCost& typical, const OwnerCost& all) {
  const std::int64_t pieces = stage.end() - stage.first();
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t i = stage.first(); i < stage.end(); ++i) {
    const double elements = StageCost(work, i, i + 1, work.seq).gradient_elements();
    if (elements > 0) least = std::min(least, elements);
  }
  const double whole = in_bytes(stage.boundary(2 * work.seq));
  const double cut = in_bytes(all.waiting(true)) - static_cast<double>(pieces) * whole;
  return {in_bytes(typical.at_work) + 2 * whole, cut + (pieces > 2 ? whole * stage.gradient_elements() / least : 0)};
}

// Sets the FLOP of an owner for a sequence that it did not run: the part that does not depend on its share
// (recomputation), and the part that grows with it; means over the pieces, weighted by their elements.
void add_summing(const StageWork& work, const StageCost& stage, std::int64_t chunk, RunFigures& of) {
  double at = 0;
  for (std::int64_t i = stage.first(); i < stage.end(); ++i) {
    const double share = StageCost(work, i, i + 1, work.seq).gradient_elements() / stage.gradient_elements();
    if (!(share > 0)) continue;
    const double half = cost_of_share(work, stage, chunk, at + share / 4, at + 3 * share / 4).alone.value(),
                 all = cost_of_share(work, stage, chunk, at, at + share).alone.value();
    const double recomputed = std::max(0.0, 2 * half - all);
    of.pieces.push_back({share, recomputed});
    of.recomputed += share * recomputed;
    of.summed += all - recomputed;
    at += share;
  }
}

RunFigures figures_of(const StageWork& work, const StageCost& stage, std::int64_t chunk) {
  const OwnerCost typical = cost_of_share(work, stage, chunk, 0.4, 0.6), all = cost_of_share(work, stage, chunk, 0, 1);
  const model::Piece& lowest = work.pieces[static_cast<std::size_t>(stage.first())];
  const StageDraft draft(stage);
  RunFigures of;
  of.replica = replica_bytes(draft);
  of.flops = stage_flops(work, stage);
  of.elements = stage.gradient_elements();
  of.sent = of.elements * static_cast<double>(size_of(work.wire));
  of.sums = of.elements * static_cast<double>(sum_bytes(work.wire));
  of.operands = in_bytes(typical.operands);
  add_summing(work, stage, chunk, of);
  of.summed_beside = all.beside.value();
  of.weights = in_bytes(stage.weights());
  of.several = stage.end() - stage.first() > 1;
  if (!of.several && lowest.kind == model::PieceKind::attention)
    of.heads = 2.0 / static_cast<double>(std::max<std::int64_t>(1, lowest.attention.n_kv_head));
  of.loaded = of.several ? of.weights : in_bytes(typical.weights);
  of.beside = typical.at_work + typical.waiting(true);
  of.rounding = rounding_bytes(work, draft);
  for (const bool replica : {false, true}) {
    const double fifth = in_bytes(typical.waiting(replica)), grows = (in_bytes(all.waiting(replica)) - fifth) / 0.8;
    Waiting waiting{in_bytes(typical.at_work) + fifth - 0.2 * grows, grows};
    if (replica && of.several) waiting = of_pieces(work, stage, typical, all);
    OwnerBytes& owner = of.of_owner[replica ? 1 : 0];
    owner.fixed = waiting.fixed + of.rounding;
    owner.of_all = of.sums + waiting.of_all;
    owner.weights = replica ? 0 : of.weights_for(of.several ? 1 : 0);
    owner.whole = owner.of_all + (replica || of.several ? 0 : of.weights);
  }
  return of;
}

}  // namespace

double RunFigures::weights_for(double share) const { return weights * (several ? 1 : std::min(1.0, share + heads)); }

RunBook::Entry& RunBook::entry(std::int64_t first, std::int64_t end, std::int64_t chunk) {
  return entries_[chunk][first * (std::ssize(work_.pieces) + 1) + end];
}

const StageCost& RunBook::cost(std::int64_t first, std::int64_t end, std::int64_t chunk) {
  std::optional<StageCost>& cost = entry(first, end, chunk).cost;
  if (!cost) cost.emplace(work_, first, end, chunk);
  return *cost;
}

const RunFigures& RunBook::figures(const StageCost& stage, std::int64_t chunk) {
  std::optional<RunFigures>& figures = entry(stage.first(), stage.end(), chunk).figures;
  if (!figures) figures = figures_of(work_, stage, chunk);
  return *figures;
}

}  // namespace cleave::plan::stages
