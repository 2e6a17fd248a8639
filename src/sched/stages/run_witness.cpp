// Which visits are recomputed, by which devices, and how long that may take.
#include "stages/run_witness.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cleave/sched/collusion.hpp"
#include "quorum/witness_draw.hpp"
#include "quorum/witness_patience.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

// Purposes of the draws for one subject.
enum Draw : std::int64_t { kIsDrawn = 0, kByServer = 1, kFirstOfDevices = 2 };

constexpr std::int64_t kMostPlaces = 1;  // slots that a replica sets aside for visits recomputed
constexpr double kMostOften = 4;         // a replica is drawn at most this many times as often as another

}  // namespace

void Witnesses::begin() {
  draws_ += 2 * std::ssize(run_.plan.stages) * run_.batch;
  visits_.clear();
  waiting_.assign(run_.plan.stages.size(), {});
  unasked_.assign(run_.plan.stages.size(), {});
  replicas_.assign(run_.plan.stages.size(), {});
  in_hand_.clear();
}

bool Witnesses::is_drawn(std::int64_t subject) const {
  return run_.options.quorum &&
         secret_uniform(run_.options.quorum->secret, subject, kIsDrawn) < run_.options.quorum->fraction;
}

bool Witnesses::has_pairs(std::int32_t s) const {
  return std::ranges::any_of(visits_, [&](const auto& entry) { return entry.second.stage == s; });
}

bool Witnesses::apart(std::int32_t one, std::int32_t other) const {
  return one != other && are_apart(*run_.options.quorum, run_.book(one).profile, run_.book(other).profile);
}

void Witnesses::keep_slots(ActiveReplica& replica) {
  while (replica.witness_all < kMostPlaces && replica.backward_slots > kLeastSlots) {
    --replica.backward_slots;
    --replica.backward_all;
    ++replica.witness_all;
  }
  replica.witness_slots = replica.witness_all;
}

void Witnesses::add_slots() {
  if (!run_.options.quorum) return;
  for (std::int32_t s = 0; s <= run_.top(); ++s) {
    const plan::StageCost& cost = run_.at(s).cost;
    const Bytes place = std::max(cost.open_forward(), cost.open_backward());
    for (ActiveReplica& replica : run_.at(s).replicas) {
      const std::int64_t before = replica.witness_all;
      while (replica.witness_all < kMostPlaces && run_.book(replica.device).free >= place) {
        ++replica.witness_all;
        run_.book(replica.device).free -= place;
      }
      replica.witness_slots += replica.witness_all - before;
      if (replica.witness_all == before || place.value() == 0) continue;
      run_.release_places(replica);
      run_.hold_places(cost, replica, s);
    }
  }
}

void Witnesses::visit_done(const Purpose& last, bool back) {
  if (!run_.options.quorum) return;
  const std::int64_t subject = draws_ + (last.stage * run_.batch + last.sequence) * 2 + (back ? 1 : 0);
  if (!is_drawn(subject)) return;
  visits_.emplace(subject, Pair{.stage = last.stage, .sequence = last.sequence, .back = back});
  add_waiting(last.stage, subject);
  ask(last.stage);
}

void Witnesses::add_waiting(std::int32_t s, std::int64_t id) {
  waiting_[static_cast<std::size_t>(s)].insert(id);
  unasked_[static_cast<std::size_t>(s)].insert(id);
}

bool Witnesses::has_room(std::int32_t s) {
  return std::ranges::any_of(run_.at(s).replicas, [](const ActiveReplica& replica) {
    return replica.witness_slots > 0 ||
           (replica.witness_all == 0 && (replica.forward_slots > 0 || replica.backward_slots > 0));
  });
}

// Of those that were asked for before, none finds a place while no replica has one, as long as replicas are the same.
void Witnesses::ask(std::int32_t s) {
  const auto stage = static_cast<std::size_t>(s);
  std::set<std::int64_t>& waiting = waiting_[stage];
  std::set<std::int64_t>& unasked = unasked_[stage];
  std::vector<std::int32_t> replicas;
  for (const ActiveReplica& replica : run_.at(s).replicas) replicas.push_back(replica.device);
  if (replicas != replicas_[stage]) {
    replicas_[stage] = std::move(replicas);
    unasked = waiting;
  }
  for (auto next = waiting.begin(); next != waiting.end();) {
    if (!has_room(s)) {
      const auto first = unasked.lower_bound(*next);
      if (first == unasked.end()) return;
      next = waiting.find(*first);
    }
    const std::int64_t id = *next;
    unasked.erase(id);
    if (ask_one(id, visits_.at(id))) {
      next = waiting.erase(next);
    } else {
      ++next;
    }
  }
}

void Witnesses::ask_waiting() {
  for (std::int32_t s = 0; s <= run_.top(); ++s) {
    if (!waiting_[static_cast<std::size_t>(s)].empty()) ask(s);
  }
}

bool Witnesses::ask_one(std::int64_t id, Pair& pair) {
  const Visit& of = run_.visit(pair.back ? run_.backward : run_.forward, pair.stage, pair.sequence);
  std::vector<ActiveReplica*> able;
  bool any = false;
  if (pair.attempts < kDevicesAsked &&
      secret_uniform(run_.options.quorum->secret, id, kByServer) >= kServerWitnessShare) {
    for (ActiveReplica& replica : run_.at(pair.stage).replicas) {
      if (!std::ranges::all_of(of.senders, [&](std::int32_t sender) { return apart(sender, replica.device); }))
        continue;
      any = true;
      const std::int64_t lent = replica.witness_all > 0 ? 0
                                : pair.back             ? replica.backward_slots
                                                        : replica.forward_slots;
      if (replica.witness_slots + lent > 0) able.push_back(&replica);
    }
  }
  if (any && able.empty()) return false;
  if (!any) {
    send(id, pair, kServer);
    return true;
  }
  ActiveReplica& replica = *draw(id, pair, able);
  pair.lent = replica.witness_all == 0;
  --(!pair.lent ? replica.witness_slots : pair.back ? replica.backward_slots : replica.forward_slots);
  send(id, pair, replica.device);
  return true;
}

// Draws a replica with a probability that is inverse to the time in which it would be done, behind the visits that it
// is to recompute already.
ActiveReplica* Witnesses::draw(std::int64_t id, const Pair& pair, const std::vector<ActiveReplica*>& able) {
  const plan::PanelRun run = run_of(pair);
  in_hand_.resize(run_.device.size(), 0.0);
  std::vector<double> until;
  for (const ActiveReplica* replica : able) {
    const DeviceBook& of = run_.book(replica->device);
    until.push_back(in_hand_[static_cast<std::size_t>(replica->device)] +
                    std::max(0.0, (replica->ready - run_.fleet.now()).value()) +
                    static_cast<double>(run.down().value()) / of.downlink + run.flops().value() / of.compute);
  }
  const double soonest = *std::ranges::min_element(until);
  double all = 0;
  for (double& time : until) all += time = std::max(soonest / time, 1 / kMostOften);
  double drawn = all * secret_uniform(run_.options.quorum->secret, id, kFirstOfDevices + pair.attempts);
  std::size_t chosen = 0;
  for (; chosen + 1 < able.size() && drawn >= until[chosen]; ++chosen) drawn -= until[chosen];
  return able[chosen];
}

// Down: X of all rows, and backward dY too (of a part of the head: maxima and sums). Up: a digest.
plan::PanelRun Witnesses::run_of(const Pair& pair) {
  const plan::StageCost& cost = run_.at(pair.stage).cost;
  plan::PanelRun run;
  const Bytes down = pair.back ? cost.boundary(run_.work.seq) + cost.backward_operand(run_.work.seq)
                               : cost.forward_operand(run_.work.seq);
  const Flops flops = pair.back ? cost.way_back(run_.work.seq, false) : cost.forward(0, run_.work.seq);
  run.panels = pair.back ? 2 * run_.chunks : run_.chunks;
  run.each.down = with_header(Bytes((down.value() + run.panels - 1) / run.panels));
  run.each.flops = flops * (1.0 / static_cast<double>(run.panels));
  run.last_up = with_header(kDigestPayload);
  return run;
}

void Witnesses::send(std::int64_t id, Pair& pair, std::int32_t witness) {
  const plan::PanelRun run = run_of(pair);
  pair.witness = witness;
  pair.since = run_.fleet.now();
  if (witness == kServer) {
    pair.takes = Seconds(std::numeric_limits<double>::infinity());
  } else {
    pair.takes = run.down() / BytesPerSecond(run_.book(witness).downlink) +
                 run.flops() / FlopsPerSecond(run_.book(witness).compute);
    in_hand_[static_cast<std::size_t>(witness)] += pair.takes.value();
    ++pair.attempts;
    ++run_.report.witnesses;
  }
  Purpose purpose{Errand::witness, witness, pair.stage, 0, 0, pair.sequence};
  purpose.pair = id;
  const bool norms =
      run_.at(pair.stage).cost.norm_gradients().value() > 0 && (pair.back || run_.at(pair.stage).cost.is_head());
  run_.submit(purpose, {pair.lent ? kForward : kWitness, id}, run, Bytes(0), false,
              {.rows = run_.work.seq,
               .back = pair.back,
               .begins = true,
               .returns_rows = !pair.back || pair.stage > run_.lowest || run_.server->trains_embeddings(),
               .returns_norms = norms,
               .chunk = run_.plan.chunk});
}

void Witnesses::give_place_back(const Pair& pair) {
  if (pair.witness == kServer) return;
  in_hand_[static_cast<std::size_t>(pair.witness)] -= pair.takes.value();
  const auto replica = std::ranges::find(run_.at(pair.stage).replicas, pair.witness, &ActiveReplica::device);
  if (replica == run_.at(pair.stage).replicas.end()) return;
  ++(!pair.lent ? replica->witness_slots : pair.back ? replica->backward_slots : replica->forward_slots);
  if (!pair.lent) return;
  pair.back ? run_.place_waiting_backward(pair.stage) : run_.place_waiting_forward(pair.stage);
}

void Witnesses::settle(const Purpose& purpose) {
  const auto found = visits_.find(purpose.pair);
  const Pair pair = found->second;
  visits_.erase(found);
  give_place_back(pair);
  ask(pair.stage);
}

void Witnesses::ask_another(const Purpose& purpose) {
  Pair& pair = visits_.at(purpose.pair);
  give_place_back(pair);
  pair.witness = kNobody;
  add_waiting(pair.stage, purpose.pair);
  if (!run_.recovery.is_pending()) ask(pair.stage);  // otherwise recovery asks, once lost devices are replaced
}

Seconds Witnesses::late_at(const Pair& pair) const {
  return late_after(std::max(pair.since, run_.last_done), pair.takes);
}

Seconds Witnesses::late_at() const {
  Seconds next(std::numeric_limits<double>::infinity());
  if (!run_.options.quorum || !run_.options.quorum->timed || !run_.only_pairs_left()) return next;
  // Visits without a witness get one when another witness is done or replaced.
  for (const auto& [id, pair] : visits_) {
    if (pair.witness == kNobody) continue;
    next = std::min(next, late_at(pair));
  }
  return next;
}

void Witnesses::replace_late() {
  std::vector<Purpose> late;
  run_.purposes.for_each([&](const Purpose& purpose) {
    if (purpose.errand != Errand::witness || purpose.device == kServer) return;
    if (late_at(visits_.at(purpose.pair)) <= run_.fleet.now()) late.push_back(purpose);
  });
  for (const Purpose& purpose : late) {
    run_.remove_purpose(purpose.tasklet);
    run_.fleet.forget(purpose.tasklet);
    visits_.at(purpose.pair).attempts = kDevicesAsked;
    ask_another(purpose);
  }
}

}  // namespace cleave::sched::stages
