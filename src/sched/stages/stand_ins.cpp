// Estimates of a few ways to share out lost work; the quickest is taken.
#include "stages/stand_ins.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "stages/run_state.hpp"

namespace cleave::sched::stages {

namespace {

constexpr std::int64_t kMostSequenceParts = 32, kMostSliceParts = 16;
constexpr double kGain = 0.95;       // cutting finer reads more: it has to end that much sooner
constexpr double kSpareShare = 0.9;  // of a downlink, for what comes during the rest of the step

double bytes_of(Bytes bytes) { return static_cast<double>(bytes.value()); }

struct Bid {
  double time = 0;
  const Candidate* candidate = nullptr;
};

}  // namespace

Bytes least_memory(const plan::StageCost& cost) {
  return cost.weights() + cost.at_work() + cost.open_forward() * kLeastSlots + cost.open_backward() * kLeastSlots;
}

Bytes owner_memory(const plan::StageWork& work, const plan::OwnerCost& cost, bool replica) {
  return cost.at_work + Bytes(static_cast<std::int64_t>(cost.elements) * plan::sum_bytes(work.wire)) +
         (replica ? Bytes(0) : cost.weights);
}

std::optional<Candidate> choose_helper(std::span<const Candidate> candidates, const plan::StageCost& cost,
                                       Seconds patience) {
  const double need = bytes_of(least_memory(cost)), weights = bytes_of(cost.weights());
  std::optional<Candidate> best;
  double most = 0;
  for (const Candidate& candidate : candidates) {
    const double loading = weights / candidate.downlink;
    if (candidate.replica || candidate.memory < need || loading > patience.value()) continue;
    const double worth =
        candidate.uplink / (static_cast<double>(1 + candidate.roles) * (loading + 0.2 * candidate.down_busy + 5));
    if (worth <= most) continue;
    most = worth;
    best = candidate;
  }
  return best;
}

std::vector<std::vector<plan::PieceSlice>> split_slices(const plan::StageWork& work, const plan::StageCost& cost,
                                                        std::span<const plan::PieceSlice> slices, std::int64_t count,
                                                        std::int64_t chunk) {
  std::vector<double> elements;
  double total = 0;
  for (const plan::PieceSlice& slice : slices) {
    elements.push_back(plan::owner_cost(work, cost, std::span(&slice, 1), chunk).elements);
    total += elements.back();
  }
  std::vector<std::vector<plan::PieceSlice>> parts;
  for (std::int64_t k = 0; k < count; ++k) {
    const double from = total * static_cast<double>(k) / static_cast<double>(count);
    const double to = total * static_cast<double>(k + 1) / static_cast<double>(count);
    std::vector<plan::PieceSlice> part;
    double before = 0;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const plan::PieceSlice& slice = slices[i];
      const auto unit_at = [&](double element) {
        const double share = elements[i] > 0 ? std::clamp((element - before) / elements[i], 0.0, 1.0) : 0;
        return slice.begin + std::llround(share * static_cast<double>(slice.end - slice.begin));
      };
      const std::int64_t begin = k == 0 ? slice.begin : unit_at(from), end = k + 1 == count ? slice.end : unit_at(to);
      if (end > begin) part.push_back({slice.piece, begin, end});
      before += elements[i];
    }
    if (!part.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<OwnerPart> share_out(const plan::StageWork& work, const plan::StageCost& cost, const LostSums& lost,
                                 std::span<const Candidate> candidates, std::int64_t chunk) {
  std::vector<OwnerPart> best;
  double soonest = std::numeric_limits<double>::infinity();
  const std::int64_t most = std::min(kMostSequenceParts, lost.at_once + lost.later);
  for (std::int64_t runs = 1; runs <= kMostSliceParts; runs *= 2) {
    const auto slices = split_slices(work, cost, lost.slices, runs, chunk);
    std::vector<plan::OwnerCost> costs;
    for (const auto& part : slices) costs.push_back(plan::owner_cost(work, cost, part, chunk));
    plan::OwnerCost largest = costs.front();
    for (const plan::OwnerCost& part : costs) {
      largest.elements = std::max(largest.elements, part.elements);
      largest.weights = std::max(largest.weights, part.weights);
      largest.at_work = std::max(largest.at_work, part.at_work);
      largest.alone = std::max(largest.alone, part.alone);
    }
    for (std::int64_t parts = 1; parts <= most; parts *= 2) {
      const bool partial = lost.partial || parts > 1;
      const double sums =
          largest.elements * static_cast<double>(partial ? plan::sum_bytes(work.wire) : size_of(work.wire));
      const double now = std::ceil(static_cast<double>(lost.at_once) / static_cast<double>(parts));
      const double later = std::ceil(static_cast<double>(lost.later) / static_cast<double>(parts));
      std::vector<Bid> bids;
      for (const Candidate& candidate : candidates) {
        if (bytes_of(owner_memory(work, largest, candidate.replica)) > candidate.memory) continue;
        const double weights = candidate.replica ? 0 : bytes_of(largest.weights) / candidate.downlink;
        const double one =
            std::max(bytes_of(largest.operands) / candidate.downlink, largest.alone.value() / candidate.compute);
        const double rest = std::max(0.0, one * later + candidate.down_busy - kSpareShare * lost.remaining.value());
        bids.push_back({weights + one * now + rest + candidate.up_busy + sums / candidate.uplink, &candidate});
      }
      const std::size_t wanted = slices.size() * static_cast<std::size_t>(parts);
      if (bids.size() < wanted) continue;
      std::ranges::stable_sort(bids, {}, &Bid::time);
      const double time = bids[wanted - 1].time;
      if (time >= soonest * kGain) continue;
      soonest = time;
      best.clear();
      for (std::size_t i = 0; i < wanted; ++i) {
        const std::size_t run = i % slices.size();
        const Candidate& candidate = *bids[i].candidate;
        best.push_back({candidate.device, candidate.replica, slices[run], costs[run],
                        static_cast<std::int64_t>(i / slices.size()), parts});
      }
    }
    if (static_cast<std::int64_t>(slices.size()) < runs) break;
  }
  return best;
}

}  // namespace cleave::sched::stages
