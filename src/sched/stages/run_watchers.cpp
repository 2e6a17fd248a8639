// Sums made again by owners that watch others (docs/security.md, "A second device"). Who watches reads the same
// operands and sums the same units over the same sequences; when an owner's sums are at the server, it returns a digest
// of them. Owners of the same gradient read everything anyway, so they are asked first, and the owners of a gradient
// are drawn together. What nobody watches of sums that were drawn, the server sums itself.
#include <algorithm>
#include <cmath>
#include <limits>

#include "quorum/witness_draw.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

using plan::PieceSlice;

constexpr std::int64_t kOfSums = 1 << 20, kChoice = kOfSums + 1;  // draws, beside those of run_witness.cpp
constexpr double kLeastShare = 0.01;                              // of a gradient, that is worth reading everything for
constexpr double kInTime = 0.9;                                   // of what the step has left
constexpr double kOfServer = 0.6;                                 // of its time, that it may sum along
constexpr double kNothingRead = 10, kNoWeights = 2;               // what a share is worth that costs less
constexpr double kUnlike = 0.5;                                   // by which draws may change who is best

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

// What is left of ranges without others.
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

void StageRun::watch_sums() {
  if (!options.quorum) return;
  pairs.server_left = Flops(options.stages.server.compute.value() * plan.forecast.value() * kOfServer);
  // The highest stages as a rule have most weights, so fewest devices can watch their sums: they choose first.
  for (std::int32_t s = top(); s >= 0; --s) {
    const std::vector<std::int32_t> owners = at(s).owners;
    for (std::int64_t group = 0; group < plan.groups[static_cast<std::size_t>(s)]; ++group) {
      std::vector<std::int32_t> firsts;
      for (const std::int32_t index : owners) {
        if (owner[static_cast<std::size_t>(index)].group == group) firsts.push_back(index);
      }
      if (firsts.empty() ||
          secret_uniform(options.quorum->secret, draws + firsts.front(), kOfSums) >= options.quorum->fraction)
        continue;
      for (const std::int32_t index : firsts) owner[static_cast<std::size_t>(index)].drawn = true;
      watch(s, plan::slices_between(work, at(s).cost, 0, 1), firsts, true);
    }
  }
  add_witness_slots();
}

void StageRun::add_watched(std::int32_t index, const std::vector<PieceSlice>& slices) {
  OwnerState& of = owner[static_cast<std::size_t>(index)];
  if (of.watched.empty()) {
    ++pairs.sums;
    ++at(of.stage).gradients_left;
  }
  const plan::OwnerCost cost = cost_with(of, slices);
  if (of.device != kServer)
    book(of.device).free -= owner_memory(work, cost, of.replica) - owner_memory(work, of.cost, of.replica);
  of.cost = cost;
  of.watched.insert(of.watched.end(), slices.begin(), slices.end());
}

// Of an owner that sums these slices as well.
plan::OwnerCost StageRun::cost_with(const OwnerState& of, const std::vector<PieceSlice>& slices) {
  std::vector<PieceSlice> held = of.slices;
  held.insert(held.end(), of.watched.begin(), of.watched.end());
  held.insert(held.end(), slices.begin(), slices.end());
  std::ranges::sort(held, {}, [](const PieceSlice& slice) { return std::pair(slice.piece, slice.begin); });
  return plan::owner_cost(work, at(of.stage).cost, held, plan.chunk);
}

// From the first unit to the last: whoever can take most of what is left in the time that the step has. Owners of the
// same gradient read everything anyway, so they need room alone.
void StageRun::watch(std::int32_t s, const std::vector<PieceSlice>& slices, const std::vector<std::int32_t>& firsts,
                     bool begins) {
  const plan::StageCost cost = at(s).cost;
  const double elements = plan::owner_cost(work, cost, slices, plan.chunk).elements;
  const bool several = cost.end() - cost.first() > 1;
  const auto size = [](Bytes bytes) { return static_cast<double>(bytes.value()); };
  const OwnerState first = owner[static_cast<std::size_t>(firsts.front())];
  const double in_time = kInTime * ends_in().value();
  const auto groups = static_cast<double>(plan.groups[static_cast<std::size_t>(s)]);
  const double sequences =
      first.sequences.empty() ? static_cast<double>(batch) / groups : static_cast<double>(first.sequences.size());
  const auto begin_watching = [&](std::int32_t id, bool replica, const std::vector<PieceSlice>& its) {
    const std::int32_t index = add_owner(id, s, replica, first.partial, {}, first.sequences);
    owner[static_cast<std::size_t>(index)].group = first.group;
    add_watched(index, its);
    if (begins) return;
    load_owner(index);
    for (const std::int64_t q : first.sequences) {
      const Visit& ran = summed_visit(s, q);
      if (!has_gradient(s, q)) continue;
      if (!replica || ran.done == chunks || (ran.placed() && ran.device != id)) send_operands(index, q);
    }
  };
  std::set<std::int32_t> full;  // they have less room than it seemed
  for (double from = 0; from < 1 - 1e-9;) {
    const auto part = [&](double to) { return slices_of_share(work, cost, slices, from, to, plan.chunk); };
    const plan::OwnerCost typical = plan::owner_cost(work, cost, part(std::min(1.0, from + 0.2)), plan.chunk);
    const std::vector<PieceSlice> rest = part(1);
    double best = 0, best_to = from;
    std::int32_t chosen = kNobody, widened = kNobody;
    bool is_replica = false, in_good_time = false;
    for (const Candidate& candidate : candidates()) {
      if (full.contains(candidate.device)) continue;
      const bool replica = candidate.is_replica(s);
      const std::int32_t widens = begins ? owner_like(candidate.device, first) : kNobody;
      double to = 1;
      for (const std::int32_t index : firsts) {
        const OwnerState& of = owner[static_cast<std::size_t>(index)];
        if (!apart(candidate.device, of.device))
          to = std::min(to, from + share_before(rest, of.slices, cost) / elements);
      }
      const bool all_weights = several && !replica && widens < 0;
      const double weights = replica || widens >= 0 ? 0 : size(several ? cost.weights() : typical.weights);
      const double memory =
          candidate.memory_for(s) - (widens >= 0 ? 0 : size(typical.at_work)) - (all_weights ? weights : 0);
      const double per_share =
          elements * static_cast<double>(plan::sum_bytes(work.wire)) + (replica || several ? 0 : size(cost.weights()));
      to = std::min(to, from + memory / per_share * 0.99);
      if (to - from < kLeastShare && to < 1 - 1e-9) continue;
      const double own = replica ? candidate.uplink / std::max(candidate.uplink, at(s).uplink) : 0;
      const double read = widens >= 0 ? 0 : sequences * (1 - own);
      const double time = std::max(candidate.down_busy + (weights + read * size(typical.operands)) / candidate.downlink,
                                   candidate.compute_busy + read * typical.alone.value() / candidate.compute);
      const double late = std::max(1.0, time / in_time);
      const double drawn = secret_uniform(options.quorum->secret, draws + firsts.front(), kChoice + candidate.device);
      const double pays = widens >= 0 ? kNothingRead : replica ? kNoWeights : 1;
      const double score = pays * (to - from) / (late * late) * (1 - kUnlike * drawn);
      if (score <= best) continue;
      best = score;
      best_to = to;
      in_good_time = time <= in_time;
      chosen = candidate.device;
      widened = widens;
      is_replica = replica;
    }
    if (!in_good_time) {  // or nobody
      const Flops flops = plan::owner_cost(work, cost, rest, plan.chunk).alone * sequences;
      if (flops <= pairs.server_left) {
        pairs.server_left -= flops;
        ++pairs.by_server;
        return begin_watching(kServer, false, rest);
      }
    }
    if (chosen == kNobody) return;  // the server sums the rest, when its owners have sent it
    const std::vector<PieceSlice> its = part(best_to > 1 - 1e-9 ? 1.0 : best_to);
    if (its.empty()) {
      from = best_to;
      continue;
    }
    Bytes needed = owner_memory(work, plan::owner_cost(work, cost, its, plan.chunk), is_replica);
    if (widened >= 0) {
      const OwnerState& of = owner[static_cast<std::size_t>(widened)];
      needed = owner_memory(work, cost_with(of, its), of.replica) - memory_of(of);
    }
    make_room(chosen, needed, s);
    if (book(chosen).free < needed) {
      full.insert(chosen);
      continue;
    }
    from = best_to;
    ++report.witnesses;
    if (widened >= 0) {
      add_watched(widened, its);
    } else {
      begin_watching(chosen, is_replica, its);
    }
  }
}

// Elements of slices before the first unit that is among others.
double StageRun::share_before(const std::vector<PieceSlice>& slices, const std::vector<PieceSlice>& others,
                              const plan::StageCost& cost) const {
  double before = 0;
  for (const PieceSlice& range : slices) {
    const std::vector<PieceSlice> meets = common({range}, others);
    const PieceSlice up_to{range.piece, range.begin, meets.empty() ? range.end : meets.front().begin};
    if (up_to.begin < up_to.end) before += plan::owner_cost(work, cost, std::span(&up_to, 1), plan.chunk).elements;
    if (!meets.empty()) return before;
  }
  return std::numeric_limits<double>::infinity();
}

// An owner on the device that reads the same sequences, and is not loaded yet.
std::int32_t StageRun::owner_like(std::int32_t id, const OwnerState& like) {
  for (const std::int32_t index : at(like.stage).owners) {
    const OwnerState& of = owner[static_cast<std::size_t>(index)];
    if (of.device == id && !of.slices.empty() && !of.load.valid() && of.group == like.group) return index;
  }
  return kNobody;
}

bool StageRun::comparable(const OwnerState& watcher, const OwnerState& first) {
  if (watcher.group != first.group || (watcher.device != kServer && !apart(watcher.device, first.device))) return false;
  std::vector<std::int64_t> a = watcher.sequences, b = first.sequences;
  std::ranges::sort(a);
  std::ranges::sort(b);
  return a == b;
}

// An owner is done, or gone: who watches its stage may have waited for it.
void StageRun::ask_watchers(std::int32_t s) {
  if (!options.quorum) return;
  const std::vector<std::int32_t> owners = at(s).owners;
  for (const std::int32_t index : owners) {
    const OwnerState& of = owner[static_cast<std::size_t>(index)];
    if (!of.watched.empty() && of.left == 0 && at(s).ungrouped == 0) ask_for_digests(index);
  }
}

void StageRun::compare_sums(std::int32_t first) {
  const std::int32_t s = owner[static_cast<std::size_t>(first)].stage;
  if (!owner[static_cast<std::size_t>(first)].drawn) return ask_watchers(s);
  const std::vector<std::int32_t> owners = at(s).owners;
  std::vector<PieceSlice> rest = owner[static_cast<std::size_t>(first)].slices;
  for (const std::int32_t index : owners) {
    const OwnerState& of = owner[static_cast<std::size_t>(index)];
    if (index != first && !of.watched.empty() && comparable(of, owner[static_cast<std::size_t>(first)]))
      rest = without(std::move(rest), of.watched);
  }
  rest = without(std::move(rest), owner[static_cast<std::size_t>(first)].by_server);
  for (const PieceSlice& range : rest) {
    owner[static_cast<std::size_t>(first)].by_server.push_back(range);
    ++at(s).gradients_left;
    ++pairs.sums;
    ask_for_digest(kNobody, first, {range});
  }
  ask_watchers(s);
}

void StageRun::ask_for_digests(std::int32_t index) {
  const std::int32_t s = owner[static_cast<std::size_t>(index)].stage,
                     id = owner[static_cast<std::size_t>(index)].device;
  if (id != kServer && !book(id).present) return;  // stop_watching() sees to it
  bool waits = false;
  const std::vector<std::int32_t> owners = at(s).owners;
  for (const std::int32_t first : owners) {
    const OwnerState &of = owner[static_cast<std::size_t>(first)], &own = owner[static_cast<std::size_t>(index)];
    std::vector<PieceSlice> both = common(of.slices, own.watched);
    if (both.empty()) continue;
    if (!of.closed) waits = waits || of.group == own.group;
    if (!of.sent || !of.drawn || !comparable(own, of)) continue;
    if (std::ranges::find(own.asked, first) != own.asked.end()) continue;
    owner[static_cast<std::size_t>(index)].asked.push_back(first);
    ask_for_digest(index, first, std::move(both));
  }
  if (!waits && owner[static_cast<std::size_t>(index)].open == 0) watched_all(index);
}

void StageRun::ask_for_digest(std::int32_t watcher, std::int32_t first, std::vector<PieceSlice> slices) {
  const OwnerState& of = owner[static_cast<std::size_t>(first)];
  const bool alone = watcher == kNobody;  // the server, which has not read along
  const std::int32_t witness = alone ? kServer : owner[static_cast<std::size_t>(watcher)].device;
  plan::PanelRun run{.each = {with_header(Bytes(24 * std::ssize(slices))), Flops(0), Bytes(0)},
                     .panels = 1,
                     .last_up = with_header(kDigestPayload)};
  if (alone) {
    run.each.flops =
        plan::owner_cost(work, at(of.stage).cost, slices, plan.chunk).alone * static_cast<double>(of.sequences.size());
    ++pairs.by_server;
  } else {
    ++owner[static_cast<std::size_t>(watcher)].open;
  }
  submit({Errand::witness_sums, witness, of.stage, watcher, 0, first}, {kWitness, of.stage}, run, Bytes(0), false,
         {.owner = watcher,
          .partial = of.partial,
          .first = first,
          .slices = std::make_shared<const std::vector<PieceSlice>>(std::move(slices))});
}

void StageRun::digest_in(const Purpose& purpose) {
  if (purpose.owner < 0) {
    --pairs.sums;
    return gradient_in(purpose.stage);
  }
  OwnerState& of = owner[static_cast<std::size_t>(purpose.owner)];
  --of.open;
  if (!of.watched.empty()) ask_for_digests(purpose.owner);
}

void StageRun::watched_all(std::int32_t index) {
  OwnerState& of = owner[static_cast<std::size_t>(index)];
  of.watched.clear();
  leave_role(of);
  --pairs.sums;
  gradient_in(of.stage);
}

// Owners have changed hands, and devices are gone or new.
void StageRun::look_at_pairs() {
  if (!options.quorum) return;
  for (std::int32_t s = 0; s <= top(); ++s) {
    ask_witnesses(s);
    ask_watchers(s);
  }
}

void StageRun::leave_role(const OwnerState& of) {
  if (of.active() || of.device == kServer || !book(of.device).present) return;
  give_back(of.load, of.device, memory_of(of));
  pass_on_room(of);
}

void StageRun::stop_watching(std::int32_t index) {
  if (owner[static_cast<std::size_t>(index)].watched.empty()) return;
  const std::int32_t s = owner[static_cast<std::size_t>(index)].stage;
  const std::vector<PieceSlice> slices = std::exchange(owner[static_cast<std::size_t>(index)].watched, {});
  std::vector<std::int32_t> firsts;
  for (const std::int32_t other : at(s).owners) {
    const OwnerState& of = owner[static_cast<std::size_t>(other)];
    if (of.drawn && (!of.closed || of.sent) && !common(of.slices, slices).empty()) firsts.push_back(other);
  }
  for (const std::int32_t first : firsts) {
    if (owner[static_cast<std::size_t>(first)].sent) compare_sums(first);
  }
  leave_role(owner[static_cast<std::size_t>(index)]);
  --pairs.sums;
  gradient_in(s);
}

}  // namespace cleave::sched::stages
