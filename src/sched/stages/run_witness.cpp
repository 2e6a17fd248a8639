// Visits made again by second devices (docs/security.md, "A second device"): a replica of the same stage takes the
// operands of the whole visit, in the gaps of its downlink, and returns a digest of the answers. It is asked when the
// last answer is in. Where no replica may be asked, and for a few visits that are drawn, the server does it.
#include <algorithm>
#include <limits>

#include "cleave/sched/collusion.hpp"
#include "quorum/witness_draw.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

// Draws for one subject.
enum Draw : std::int64_t { kIsDrawn = 0, kByServer = 1, kFirstOfDevices = 2 };

constexpr std::int64_t kMostPlaces = 1;    // that a replica keeps for visits made again
constexpr std::int64_t kDevicesAsked = 2;  // before the server does it
constexpr double kMostOften = 4;           // a replica is drawn so many times as often as another, at most
constexpr double kWitnessPatience = 2;     // a witness is late after so many times what it takes alone
constexpr Seconds kLeastPatience{1.0};

}  // namespace

bool StageRun::is_drawn(std::int64_t subject) const {
  return options.quorum && secret_uniform(options.quorum->secret, subject, kIsDrawn) < options.quorum->fraction;
}

bool StageRun::has_pairs(std::int32_t s) const {
  return std::ranges::any_of(pairs.visits, [&](const auto& entry) { return entry.second.stage == s; });
}

bool StageRun::apart(std::int32_t one, std::int32_t other) {
  return one != other && are_apart(*options.quorum, book(one).profile, book(other).profile);
}

// Of the places for sequences on their way back that a replica could do without.
void StageRun::keep_witness_slots(Host& host) {
  while (host.witness_all < kMostPlaces && host.backward_slots > kLeastSlots) {
    --host.backward_slots;
    --host.backward_all;
    ++host.witness_all;
  }
  host.witness_slots = host.witness_all;
}

// Of memory that no role has.
void StageRun::add_witness_slots() {
  for (std::int32_t s = 0; s <= top(); ++s) {
    const plan::StageCost& cost = at(s).cost;
    const Bytes place = std::max(cost.open_forward(), cost.open_backward());
    for (Host& host : at(s).hosts) {
      const std::int64_t before = host.witness_all;
      while (host.witness_all < kMostPlaces && book(host.device).free >= place) {
        ++host.witness_all;
        book(host.device).free -= place;
      }
      host.witness_slots += host.witness_all - before;
      if (host.witness_all == before || place.value() == 0) continue;
      release_places(host);
      hold_places(cost, host, s);
    }
  }
}

void StageRun::witness_visit(const Purpose& last, bool back) {
  if (!options.quorum) return;
  const std::int64_t subject = draws + (last.stage * batch + last.sequence) * 2 + (back ? 1 : 0);
  if (!is_drawn(subject)) return;
  pairs.visits.emplace(subject, VisitPair{.stage = last.stage, .sequence = last.sequence, .back = back});
  pairs.waiting[static_cast<std::size_t>(last.stage)].insert(subject);
  ask_witnesses(last.stage);
}

void StageRun::ask_witnesses(std::int32_t s) {
  std::set<std::int64_t>& waiting = pairs.waiting[static_cast<std::size_t>(s)];
  for (auto next = waiting.begin(); next != waiting.end();) {
    const std::int64_t id = *next;
    if (ask_witness(id, pairs.visits.at(id))) {
      next = waiting.erase(next);
    } else {
      ++next;
    }
  }
}

void StageRun::ask_waiting_witnesses() {
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (!pairs.waiting[static_cast<std::size_t>(s)].empty()) ask_witnesses(s);
  }
}

bool StageRun::ask_witness(std::int64_t id, VisitPair& pair) {
  const Visit& of = visit(pair.back ? backward : forward, pair.stage, pair.sequence);
  std::vector<Host*> able;
  bool any = false;
  if (pair.attempts < kDevicesAsked && secret_uniform(options.quorum->secret, id, kByServer) >= kServersShare) {
    for (Host& host : at(pair.stage).hosts) {
      if (!std::ranges::all_of(of.senders, [&](std::int32_t sender) { return apart(sender, host.device); })) continue;
      any = true;
      const std::int64_t lent = host.witness_all > 0 ? 0 : pair.back ? host.backward_slots : host.forward_slots;
      if (host.witness_slots + lent > 0) able.push_back(&host);
    }
  }
  if (any && able.empty()) return false;
  if (!any) {
    submit_witness(id, pair, kServer);
    return true;
  }
  Host& host = *draw_witness(id, pair, able);
  pair.lent = host.witness_all == 0;
  --(!pair.lent ? host.witness_slots : pair.back ? host.backward_slots : host.forward_slots);
  submit_witness(id, pair, host.device);
  return true;
}

// With a chance that falls with how long it would take, after the visits that it has in hand to be made again.
Host* StageRun::draw_witness(std::int64_t id, const VisitPair& pair, const std::vector<Host*>& able) {
  const plan::PanelRun run = run_of_witness(pair);
  pairs.in_hand.resize(device.size(), 0.0);
  std::vector<double> until;
  for (const Host* host : able) {
    const DeviceBook& of = book(host->device);
    until.push_back(pairs.in_hand[static_cast<std::size_t>(host->device)] +
                    std::max(0.0, (host->ready - fleet.now()).value()) +
                    static_cast<double>(run.down().value()) / of.downlink + run.flops().value() / of.compute);
  }
  const double soonest = *std::ranges::min_element(until);
  double all = 0;
  for (double& time : until) all += time = std::max(soonest / time, 1 / kMostOften);
  double drawn = all * secret_uniform(options.quorum->secret, id, kFirstOfDevices + pair.attempts);
  std::size_t chosen = 0;
  for (; chosen + 1 < able.size() && drawn >= until[chosen]; ++chosen) drawn -= until[chosen];
  return able[chosen];
}

// X of all rows, and on the way back what comes from above; then a digest.
plan::PanelRun StageRun::run_of_witness(const VisitPair& pair) {
  const plan::StageCost& cost = at(pair.stage).cost;
  plan::PanelRun run;
  const Bytes down =
      pair.back ? cost.boundary(work.seq) + cost.backward_operand(work.seq) : cost.forward_operand(work.seq);
  const Flops flops = pair.back ? cost.remake(0, work.seq) + cost.backward(0, work.seq) : cost.forward(0, work.seq);
  run.panels = pair.back ? 2 * chunks : chunks;
  run.each.down = with_header(Bytes((down.value() + run.panels - 1) / run.panels));
  run.each.flops = flops * (1.0 / static_cast<double>(run.panels));
  run.last_up = with_header(kDigestPayload);
  return run;
}

void StageRun::submit_witness(std::int64_t id, VisitPair& pair, std::int32_t witness) {
  const plan::PanelRun run = run_of_witness(pair);
  pair.witness = witness;
  pair.since = fleet.now();
  if (witness == kServer) {
    pair.takes = Seconds(std::numeric_limits<double>::infinity());
    ++pairs.by_server;
  } else {
    pair.takes =
        run.down() / BytesPerSecond(book(witness).downlink) + run.flops() / FlopsPerSecond(book(witness).compute);
    pairs.in_hand[static_cast<std::size_t>(witness)] += pair.takes.value();
    ++pair.attempts;
    ++report.witnesses;
  }
  Purpose purpose{Errand::witness, witness, pair.stage, 0, 0, pair.sequence};
  purpose.pair = id;
  const bool norms = at(pair.stage).cost.norm_gradients().value() > 0 && (pair.back || at(pair.stage).cost.is_head());
  pair.tasklet = submit(purpose, {pair.lent ? kForward : kWitness, id}, run, Bytes(0), false,
                        {.rows = work.seq,
                         .back = pair.back,
                         .begins = true,
                         .returns_rows = !pair.back || pair.stage > lowest || server->trains_embeddings(),
                         .returns_norms = norms,
                         .chunk = plan.chunk});
}

void StageRun::give_place_back(const VisitPair& pair) {
  if (pair.witness == kServer) return;
  pairs.in_hand[static_cast<std::size_t>(pair.witness)] -= pair.takes.value();
  const auto host = std::ranges::find(at(pair.stage).hosts, pair.witness, &Host::device);
  if (host == at(pair.stage).hosts.end()) return;
  ++(!pair.lent ? host->witness_slots : pair.back ? host->backward_slots : host->forward_slots);
  if (!pair.lent) return;
  pair.back ? place_waiting_backward(pair.stage) : place_waiting_forward(pair.stage);
}

void StageRun::settle(const Purpose& purpose) {
  if (purpose.errand == Errand::witness_sums) return digest_in(purpose);
  const auto found = pairs.visits.find(purpose.pair);
  const VisitPair pair = found->second;
  pairs.visits.erase(found);
  give_place_back(pair);
  ask_witnesses(pair.stage);
}

void StageRun::ask_another(const Purpose& purpose) {
  if (purpose.errand == Errand::witness_sums) {
    // A message was lost; of a device that is gone give_to_others() replaces the owner.
    OwnerState& of = owner[static_cast<std::size_t>(purpose.owner)];
    --of.open;
    std::erase(of.asked, static_cast<std::int32_t>(purpose.sequence));
    if (book(of.device).present) ask_for_digests(purpose.owner);
    return;
  }
  VisitPair& pair = pairs.visits.at(purpose.pair);
  give_place_back(pair);
  pair.witness = kNobody;
  pairs.waiting[static_cast<std::size_t>(pair.stage)].insert(purpose.pair);
  if (missing.empty()) ask_witnesses(pair.stage);  // else when those that are gone are replaced
}

Seconds StageRun::late_at() {
  Seconds next(std::numeric_limits<double>::infinity());
  if (!options.quorum || !options.quorum->timed || !only_pairs_left()) return next;
  // Those that wait for a place get one when another is done, or replaced.
  for (const auto& [id, pair] : pairs.visits) {
    if (pair.witness == kNobody) continue;
    next = std::min(next, std::max(pair.since, pairs.busy) + kLeastPatience + pair.takes * kWitnessPatience);
  }
  return next;
}

void StageRun::replace_late() {
  std::vector<Purpose> late;
  purposes.for_each([&](const Purpose& purpose) {
    if (purpose.errand != Errand::witness || purpose.device == kServer) return;
    const VisitPair& pair = pairs.visits.at(purpose.pair);
    if (std::max(pair.since, pairs.busy) + kLeastPatience + pair.takes * kWitnessPatience <= fleet.now())
      late.push_back(purpose);
  });
  for (const Purpose& purpose : late) {
    remove_purpose(purpose.tasklet);
    fleet.forget(purpose.tasklet);
    pairs.visits.at(purpose.pair).attempts = kDevicesAsked;
    ask_another(purpose);
  }
}

// Not before it was asked whether the step goes on, after somebody was found out: what is updated then stays.
void StageRun::begin_updates() {
  if (asks_to_go_on || !server->holds_updates() || !pairs.empty() || !is_last_phase()) return;
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (at(s).gradients_left > 0 || (s >= lowest && at(s).backward_left > 0)) return;
  }
  server->release_updates();
}

}  // namespace cleave::sched::stages
