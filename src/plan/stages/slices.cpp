// First the shares of a gradient's owners become slices one after another, cut anywhere. Then the owners are assigned
// to runs of whole pieces that they can fill, where their devices have the memory for it.
#include "stages/slices.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "stages/run_book.hpp"

namespace cleave::plan::stages {

namespace {

constexpr double kStretched = 0.05;     // relative change of shares that is allowed so that they end where a piece does
constexpr std::size_t kAllSubsets = 8;  // up to so many owners, every subset of them is tried

// The share at the nearest border between attention heads, where `share` is within a head: the owner of a part of a
// head needs all weights of the head.
double at_whole_head(const StageWork& work, const StageCost& stage, double share) {
  double before = 0;
  for (std::int64_t i = stage.first(); i < stage.end(); ++i) {
    const StageCost piece(work, i, i + 1, work.seq);
    const double elements = piece.gradient_elements(), place = share * stage.gradient_elements() - before;
    const auto heads = static_cast<double>(work.pieces[static_cast<std::size_t>(i)].attention.n_kv_head);
    if (heads > 0 && place > 0 && place < elements)
      return (before + std::round(place / elements * heads) / heads * elements) / stage.gradient_elements();
    before += elements;
  }
  return share;
}

// An owner of a gradient.
struct Part {
  const OwnerShare* owned;
  double share;
  double pace;  // seconds a FLOP of recomputation, per sequence of its group: 0 for sequences that it runs itself
};

// Neighbouring pieces of a stage, and the owners that sum their gradient.
struct Run {
  double wanted = 0;      // share of the stage's gradient
  double recomputed = 0;  // FLOP of recomputation of a sequence, for any part of that gradient
  std::vector<Part> parts;
};

double sum_of(std::span<const Part> parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0, [](double sum, const Part& of) { return sum + of.share; });
}

bool fill(std::span<const Part> parts, double wanted) {
  return !parts.empty() && std::abs(sum_of(parts) - wanted) <= kStretched * wanted;
}

// Chooses the subset of the parts, some but not all of them, that fills the run and whose slowest part is done first,
// the other parts being used above the run; nothing chosen where no subset fills it.
std::vector<bool> choose_of_few(const std::vector<Part>& parts, const Run& run, double recomputed_above) {
  unsigned best = 0;
  double least = 0;
  for (unsigned subset = 1; subset + 1 < 1U << parts.size(); ++subset) {
    double sum = 0, latest = 0;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const bool in = (subset >> k & 1U) != 0;
      sum += in ? parts[k].share : 0;
      latest = std::max(latest, parts[k].pace * (in ? run.recomputed : recomputed_above));
    }
    if (std::abs(sum - run.wanted) > kStretched * run.wanted || (best != 0 && latest >= least)) continue;
    least = latest;
    best = subset;
  }
  std::vector<bool> chosen(parts.size());
  for (std::size_t k = 0; k < parts.size(); ++k) chosen[k] = (best >> k & 1U) != 0;
  return chosen;
}

// Chooses parts in order, each if the run is closer to being filled with it than without it.
std::vector<bool> choose_of_many(const std::vector<Part>& parts, const Run& run) {
  std::vector<bool> chosen(parts.size());
  double left = run.wanted;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].share / 2 > left) continue;
    chosen[k] = true;
    left -= parts[k].share;
  }
  return chosen;
}

// Moves the parts for the run to the front and returns their number. They may not fill the run.
std::size_t choose(std::vector<Part>& parts, const Run& run, double recomputed_above) {
  std::vector<bool> chosen;
  if (parts.size() <= kAllSubsets) {
    std::ranges::stable_sort(parts, std::greater<>{}, &Part::share);
    chosen = choose_of_few(parts, run, recomputed_above);
  } else {
    // The quickest processors take the pieces with most recomputation.
    std::ranges::stable_sort(parts, {}, &Part::pace);
    if (run.recomputed < recomputed_above) std::ranges::reverse(parts);
    chosen = choose_of_many(parts, run);
  }
  std::vector<Part> front, rest;
  for (std::size_t k = 0; k < parts.size(); ++k) (chosen[k] ? front : rest).push_back(parts[k]);
  const std::size_t count = front.size();
  std::ranges::copy(rest, std::back_inserter(front));
  parts = std::move(front);
  return count;
}

// The owners in another order, with shares that end where pieces do, as often as that is possible; none where it
// nowhere is. `pieces`: the stage's pieces as runs without parts.
std::optional<std::vector<Part>> along_pieces(const std::vector<Run>& pieces, std::vector<Part> left) {
  std::vector<Run> runs;
  Run run;
  for (std::size_t i = 0; i + 1 < pieces.size() && left.size() > 1; ++i) {
    run.wanted += pieces[i].wanted;
    run.recomputed = std::max(run.recomputed, pieces[i].recomputed);
    double above = 0, of_above = 0;
    for (std::size_t k = i + 1; k < pieces.size(); ++k) {
      above += pieces[k].wanted;
      of_above += pieces[k].wanted * pieces[k].recomputed;
    }
    const auto count = static_cast<std::ptrdiff_t>(choose(left, run, of_above / above));
    if (!fill(std::span(left).first(static_cast<std::size_t>(count)), run.wanted)) continue;
    run.parts.assign(left.begin(), left.begin() + count);
    left.erase(left.begin(), left.begin() + count);
    runs.push_back(std::exchange(run, {}));
  }
  Run last{1, 0, std::move(left)};
  for (const Run& before : runs) last.wanted -= before.wanted;
  // The remaining owners may not fill the remaining pieces: the last run is then joined with those before it.
  while (!runs.empty() && !fill(last.parts, last.wanted)) {
    last.wanted += runs.back().wanted;
    last.parts.insert(last.parts.begin(), runs.back().parts.begin(), runs.back().parts.end());
    runs.pop_back();
  }
  if (runs.empty()) return std::nullopt;
  runs.push_back(std::move(last));
  std::vector<Part> parts;
  for (const Run& of : runs) {
    const double stretch = of.wanted / sum_of(of.parts);
    for (const Part& part : of.parts) parts.push_back({part.owned, part.share * stretch, part.pace});
  }
  return parts;
}

class Slicer {
 public:
  Slicer(const Problem& problem, const Layout& layout, bool whole_heads)
      : problem_(problem), layout_(layout), work_(*problem.work), whole_heads_(whole_heads), left_(problem.memory) {
    for (const StageDraft& draft : layout.stages) {
      const double part = replica_bytes(work_, draft, layout.settings) + in_bytes(draft.cost.at_work());
      for (const std::size_t i : draft.replicas) left_[i] -= part;
    }
  }

  std::vector<GradientOwner> owners() {
    std::vector<std::vector<Part>> gradients;
    for (const OwnerShare& owned : layout_.owners) {
      const OwnerShare* last = gradients.empty() ? nullptr : gradients.back().back().owned;
      if (last == nullptr || last->stage != owned.stage || last->group != owned.group) gradients.emplace_back();
      const double own = owned.replica ? visits(owned) : 0;
      gradients.back().push_back({&owned, owned.share, (1 - own) / problem_.flops[owned.device]});
    }
    std::vector<std::vector<Cut>> cuts;
    for (const std::vector<Part>& gradient : gradients) {
      cuts.push_back(cut(gradient));
      reserve(cuts.back());
    }
    std::vector<GradientOwner> all;
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      align(gradients[g], cuts[g]);
      for (Cut& of : cuts[g]) all.push_back(std::move(of.owner));
    }
    return all;
  }

 private:
  struct Cut {
    std::size_t device;
    GradientOwner owner;
  };

  std::vector<Cut> cut(std::span<const Part> parts) const {
    std::vector<Cut> cuts;
    double at = 0, exact = 0;
    for (const Part& part : parts) {
      const StageCost& cost = layout_.stages[part.owned->stage].cost;
      exact += part.share;
      const double end = whole_heads_ ? at_whole_head(work_, cost, exact) : exact;
      GradientOwner owner;
      owner.device = problem_.devices[part.owned->device].id;
      owner.stage = static_cast<std::int64_t>(part.owned->stage);
      owner.group = part.owned->group;
      owner.slices = slices_between(work_, cost, at, end > 1 - 1e-9 ? 1.0 : end);
      owner.replica = part.owned->replica;
      at = end;
      if (owner.slices.empty()) continue;
      const OwnerCost costs = owner_cost(work_, cost, owner.slices, layout_.settings.chunk);
      if (!owner.replica) owner.weights = costs.weights;
      owner.memory = owner.weights + costs.at_work + costs.waiting(owner.replica) +
                     Bytes(static_cast<std::int64_t>(costs.elements) * sum_bytes(work_.wire));
      cuts.push_back({part.owned->device, std::move(owner)});
    }
    return cuts;
  }

  // The share of its owner group's sequences that an owner runs as a replica.
  double visits(const OwnerShare& owned) const {
    const StageDraft& draft = layout_.stages[owned.stage];
    double uplinks = 0;
    for (const std::size_t i : draft.replicas) uplinks += problem_.up[i];
    return std::min(1.0, problem_.up[owned.device] / uplinks * static_cast<double>(layout_.groups[owned.stage]));
  }

  void reserve(const std::vector<Cut>& cuts) {
    for (const Cut& of : cuts) left_[of.device] -= in_bytes(of.owner.memory);
  }
  void release(const std::vector<Cut>& cuts) {
    for (const Cut& of : cuts) left_[of.device] += in_bytes(of.owner.memory);
  }

  void align(const std::vector<Part>& gradient, std::vector<Cut>& cuts) {
    if (gradient.size() < 2) return;
    const StageCost& stage = layout_.stages[gradient.front().owned->stage].cost;
    std::vector<Run> pieces;
    for (const PieceFigures& piece : problem_.book->figures(stage, layout_.settings.chunk).pieces)
      pieces.push_back({piece.share, piece.recomputed, {}});
    if (pieces.size() < 2) return;
    const std::optional<std::vector<Part>> parts = along_pieces(pieces, gradient);
    if (!parts) return;
    std::vector<Cut> aligned = cut(*parts);
    release(cuts);
    reserve(aligned);
    if (std::ranges::all_of(aligned, [&](const Cut& of) { return left_[of.device] >= 0; })) {
      cuts = std::move(aligned);
    } else {
      release(aligned);
      reserve(cuts);
    }
  }

  const Problem& problem_;
  const Layout& layout_;
  const StageWork& work_;
  bool whole_heads_;
  std::vector<double> left_;  // bytes of each device
};

}  // namespace

std::vector<GradientOwner> owners_with_slices(const Problem& problem, const Layout& layout, bool whole_heads) {
  return Slicer(problem, layout, whole_heads).owners();
}

}  // namespace cleave::plan::stages
