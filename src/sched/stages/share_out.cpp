// Searches the time by which everything is done; for a given time, takes for each lost owner the cut that reads least.
#include "stages/share_out.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace cleave::sched::stages {

namespace {

constexpr std::int64_t kMostRuns = 32;
constexpr std::size_t kMostLookedAt = 1024;
constexpr double kAlike = 0.1;             // relative difference of weights within a kind
constexpr double kPrecision = 0.03;        // relative precision of the time that is searched
constexpr double kForAllTime = 1e9;        // seconds
constexpr double kLeastOfSums = 0.03;      // share of the slices below which a device is not worth what it reads
constexpr double kServerTimeShare = 0.9;   // share of the time that the server may take where it is asked first
constexpr double kBytesBeyondShare = 4e6;  // bytes by which a share, rounded to whole units, may exceed the share

// Slices of a lost owner, cut into runs. Runs that follow each other and need about the same weights are of one kind,
// which is judged by its largest run.
struct Cut {
  std::vector<std::vector<plan::PieceSlice>> runs;
  std::vector<plan::OwnerCost> costs;
  std::vector<std::size_t> kind;         // of each run
  std::vector<plan::OwnerCost> largest;  // of each kind
};

// The number of sequences that a device could sum for a run.
struct Offer {
  std::size_t candidate = 0;
  std::int64_t sequences = 0;
};

// The order in which candidates are asked: those without weights, which have to load them, last.
enum class Turn : std::uint8_t { first, has_weights, loads };

// A share of the slices that a device could sum over all sequences.
struct Whole {
  std::size_t candidate = 0;
  double share = 0;
  Turn turn = Turn::loads;
};

// Bytes through the server's interface.
struct Traffic {
  double out = 0, in = 0;
  void add(const Traffic& other) {
    out += other.out;
    in += other.in;
  }
};

// How the sums of one lost owner are shared out: parts, and for each the index of its candidate.
struct Assignment {
  std::vector<OwnerPart> parts;
  std::vector<std::size_t> candidates;
  Traffic traffic{};
};

// Candidates that have parts already. The server may have some of every lost owner, one after another.
struct Taken {
  std::vector<bool> devices;
  double server = 0;  // seconds of its processor
  Traffic traffic{};
};

class Sharing {
 public:
  Sharing(const plan::StageWork& work, std::span<const LostSums> lost, std::span<const Candidate> candidates,
          std::int64_t chunk, const SharedInterface& interface)
      : work_(work), lost_(lost), chunk_(chunk), interface_(interface) {
    for (const Candidate& candidate : candidates) candidates_.push_back(&candidate);
    std::ranges::stable_sort(candidates_, {}, [](const Candidate* of) {
      return std::max({of->down_busy, of->compute_busy, of->up_busy});
    });
    if (candidates_.size() > kMostLookedAt) candidates_.resize(kMostLookedAt);
    for (const LostSums& one : lost) {
      all_.push_back(plan::owner_cost(work_, *one.cost, one.slices, chunk_));
      cuts_.push_back(cuts_of(one, one.slices));
      readers_.emplace_back();
      for (const Candidate* const candidate : candidates_) {
        const auto found = std::ranges::lower_bound(one.readers, candidate->device, {}, &Reader::device);
        const bool there = found != one.readers.end() && found->device == candidate->device;
        readers_.back().push_back(there ? *found : Reader{candidate->device});
      }
    }
    order_.resize(lost.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    // The owner with most weights has the fewest devices to choose from: it is first.
    std::ranges::stable_sort(order_, std::greater<>{}, [&](std::size_t i) { return in_bytes(all_[i].weights); });
  }

  SharedOut within(double enough, double limit) const {
    const double latest = std::min(limit, kForAllTime);
    const std::int64_t most = placed(at(latest));
    double low = 0, high = std::min(std::max(enough, 1.0), latest);
    std::vector<std::vector<OwnerPart>> best = at(high);
    if (placed(best) == most) return {std::move(best), Seconds(high)};
    while (placed(best) < most) {
      low = high;
      high = std::min(1.5 * high, latest);
      best = at(high);
    }
    while (high - low > kPrecision * high) {
      const double middle = (low + high) / 2;
      std::vector<std::vector<OwnerPart>> assignments = at(middle);
      if (placed(assignments) < most) {
        low = middle;
      } else {
        high = middle;
        best = std::move(assignments);
      }
    }
    return {std::move(best), Seconds(high)};
  }

 private:
  static std::int64_t placed(const std::vector<std::vector<OwnerPart>>& assignments) {
    return std::ranges::count_if(assignments, [](const auto& parts) { return !parts.empty(); });
  }

  Cut cut(const LostSums& lost, std::span<const plan::PieceSlice> slices, std::int64_t runs) const {
    Cut cut{split_slices(work_, *lost.cost, slices, runs, chunk_), {}, {}, {}};
    for (const auto& part : cut.runs) cut.costs.push_back(plan::owner_cost(work_, *lost.cost, part, chunk_));
    for (const plan::OwnerCost& part : cut.costs) {
      const double weights = in_bytes(part.weights);
      if (cut.largest.empty() || std::abs(weights - in_bytes(cut.largest.back().weights)) > kAlike * weights)
        cut.largest.push_back(part);
      plan::OwnerCost& largest = cut.largest.back();
      largest.elements = std::max(largest.elements, part.elements);
      largest.weights = std::max(largest.weights, part.weights);
      largest.at_work = std::max(largest.at_work, part.at_work);
      largest.kept = std::max(largest.kept, part.kept);
      largest.held = std::max(largest.held, part.held);
      largest.alone = std::max(largest.alone, part.alone);
      cut.kind.push_back(cut.largest.size() - 1);
    }
    return cut;
  }
  std::vector<Cut> cuts_of(const LostSums& lost, std::span<const plan::PieceSlice> slices) const {
    std::vector<Cut> cuts;
    const auto most = std::min(kMostRuns, static_cast<std::int64_t>(candidates_.size()));
    for (std::int64_t runs = 1; runs <= most; runs *= 2) {
      cuts.push_back(cut(lost, slices, runs));
      if (std::ssize(cuts.back().runs) < runs) break;
    }
    return cuts;
  }

  // Parts that are done by `time`, of each lost owner; none where nobody has room by then.
  std::vector<std::vector<OwnerPart>> at(double time) const {
    std::vector<std::vector<OwnerPart>> all(lost_.size());
    Taken taken{.devices = std::vector<bool>(candidates_.size(), false)};
    for (const std::size_t i : order_) {
      Assignment best = by_shares(i, time, taken);
      if (best.parts.empty()) best = by_runs(i, cuts_[i], time, taken);
      for (std::size_t k = 0; k < best.parts.size(); ++k) {
        const Candidate& of = *candidates_[best.candidates[k]];
        const OwnerPart& part = best.parts[k];
        taken.devices[best.candidates[k]] = !of.is_server();
        if (of.is_server()) taken.server += static_cast<double>(part.sequences) * part.cost.alone.value() / of.compute;
      }
      taken.traffic.add(best.traffic);
      all[i] = std::move(best.parts);
    }
    return all;
  }

  // The first cut that finds devices: cuts with fewer runs come first, and read less.
  Assignment by_runs(std::size_t i, std::span<const Cut> cuts, double time, const Taken& taken) const {
    for (const Cut& cut : cuts) {
      Assignment assignment = fill(i, cut, time, taken);
      if (!assignment.parts.empty()) return assignment;
    }
    return {};
  }

  // Bytes of candidate k's memory for sums and weights, if it has a part of lost owner i.
  double room(std::size_t i, std::size_t k, Bytes at_work) const {
    return candidates_[k]->memory_for(lost_[i].stage) - (readers_[i][k].owns ? 0 : in_bytes(at_work));
  }
  // The share of lost owner i's sequences that candidate k would have to be sent.
  double unread(std::size_t i, std::size_t k) const {
    return 1 - static_cast<double>(readers_[i][k].sequences) / static_cast<double>(lost_[i].sequences);
  }

  static double computes_until(const Candidate& of, const Taken& taken) {
    return of.compute_busy + (of.is_server() ? taken.server : 0);
  }
  // Bytes of weights that a candidate would have to be sent.
  static double lacks(const Candidate& of, std::int32_t stage, Bytes weights) {
    return of.is_replica(stage) || of.is_server() ? 0 : in_bytes(weights);
  }
  // Seconds from now until a candidate begins to read for its part: after its weights and what it reads anyway, and not
  // before the first sequence has passed.
  double reads_from(std::size_t i, const Candidate& of, double loading) const {
    const double own = of.down_busy - of.down_visits;
    return std::max(loading + of.down_busy, lost_[i].opens.value() + own + of.down_visits / 2);
  }
  // Bytes of a part on candidate k through the interface.
  Traffic traffic_of(std::size_t i, std::size_t k, const plan::OwnerCost& cost, std::int64_t sequences) const {
    const LostSums& lost = lost_[i];
    const Candidate& of = *candidates_[k];
    if (of.is_server()) return {};
    const bool partial = lost.partial || sequences < lost.sequences;
    return {
        lacks(of, lost.stage, cost.weights) + unread(i, k) * static_cast<double>(sequences) * in_bytes(cost.operands),
        cost.elements * (partial ? static_cast<double>(plan::sum_bytes(work_.wire)) : wire())};
  }
  // Whether the interface carries `before` and `more` within `time`.
  bool carries(const Traffic& before, const Traffic& more, double time) const {
    if (more.out == 0 && more.in == 0) return true;
    return interface_.out_busy + (before.out + more.out) / interface_.out <= time &&
           interface_.in_busy + (before.in + more.in) / interface_.in <= time;
  }
  // FLOP of a part for one sequence, on average.
  double flops(std::size_t i, std::size_t k, const plan::OwnerCost& cost) const {
    const double again = unread(i, k);
    return again * cost.alone.value() + (1 - again) * cost.beside.value();
  }
  // Seconds from now until a candidate has sent the sums that it makes already, which come first.
  static double sums_in(const Candidate& of) {
    return std::max({of.up_busy, of.last_read, of.down_busy, of.compute_busy}) + of.sums_busy;
  }

  // The share of the slices that each candidate could sum over all sequences by `time`, those with the weights first.
  std::vector<Whole> wholes(std::size_t i, double time, const Taken& taken) const {
    const LostSums& lost = lost_[i];
    const plan::OwnerCost& all = all_[i];
    const bool several = lost.cost->end() - lost.cost->first() > 1;  // pieces, of which each part needs all weights
    const auto sequences = static_cast<double>(lost.sequences);
    const auto sum = static_cast<double>(plan::sum_bytes(work_.wire));
    const double held = all.elements * sum, sent = all.elements * (lost.partial ? sum : wire());
    std::vector<Whole> list;
    for (std::size_t k = 0; k < candidates_.size(); ++k) {
      if (taken.devices[k]) continue;
      const Candidate& of = *candidates_[k];
      const bool replica = of.is_replica(lost.stage);
      const double weights = lacks(of, lost.stage, all.weights);
      const double whole_weights = several ? weights : 0, its_weights = several ? 0 : weights;
      const double sending = sent / of.uplink;
      const double reading = sequences * unread(i, k) * in_bytes(all.operands) / of.downlink;
      const double computing = sequences * flops(i, k, all) / of.compute, loading = whole_weights / of.downlink;
      const double share =
          std::min({1.0,
                    (room(i, k, all.at_work) - kBytesBeyondShare - whole_weights) /
                        (held + its_weights + in_bytes(all.waiting(replica))),
                    (time - sums_in(of)) / sending, (time - lost.ready.value()) / sending,
                    (time - reads_from(i, of, loading) - reading) / (sending + its_weights / of.downlink),
                    (time - computes_until(of, taken) - computing - loading) / (sending + its_weights / of.downlink)});
      if (share < kLeastOfSums) continue;
      // The server comes after devices that have the weights, unless it has time for all of it, and is to be first.
      const bool takes_all = share >= 1 && computes_until(of, taken) + computing <= kServerTimeShare * time;
      list.push_back({k, share,
                      of.asked_first && takes_all     ? Turn::first
                      : weights > 0 || of.is_server() ? Turn::loads
                                                      : Turn::has_weights});
    }
    std::ranges::stable_sort(
        list, [](const Whole& a, const Whole& b) { return a.turn != b.turn ? a.turn < b.turn : a.share > b.share; });
    return list;
  }

  // First shares of the slices, each over all sequences; what is left after that, in runs.
  Assignment by_shares(std::size_t i, double time, Taken taken) const {
    const LostSums& lost = lost_[i];
    Assignment assignment;
    double from = 0;
    std::int64_t number = 0;
    for (const Whole& whole : wholes(i, time, taken)) {
      if (from >= 1) break;
      const double to = from + whole.share > 1 - kLeastOfSums / 2 ? 1 : from + whole.share;
      if (to - from > whole.share * (1 + 1e-9)) continue;  // rounding up to 1 would be too much for this candidate
      const Candidate& of = *candidates_[whole.candidate];
      const bool replica = of.is_replica(lost.stage);
      auto slices = slices_of_share(work_, *lost.cost, lost.slices, from, to, chunk_);
      if (slices.empty()) continue;
      const plan::OwnerCost cost = plan::owner_cost(work_, *lost.cost, slices, chunk_);
      if (in_bytes(owner_memory(work_, cost, replica)) - in_bytes(cost.at_work) >
          room(i, whole.candidate, cost.at_work))
        continue;
      const Traffic traffic = traffic_of(i, whole.candidate, cost, lost.sequences);
      if (!carries(taken.traffic, traffic, time)) continue;
      taken.traffic.add(traffic);
      assignment.traffic.add(traffic);
      assignment.parts.push_back(
          {of.device, replica, readers_[i][whole.candidate].owns, std::move(slices), cost, number++, lost.sequences});
      assignment.candidates.push_back(whole.candidate);
      taken.devices[whole.candidate] = true;
      from = to;
    }
    if (from >= 1) return assignment;
    if (assignment.parts.empty()) return {};
    const Assignment rest =
        by_runs(i, cuts_of(lost, slices_of_share(work_, *lost.cost, lost.slices, from, 1, chunk_)), time, taken);
    if (rest.parts.empty()) return {};
    for (OwnerPart part : rest.parts) {
      part.run += number;
      assignment.parts.push_back(std::move(part));
    }
    assignment.candidates.insert(assignment.candidates.end(), rest.candidates.begin(), rest.candidates.end());
    assignment.traffic.add(rest.traffic);
    return assignment;
  }

  std::vector<Offer> offers(std::size_t i, const plan::OwnerCost& cost, double time, const Taken& taken) const {
    const LostSums& lost = lost_[i];
    std::vector<Offer> offers;
    const double whole = cost.elements * wire();
    const double part = cost.elements * static_cast<double>(plan::sum_bytes(work_.wire));
    for (std::size_t k = 0; k < candidates_.size(); ++k) {
      if (taken.devices[k]) continue;
      const Candidate& of = *candidates_[k];
      const bool replica = of.is_replica(lost.stage);
      const double needs = in_bytes(owner_memory(work_, cost, replica)) - in_bytes(cost.at_work);
      if (needs > room(i, k, cost.at_work)) continue;
      const double reads = unread(i, k) * in_bytes(cost.operands) / of.downlink;
      const double computes = flops(i, k, cost) / of.compute;
      const double weights = lacks(of, lost.stage, cost.weights) / of.downlink;
      const auto sequences = [&](double sums) {
        const double reading = time - sums / of.uplink;
        if (reading < std::max(sums_in(of), lost.ready.value())) return std::int64_t{0};
        const double left = reading - reads_from(i, of, weights);
        const double by_link = left < 0 ? 0 : reads > 0 ? left / reads : 1e9;
        const double most = std::min(by_link, (reading - weights - computes_until(of, taken)) / computes);
        return most < 1 ? 0 : static_cast<std::int64_t>(std::min(most, 1e9));
      };
      const bool alone = !lost.partial && sequences(whole) >= lost.sequences;
      const std::int64_t its = alone ? lost.sequences : std::min(lost.sequences, sequences(part));
      if (its > 0) offers.push_back({k, its});
    }
    std::ranges::stable_sort(offers, std::greater<>{}, &Offer::sequences);
    return offers;
  }

  // Parts for the runs of a cut: candidates that can take most sequences come first, but the last part of a run goes to
  // the candidate that can take the fewest, yet all that are left.
  Assignment fill(std::size_t i, const Cut& cut, double time, Taken taken) const {
    const LostSums& lost = lost_[i];
    std::vector<Offer> open;
    Assignment assignment;
    for (std::size_t run = 0; run < cut.runs.size(); ++run) {
      if (run == 0 || cut.kind[run] != cut.kind[run - 1]) open = offers(i, cut.largest[cut.kind[run]], time, taken);
      for (std::int64_t left = lost.sequences; left > 0;) {
        if (open.empty()) return {};
        auto next = open.begin();
        if (next->sequences >= left) {
          next = std::ranges::upper_bound(open, left, std::greater<>{}, &Offer::sequences) - 1;
        }
        const std::int64_t its = std::min(left, next->sequences);
        const Candidate& of = *candidates_[next->candidate];
        const Traffic traffic = traffic_of(i, next->candidate, cut.costs[run], its);
        if (!carries(taken.traffic, traffic, time)) return {};
        taken.traffic.add(traffic);
        assignment.traffic.add(traffic);
        assignment.parts.push_back({of.device, of.is_replica(lost.stage), readers_[i][next->candidate].owns,
                                    cut.runs[run], cut.costs[run], static_cast<std::int64_t>(run), its});
        assignment.candidates.push_back(next->candidate);
        taken.devices[next->candidate] = true;
        left -= its;
        open.erase(next);
      }
    }
    return assignment;
  }

  double wire() const { return static_cast<double>(size_of(work_.wire)); }

  const plan::StageWork& work_;
  std::span<const LostSums> lost_;
  std::int64_t chunk_;
  SharedInterface interface_;
  std::vector<const Candidate*> candidates_;
  std::vector<plan::OwnerCost> all_;  // of each lost owner's slices together
  std::vector<std::vector<Cut>> cuts_;
  std::vector<std::vector<Reader>> readers_;  // of each lost owner: of each candidate
  std::vector<std::size_t> order_;
};

}  // namespace

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

std::vector<plan::PieceSlice> slices_after(const plan::StageWork& work, const plan::StageCost& cost,
                                           std::span<const plan::PieceSlice> slices, double share, std::int64_t chunk) {
  double arrived = share * plan::owner_cost(work, cost, slices, chunk).elements;
  std::vector<plan::PieceSlice> rest;
  for (const plan::PieceSlice& slice : slices) {
    const double elements = plan::owner_cost(work, cost, std::span(&slice, 1), chunk).elements;
    const double in = elements > 0 ? std::clamp(arrived / elements, 0.0, 1.0) : 1;
    const auto units = static_cast<std::int64_t>(in * static_cast<double>(slice.end - slice.begin));
    if (slice.begin + units < slice.end) rest.push_back({slice.piece, slice.begin + units, slice.end});
    arrived -= std::min(arrived, elements);
  }
  return rest;
}

std::vector<plan::PieceSlice> slices_of_share(const plan::StageWork& work, const plan::StageCost& cost,
                                              std::span<const plan::PieceSlice> slices, double from, double to,
                                              std::int64_t chunk) {
  std::vector<plan::PieceSlice> part(slices.begin(), slices.end()), rest;
  if (from > 0) part = slices_after(work, cost, slices, from, chunk);
  if (to < 1) rest = slices_after(work, cost, slices, to, chunk);
  for (plan::PieceSlice& slice : part) {
    // A piece may have several slices: each ends where what is left of it, if anything, ends.
    const auto later = std::ranges::find_if(
        rest, [&](const plan::PieceSlice& of) { return of.piece == slice.piece && of.end == slice.end; });
    if (later != rest.end()) slice.end = later->begin;
  }
  std::erase_if(part, [](const plan::PieceSlice& slice) { return slice.begin >= slice.end; });
  return part;
}

SharedOut share_out(const plan::StageWork& work, std::span<const LostSums> lost, std::span<const Candidate> candidates,
                    Seconds enough, Seconds limit, std::int64_t chunk, const SharedInterface& interface) {
  return Sharing(work, lost, candidates, chunk, interface).within(enough.value(), limit.value());
}

std::vector<std::size_t> deal_sequences(std::span<const std::int64_t> shares) {
  const std::int64_t all = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::vector<std::int64_t> dealt(shares.size(), 0);
  std::vector<std::size_t> owners;
  for (std::int64_t q = 0; q < all; ++q) {
    std::size_t next = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < shares.size(); ++k) {
      if (dealt[k] == shares[k]) continue;
      const double after = (static_cast<double>(dealt[k]) + 0.5) / static_cast<double>(shares[k]);
      if (after >= least) continue;
      least = after;
      next = k;
    }
    ++dealt[next];
    owners.push_back(next);
  }
  return owners;
}

}  // namespace cleave::sched::stages
