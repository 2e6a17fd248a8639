// Which sums are recomputed, by which watchers, and how they are compared.
#include "stages/run_watchers.hpp"

#include <algorithm>
#include <limits>

#include "quorum/witness_draw.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

using plan::PieceSlice;

constexpr std::int64_t kOfSums = 1 << 20, kChoice = kOfSums + 1;  // purposes of draws, unlike those of run_witness.cpp
constexpr double kLeastShare = 0.01;  // share of a gradient below which a watcher is not worth the operands it reads
// The time within which a watcher must be done, as a share of what is left of the step.
constexpr double kWatchersInTime = 0.85;
constexpr double kOwnersAlone = 0;  // none: only owners of the same gradient, which read everything anyway
constexpr double kAnyTime = std::numeric_limits<double>::infinity();
constexpr double kOfServer = 0.6;  // share of the step's time that the server may spend on sums
constexpr double kNoWeights = 2;   // factor of a candidate's score that needs no weights
constexpr double kUnlike = 0.5;    // share of a score that is drawn

std::vector<PieceSlice> common(const std::vector<PieceSlice>& a, const std::vector<PieceSlice>& b) {
  std::vector<PieceSlice> both;
  for (const PieceSlice& x : a) {
    for (const PieceSlice& y : b) {
      const std::int64_t begin = std::max(x.begin, y.begin), end = std::min(x.end, y.end);
      if (x.piece == y.piece && begin < end) both.push_back({x.piece, begin, end});
    }
  }
  return both;
}

// Set difference: `ranges` without `others`.
std::vector<PieceSlice> without(std::vector<PieceSlice> ranges, const std::vector<PieceSlice>& others) {
  for (const PieceSlice& other : others) {
    std::vector<PieceSlice> left;
    for (const PieceSlice& range : ranges) {
      const std::int64_t begin = std::max(range.begin, other.begin), end = std::min(range.end, other.end);
      if (range.piece != other.piece || begin >= end) {
        left.push_back(range);
        continue;
      }
      if (range.begin < begin) left.push_back({range.piece, range.begin, begin});
      if (end < range.end) left.push_back({range.piece, end, range.end});
    }
    ranges = std::move(left);
  }
  return ranges;
}

}  // namespace

void Watchers::begin() {
  sums_ = 0;
  server_left_ = Flops(0);
}

void Watchers::watch() {
  if (!run_.options.quorum) return;
  server_left_ = Flops(run_.options.stages.server.compute.value() * run_.plan.forecast.value() * kOfServer);
  std::vector<Unwatched> sums = drawn_sums();
  for (const double within : {kOwnersAlone, kWatchersInTime}) {
    // The gradient with most left to watch has the fewest candidates, so it comes first.
    std::ranges::stable_sort(sums, std::greater<>{}, [&](const Unwatched& of) { return elements_of(of, of.rest); });
    for (Unwatched& of : sums) {
      while (const std::optional<Watcher> watcher = best_watcher(of, within)) take(of, *watcher);
    }
    std::erase_if(sums, [](const Unwatched& of) { return of.rest.empty(); });
    // If the server has time for all that owners do not watch, no other device need read anything.
    Flops left(0);
    for (const Unwatched& of : sums) left += flops_of(of);
    if (left <= server_left_) break;
  }
  watch_rest(sums);
}

std::vector<Watchers::Unwatched> Watchers::drawn_sums() {
  std::vector<Unwatched> sums;
  for (std::int32_t s = run_.top(); s >= 0; --s) {
    if (!run_.is_open(s)) continue;
    const std::vector<std::int32_t> owners = run_.at(s).owners;
    for (std::int64_t group = 0; group < run_.plan.groups[static_cast<std::size_t>(s)]; ++group) {
      std::vector<std::int32_t> firsts;
      for (const std::int32_t index : owners) {
        if (run_.owner_at(index).group == group) firsts.push_back(index);
      }
      if (firsts.empty() || secret_uniform(run_.options.quorum->secret, run_.witnesses.draws() + firsts.front(),
                                           kOfSums) >= run_.options.quorum->fraction)
        continue;
      for (const std::int32_t index : firsts) run_.owner_at(index).drawn = true;
      sums.push_back({s, std::move(firsts), plan::slices_between(run_.work, run_.at(s).cost, 0, 1)});
    }
  }
  return sums;
}

// Of what nobody can watch in time, the gradient that would be latest comes first. The server takes it while it has
// time left, or if it would still be done sooner than the best device; otherwise that device does.
void Watchers::watch_rest(std::vector<Unwatched>& sums) {
  for (;;) {
    std::erase_if(sums, [](const Unwatched& of) { return of.rest.empty(); });
    Unwatched* latest = nullptr;
    std::optional<Watcher> watcher;
    for (Unwatched& of : sums) {
      std::optional<Watcher> best = best_watcher(of, kAnyTime);
      if (latest != nullptr && best && best->late <= watcher->late) continue;
      latest = &of;
      watcher = std::move(best);
      if (!watcher) break;
    }
    if (latest == nullptr) return;
    const Flops flops = flops_of(*latest);
    const double over =
        (flops - server_left_).value() / (run_.options.stages.server.compute.value() * run_.progress.ends_in().value());
    if (over <= 0 || (watcher && 1 + over < watcher->late)) {
      server_left_ -= flops;
      begin_watching(*latest, {.device = kServer, .slices = latest->rest});
      latest->rest.clear();
    } else if (watcher) {
      take(*latest, *watcher);
    } else {
      latest->rest.clear();  // the server sums it when its owners have sent it
    }
  }
}

Flops Watchers::flops_of(const Unwatched& of) {
  return plan::owner_cost(run_.work, run_.at(of.stage).cost, of.rest, run_.plan.chunk).alone *
         sequences_of(run_.owner[static_cast<std::size_t>(of.firsts.front())]);
}

double Watchers::sequences_of(const OwnerState& of) const {
  if (!of.sequences.empty()) return static_cast<double>(of.sequences.size());
  return static_cast<double>(run_.batch) / static_cast<double>(run_.plan.groups[static_cast<std::size_t>(of.stage)]);
}

double Watchers::elements_of(const Unwatched& of, std::span<const PieceSlice> slices) {
  return slices.empty() ? 0 : plan::owner_cost(run_.work, run_.at(of.stage).cost, slices, run_.plan.chunk).elements;
}

// The first `elements` elements of these slices.
std::vector<PieceSlice> Watchers::first_of(const Unwatched& of, const std::vector<PieceSlice>& slices,
                                           double elements) {
  std::vector<PieceSlice> first;
  for (const PieceSlice& slice : slices) {
    const double its = elements_of(of, std::span(&slice, 1));
    if (its > elements * (1 + 1e-9)) {
      const std::vector<PieceSlice> part =
          slices_of_share(run_.work, run_.at(of.stage).cost, std::span(&slice, 1), 0, elements / its, run_.plan.chunk);
      first.insert(first.end(), part.begin(), part.end());
      return first;
    }
    first.push_back(slice);
    elements -= its;
  }
  return first;
}

void Watchers::begin_watching(const Unwatched& of, const Watcher& watcher) {
  const OwnerState first = run_.owner[static_cast<std::size_t>(of.firsts.front())];
  const std::int32_t index =
      run_.add_owner(watcher.device, of.stage, watcher.replica, first.partial, {}, first.sequences);
  run_.owner_at(index).group = first.group;
  add_watched(index, watcher.slices);
}

// The candidate that takes most elements soonest. Owners of the same gradient read everything anyway, so for them only
// memory counts.
std::optional<Watchers::Watcher> Watchers::best_watcher(const Unwatched& of, double within) {
  if (of.rest.empty()) return std::nullopt;
  const plan::StageCost& cost = run_.at(of.stage).cost;
  const OwnerState& first = run_.owner[static_cast<std::size_t>(of.firsts.front())];
  const bool several = cost.end() - cost.first() > 1;
  const double left = run_.progress.ends_in().value(), sequences = sequences_of(first);
  const double all = cost.gradient_elements(), rest = elements_of(of, of.rest);
  const plan::OwnerCost typical =
      plan::owner_cost(run_.work, cost, first_of(of, of.rest, std::min(rest, 0.2 * all)), run_.plan.chunk);
  double best = 0, best_elements = 0;
  std::optional<Watcher> chosen;
  std::vector<PieceSlice> from;
  for (const Candidate& candidate : run_.candidates.all()) {
    if (of.full.contains(candidate.device)) continue;
    const bool replica = candidate.is_replica(of.stage);
    const std::int32_t widens = owner_like(candidate.device, first);
    if (within == kOwnersAlone && widens < 0) continue;
    const double weights = replica || widens >= 0 ? 0 : in_bytes(several ? cost.weights() : typical.weights);
    const double memory =
        candidate.memory_for(of.stage) - (widens >= 0 ? 0 : in_bytes(typical.at_work)) - (several ? weights : 0);
    const double waiting = typical.elements > 0 ? in_bytes(typical.waiting(replica)) / typical.elements : 0;
    const auto active = std::ranges::find(run_.at(of.stage).replicas, candidate.device, &ActiveReplica::device);
    const double open = replica && typical.elements > 0
                            ? in_bytes(run_.places_beside(cost, *active, typical.of_each())) / typical.elements
                            : 0;
    const double per_element = static_cast<double>(plan::sum_bytes(run_.work.wire)) + waiting + open +
                               (replica || several ? 0 : in_bytes(cost.weights()) / all);
    double elements = std::min(rest, memory / per_element * 0.99);
    if (elements < kLeastShare * all && elements < rest) continue;
    std::vector<PieceSlice> may = of.rest;
    for (const std::int32_t index : of.firsts) {
      const OwnerState& sums = run_.owner_at(index);
      if (!run_.witnesses.apart(candidate.device, sums.device)) may = without(std::move(may), sums.slices);
    }
    if (may.empty()) continue;
    elements = std::min(elements, elements_of(of, may));
    const double own = replica ? candidate.uplink / std::max(candidate.uplink, run_.at(of.stage).uplink) : 0;
    const double read = widens >= 0 ? 0 : sequences * (1 - own);
    const double time =
        std::max(candidate.down_busy + (weights + read * in_bytes(typical.operands)) / candidate.downlink,
                 candidate.compute_busy + read * typical.alone.value() / candidate.compute);
    if (widens < 0 && time > within * left) continue;
    const double late = std::max(1.0, time / (kWatchersInTime * left));
    const double drawn = secret_uniform(run_.options.quorum->secret, run_.witnesses.draws() + of.firsts.front(),
                                        kChoice + candidate.device);
    const double score = (replica ? kNoWeights : 1) * elements / (late * late) * (1 - kUnlike * drawn);
    if (score <= best) continue;
    best = score;
    best_elements = elements;
    from = std::move(may);
    chosen = Watcher{.device = candidate.device, .widened = widens, .replica = replica, .late = time / left};
  }
  if (chosen) chosen->slices = first_of(of, from, best_elements);
  return chosen;
}

// Memory of a watcher's sums, and of what a replica holds for them of each open sequence beyond the least number.
Bytes Watchers::memory_for(std::int32_t s, const Watcher& watcher) {
  const plan::StageCost& cost = run_.at(s).cost;
  plan::OwnerCost sums = plan::owner_cost(run_.work, cost, watcher.slices, run_.plan.chunk);
  Bytes needed = owner_memory(run_.work, sums, watcher.replica), each = sums.of_each();
  if (watcher.widened >= 0) {
    const OwnerState& widened = run_.owner[static_cast<std::size_t>(watcher.widened)];
    sums = cost_with(widened, watcher.slices);
    needed = owner_memory(run_.work, sums, widened.replica) - run_.memory_of(widened);
    each = sums.of_each() - widened.cost.of_each();
  }
  const auto active = std::ranges::find(run_.at(s).replicas, watcher.device, &ActiveReplica::device);
  return needed + (watcher.replica ? run_.places_beside(cost, *active, each) : Bytes(0));
}

// A device that turns out to have no memory for it is not asked again.
void Watchers::take(Unwatched& of, const Watcher& watcher) {
  if (watcher.slices.empty()) {
    of.full.insert(watcher.device);
    return;
  }
  run_.make_room(watcher.device, memory_for(of.stage, watcher), of.stage);
  if (run_.book(watcher.device).free < memory_for(of.stage, watcher)) {
    of.full.insert(watcher.device);
    return;
  }
  ++run_.report.witnesses;
  if (watcher.widened >= 0) {
    add_watched(watcher.widened, watcher.slices);
  } else {
    begin_watching(of, watcher);
  }
  of.rest = without(std::move(of.rest), watcher.slices);
}

void Watchers::add_watched(std::int32_t index, const std::vector<PieceSlice>& slices) {
  OwnerState& of = run_.owner_at(index);
  if (of.watched.empty()) {
    ++sums_;
    ++run_.at(of.stage).gradients_left;
  }
  const plan::OwnerCost cost = cost_with(of, slices);
  if (of.device != kServer)
    run_.book(of.device).free -=
        owner_memory(run_.work, cost, of.replica) - owner_memory(run_.work, of.cost, of.replica);
  const auto active = std::ranges::find(run_.at(of.stage).replicas, of.device, &ActiveReplica::device);
  if (of.replica && active != run_.at(of.stage).replicas.end())
    run_.widen_places(of.stage, *active, cost.of_each() - of.cost.of_each());
  of.cost = cost;
  of.watched.insert(of.watched.end(), slices.begin(), slices.end());
}

// The cost of an owner that sums `slices` too.
plan::OwnerCost Watchers::cost_with(const OwnerState& of, const std::vector<PieceSlice>& slices) {
  std::vector<PieceSlice> held = of.slices;
  held.insert(held.end(), of.watched.begin(), of.watched.end());
  held.insert(held.end(), slices.begin(), slices.end());
  std::ranges::sort(held, {}, [](const PieceSlice& slice) { return std::pair(slice.piece, slice.begin); });
  return plan::owner_cost(run_.work, run_.at(of.stage).cost, held, run_.plan.chunk);
}

// The index of an owner on the device that reads the same sequences, and is not loaded yet; kNobody if there is none.
std::int32_t Watchers::owner_like(std::int32_t id, const OwnerState& like) {
  for (const std::int32_t index : run_.at(like.stage).owners) {
    const OwnerState& of = run_.owner_at(index);
    if (of.device == id && !of.slices.empty() && !of.load.valid() && of.group == like.group) return index;
  }
  return kNobody;
}

bool Watchers::comparable(const OwnerState& watcher, const OwnerState& first) {
  if (watcher.group != first.group ||
      (watcher.device != kServer && !run_.witnesses.apart(watcher.device, first.device)))
    return false;
  std::vector<std::int64_t> a = watcher.sequences, b = first.sequences;
  std::ranges::sort(a);
  std::ranges::sort(b);
  return a == b;
}

void Watchers::ask(std::int32_t s) {
  if (!run_.options.quorum) return;
  const std::vector<std::int32_t> owners = run_.at(s).owners;
  for (const std::int32_t index : owners) {
    const OwnerState& of = run_.owner_at(index);
    if (!of.watched.empty() && of.left == 0 && run_.at(s).ungrouped == 0) ask_for_digests(index);
  }
}

void Watchers::compare(std::int32_t first) {
  const std::int32_t s = run_.owner_at(first).stage;
  if (!run_.owner_at(first).drawn) return ask(s);
  const std::vector<std::int32_t> owners = run_.at(s).owners;
  std::vector<PieceSlice> rest = run_.owner_at(first).slices;
  for (const std::int32_t index : owners) {
    const OwnerState& of = run_.owner_at(index);
    if (index != first && !of.watched.empty() && comparable(of, run_.owner_at(first)))
      rest = without(std::move(rest), of.watched);
  }
  ask_server(first, without(std::move(rest), run_.owner_at(first).by_server));
  ask(s);
}

void Watchers::compare_arrived(std::int32_t first, const std::vector<PieceSlice>& slices) {
  if (run_.owner_at(first).drawn) ask_server(first, slices);
}

void Watchers::ask_server(std::int32_t first, const std::vector<PieceSlice>& slices) {
  for (const PieceSlice& range : slices) {
    run_.owner_at(first).by_server.push_back(range);
    ++run_.at(run_.owner_at(first).stage).gradients_left;
    ++sums_;
    ask_for_digest(kNobody, first, {range});
  }
}

void Watchers::ask_for_digests(std::int32_t index) {
  const std::int32_t s = run_.owner_at(index).stage, id = run_.owner_at(index).device;
  if (id != kServer && !run_.book(id).present) return;  // recovery calls stop()
  bool waits = false;
  const std::vector<std::int32_t> owners = run_.at(s).owners;
  for (const std::int32_t first : owners) {
    const OwnerState &of = run_.owner_at(first), &own = run_.owner_at(index);
    std::vector<PieceSlice> both = common(of.slices, own.watched);
    if (both.empty()) continue;
    if (!of.closed) waits = waits || of.group == own.group;
    if (!of.sent || !of.drawn || !comparable(own, of)) continue;
    if (std::ranges::find(own.asked, first) != own.asked.end()) continue;
    run_.owner_at(index).asked.push_back(first);
    ask_for_digest(index, first, std::move(both));
  }
  if (!waits && run_.owner_at(index).open == 0) watched_all(index);
}

void Watchers::ask_for_digest(std::int32_t watcher, std::int32_t first, std::vector<PieceSlice> slices) {
  const OwnerState& of = run_.owner_at(first);
  const bool alone = watcher == kNobody;  // the server, which has not read along
  const std::int32_t witness = alone ? kServer : run_.owner_at(watcher).device;
  plan::PanelRun run{.each = {with_header(Bytes(plan::kSliceRecord * std::ssize(slices))), Flops(0), Bytes(0)},
                     .panels = 1,
                     .last_up = with_header(kDigestPayload)};
  if (alone) {
    run.each.flops = plan::owner_cost(run_.work, run_.at(of.stage).cost, slices, run_.plan.chunk).alone *
                     static_cast<double>(of.sequences.size());
  } else {
    ++run_.owner_at(watcher).open;
  }
  run_.submit({Errand::witness_sums, witness, of.stage, watcher, 0, first}, {kWitness, of.stage}, run, Bytes(0), false,
              {.owner = watcher,
               .partial = of.partial,
               .first = first,
               .slices = std::make_shared<const std::vector<PieceSlice>>(std::move(slices))});
}

void Watchers::digest_in(const Purpose& purpose) {
  if (purpose.owner < 0) {
    --sums_;
    return run_.gradient_in(purpose.stage);
  }
  OwnerState& of = run_.owner[static_cast<std::size_t>(purpose.owner)];
  --of.open;
  if (!of.watched.empty()) ask_for_digests(purpose.owner);
}

// It is not asked again: a device that refuses would refuse for ever.
void Watchers::digest_lost(const Purpose& purpose) {
  OwnerState& of = run_.owner[static_cast<std::size_t>(purpose.owner)];
  --of.open;
  if (run_.book(of.device).present) stop(purpose.owner);
}

void Watchers::watched_all(std::int32_t index) {
  OwnerState& of = run_.owner_at(index);
  of.watched.clear();
  run_.leave_role(of);
  --sums_;
  run_.gradient_in(of.stage);
}

void Watchers::stop(std::int32_t index) {
  if (run_.owner_at(index).watched.empty()) return;
  const std::int32_t s = run_.owner_at(index).stage;
  const std::vector<PieceSlice> slices = std::exchange(run_.owner_at(index).watched, {});
  std::vector<std::int32_t> firsts;
  for (const std::int32_t other : run_.at(s).owners) {
    const OwnerState& of = run_.owner_at(other);
    if (of.drawn && (!of.closed || of.sent) && !common(of.slices, slices).empty()) firsts.push_back(other);
  }
  for (const std::int32_t first : firsts) {
    if (run_.owner_at(first).sent) compare(first);
  }
  run_.leave_role(run_.owner_at(index));
  --sums_;
  run_.gradient_in(s);
}

}  // namespace cleave::sched::stages
