// Sequences pass through the stages: forward from the bottom, backward from the top, each to the replica that is done
// first.
#include "stages/stage_run.hpp"

#include <algorithm>
#include <limits>

namespace cleave::sched::stages {

namespace {

constexpr int kLookAhead = 2;  // stages that X travels ahead of dY

}  // namespace

ActiveReplica* StageRun::choose(std::int32_t s, std::int64_t ActiveReplica::*slots) {
  const double bytes = static_cast<double>(at(s).cost.boundary(work.seq).value());
  // A part of the head holds a sequence until all parts have passed it. Whoever had memory for more of them would get
  // more than its uplink can send in time: so sequences wait for who is done first.
  const bool waits = in_parts() && s >= head;
  ActiveReplica* best = nullptr;
  double soonest = std::numeric_limits<double>::infinity();
  for (ActiveReplica& replica : at(s).replicas) {
    const DeviceBook& at_host = book(replica.device);
    const double done = std::max(replica.ready, fleet.now()).value() + (at_host.in_hand + bytes) / at_host.uplink +
                        bytes / at_host.downlink;
    if (done < soonest && (waits || replica.free_slots(slots) > 0)) {
      soonest = done;
      best = &replica;
    }
  }
  return best == nullptr || best->free_slots(slots) == 0 ? nullptr : best;
}

bool StageRun::place_visit(Visit& of, std::int32_t s, std::int64_t ActiveReplica::*slots) {
  ActiveReplica* const replica = choose(s, slots);
  if (replica == nullptr) return false;
  --replica->free_slots(slots);
  take_visit(of, s, slots, *replica);
  return true;
}

void StageRun::take_visit(Visit& of, std::int32_t s, std::int64_t ActiveReplica::*slots, const ActiveReplica& replica) {
  of.device = replica.device;
  of.sums = 0;
  of.turn = 0;
  const std::int64_t returned =
      slots == &ActiveReplica::forward_slots ? rows_to(of.done - 1) : work.seq - rows_to(chunks - of.done - 1);
  book(replica.device).in_hand += static_cast<double>(at(s).cost.boundary(work.seq - returned).value());
}

bool StageRun::keeps_values(std::int32_t s) { return std::ranges::any_of(at(s).replicas, &ActiveReplica::keeps); }

// Where a sequence leaves the values of its forward pass, which may not have ended.
ActiveReplica* StageRun::keeper(std::int64_t q, std::int32_t s) {
  const Visit& forth = visit(forward, s, q);
  if (!forth.kept) return nullptr;
  const auto replica = std::ranges::find(at(s).replicas, forth.device, &ActiveReplica::device);
  return replica == at(s).replicas.end() || !replica->keeps() ? nullptr : &*replica;
}

void StageRun::leave_visit(const Visit& of, std::int32_t s, std::int64_t ActiveReplica::*slots) {
  const auto replica = std::ranges::find(at(s).replicas, of.device, &ActiveReplica::device);
  if (replica != at(s).replicas.end()) ++replica->free_slots(slots);
}

// The device is done with a sequence that came back through it: until now it held the operands that its owners sum.
void StageRun::leave_summed(std::int64_t q, std::int32_t s) {
  Visit& of = summed_visit(s, q);
  const bool forwards = of.kept || passes_head(s);
  if (of.kept) visit(forward, s, q).kept = false;
  leave_visit(of, s, forwards ? &ActiveReplica::forward_slots : &ActiveReplica::backward_slots);
  if (forwards) {
    place_waiting_forward(s);
  } else {
    place_waiting_backward(s);
  }
}

void StageRun::arrive_forward(std::int64_t q, std::int32_t s) {
  ++visit(forward, s, q).arrived;
  if (is_open(s)) enter_forward(q, s);
}

void StageRun::enter_forward(std::int64_t q, std::int32_t s) {
  Visit& of = visit(forward, s, q);
  if (!at(s).loaded) bring_weights(s);
  if (!of.placed()) {
    if (at(s).waiting_forward.contains(q)) return;
    if (!place_visit(of, s, &ActiveReplica::forward_slots)) {
      at(s).waiting_forward.insert(q);
      return;
    }
  }
  send_forward(q, s);
}

void StageRun::send_forward(std::int64_t q, std::int32_t s) {
  Visit& of = visit(forward, s, q);
  if (!book(of.device).present) return;  // it has just left: recover() sends the sequence to another device
  if (passes_head(s)) {
    join_group(q, s, of.device);
    if (of.sent == 0 && of.arrived > 0) keep_for_owners(of, q, s);
  }
  const plan::StageCost& cost = at(s).cost;
  const auto replica = std::ranges::find(at(s).replicas, of.device, &ActiveReplica::device);
  of.kept = replica != at(s).replicas.end() && replica->keeps();
  for (; of.sent < of.arrived; ++of.sent) {
    const std::int64_t from = rows_from(of.sent), to = rows_to(of.sent);
    plan::PanelRun run{.each = {with_header(cost.forward_operand(to - from)), cost.forward(from, to),
                                with_header(cost.forward_result(to - from))},
                       .panels = 1,
                       .last_up = Bytes(0)};
    if (cost.is_head() && of.sent + 1 == chunks) run.last_up = cost.norm_gradients();
    const bool again = of.sent < of.done;
    if (again) run.each.up = plan::kMessageHeader;
    submit({again ? Errand::replay : Errand::forward, of.device, s, 0, of.sent, q, of.makes_good()}, {kForward, q}, run,
           Bytes(0), false,
           {.owner = passes_head(s) ? of.for_owner : kForAllOwners,
            .row = from,
            .rows = to - from,
            .begins = of.sent == 0,
            .returns_rows = !again,
            .returns_norms = !again && cost.is_head() && of.sent + 1 == chunks});
  }
}

bool StageRun::is_next(const Purpose& purpose) {
  const bool back = purpose.errand == Errand::backward;
  const Visit& of = visit(back ? backward : forward, purpose.stage, purpose.sequence);
  return purpose.chunk == (back ? chunks - 1 - of.done : of.done);
}

void StageRun::chunk_in(const Purpose& purpose) {
  ahead.push_back(purpose);
  const auto next = [&] {
    return std::ranges::find_if(ahead, [&](const Purpose& one) {
      return one.errand == purpose.errand && one.stage == purpose.stage && one.sequence == purpose.sequence &&
             is_next(one);
    });
  };
  for (auto found = next(); found != ahead.end(); found = next()) {
    const Purpose one = *found;
    ahead.erase(found);
    one.errand == Errand::forward ? forward_done(one) : backward_done(one);
  }
}

Visit& StageRun::chunk_done(std::vector<Visit>& visits, const Purpose& purpose) {
  Visit& of = visit(visits, purpose.stage, purpose.sequence);
  ++of.done;
  if (options.quorum && (of.senders.empty() || of.senders.back() != of.device)) of.senders.push_back(of.device);
  progress.chunk_done();
  book(of.device).in_hand -=
      static_cast<double>(at(purpose.stage).cost.boundary(rows_to(purpose.chunk) - rows_from(purpose.chunk)).value());
  return of;
}

void StageRun::forward_done(const Purpose& purpose) {
  const std::int32_t s = purpose.stage;
  ++tally.forward[static_cast<std::size_t>(s)];
  const std::int64_t q = purpose.sequence;
  const Visit& of = chunk_done(forward, purpose);
  if (of.done == chunks) {
    if (!of.kept && !passes_head(s)) {
      leave_visit(of, s, &ActiveReplica::forward_slots);
      place_waiting_forward(s);
    }
    witnesses.visit_done(purpose, false);
    if (s == highest_open()) ++through;
  }
  if (s < head) {
    // Parts of the head lie beside each other.
    for (std::int32_t next = s + 1; next <= (s + 1 < head ? s + 1 : top()); ++next) arrive_forward(q, next);
    // A backward pass begins with all of X: below the head it may be there before the last chunk has passed, unless the
    // stage is quicker than the one below it. Where values may be kept, it must be known where they are: should this
    // forward pass begin again, another replica may keep them.
    const bool known = of.done == chunks || of.kept || !keeps_values(s);
    if (s + 1 == head && of.done >= chunks - 1 && of.arrived == chunks && known) want_backward(q, s);
    if (s + 1 == head && of.done == chunks && in_parts()) {
      for (std::int32_t part = head; part <= top(); ++part) want_backward(q, part);
    }
    return;
  }
  if (of.done < chunks) return;
  if (in_parts()) return head_join.forward_done(q);
  if (--at(s).backward_left == 0) norms_done(s);
  own_visited(q, s);
  if (s == lowest) return bottom_done();
  sum_elsewhere(q, s - 1);
  for (std::int64_t c = 0; c < chunks; ++c) arrive_backward(q, s - 1);
}

void StageRun::place_waiting(std::set<std::int64_t>& waiting, std::vector<Visit>& visits, std::int32_t s,
                             std::int64_t ActiveReplica::*slots,
                             void (StageRun::*begin_visit)(std::int64_t, std::int32_t)) {
  while (!waiting.empty()) {
    const std::int64_t q = *waiting.begin();
    if (!place_visit(visit(visits, s, q), s, slots)) return;
    waiting.erase(waiting.begin());
    (this->*begin_visit)(q, s);
  }
}

void StageRun::place_waiting_forward(std::int32_t s) {
  place_waiting(at(s).waiting_forward, forward, s, &ActiveReplica::forward_slots, &StageRun::send_forward);
}

void StageRun::want_backward(std::int64_t q, std::int32_t s) {
  if (s < lowest || !is_open(s) || !goes_back()) return;
  Visit& of = visit(backward, s, q);
  if (of.wanted) return;
  of.wanted = true;
  if (const ActiveReplica* const replica = keeper(q, s)) {
    of.kept = true;
    take_visit(of, s, &ActiveReplica::backward_slots, *replica);
    open_backward(q, s);
  } else if (place_visit(of, s, &ActiveReplica::backward_slots)) {
    open_backward(q, s);
  } else {
    at(s).waiting_backward.insert(q);
  }
}

void StageRun::keep_for_owners(Visit& of, std::int64_t q, std::int32_t s) {
  of.for_owner = owner_served(q, s, of.device);
  of.owners = static_cast<std::int32_t>(owner.size());
}

void StageRun::open_backward(std::int64_t q, std::int32_t s) {
  Visit& of = visit(backward, s, q);
  join_group(q, s, of.device);
  keep_for_owners(of, q, s);
  if (of.kept) return send_backward(q, s);
  const plan::StageCost& cost = at(s).cost;
  plan::PanelRun run;
  run.panels = chunks;
  run.each.down = with_header(Bytes((cost.boundary(work.seq).value() + chunks - 1) / chunks));
  run.each.flops = cost.recompute(0, work.seq) * (1.0 / static_cast<double>(chunks));
  run.last_up = plan::kMessageHeader;
  submit({Errand::recompute, of.device, s, 0, 0, q, of.loss}, {kBackward, ++turns}, run, Bytes(0), false,
         {.owner = of.for_owner, .rows = work.seq});
  send_backward(q, s);
}

void StageRun::arrive_backward(std::int64_t q, std::int32_t s) {
  Visit& of = visit(backward, s, q);
  ++of.arrived;
  want_backward(q, s);
  if (of.placed()) send_backward(q, s);
}

// Chunks of a sequence go back through a replica before those of the next one, and their sums follow: operands of one
// sequence wait for sums, however many are open. What is kept from the forward pass, and the parts of a head, have room
// of their own. False: another one is on its way.
bool StageRun::take_turn(std::int64_t q, std::int32_t s) {
  Visit& of = visit(backward, s, q);
  if (of.sent == of.arrived || of.kept || s >= head) return true;
  const auto replica = std::ranges::find(at(s).replicas, of.device, &ActiveReplica::device);
  if (replica == at(s).replicas.end()) return true;
  if (replica->going_back >= 0 && replica->going_back != q) {
    replica->behind.insert(q);
    return false;
  }
  if (replica->going_back < 0) of.turn = ++turns;
  replica->going_back = q;
  return true;
}

// The replica goes back with the first sequence of which chunks wait for it. What takes a visit from a device takes the
// replica too, so all sequences that wait are still its own.
void StageRun::give_turn(std::int32_t s, std::int32_t id) {
  const auto replica = std::ranges::find(at(s).replicas, id, &ActiveReplica::device);
  if (replica == at(s).replicas.end()) return;
  replica->going_back = -1;
  if (replica->behind.empty()) return;
  const std::int64_t next = *replica->behind.begin();
  replica->behind.erase(replica->behind.begin());
  send_backward(next, s);
}

void StageRun::send_backward(std::int64_t q, std::int32_t s) {
  Visit& of = visit(backward, s, q);
  if (!book(of.device).present) return;  // as in send_forward()
  if (!take_turn(q, s)) return;
  if (of.sent == of.arrived) return;
  const plan::StageCost& cost = at(s).cost;
  for (; of.sent < of.arrived; ++of.sent) {
    const std::int64_t chunk = chunks - 1 - of.sent, from = rows_from(chunk), to = rows_to(chunk);
    const bool wanted = s > lowest || server->trains_embeddings();
    plan::PanelRun run{.each = {with_header(cost.backward_operand(to - from)),
                                of.kept ? cost.backward_of_kept(from, to) : cost.backward(from, to),
                                with_header(wanted ? cost.backward_result(to - from) : Bytes(0))},
                       .panels = 1,
                       .last_up = Bytes(0)};
    if (chunk == 0) run.last_up = cost.norm_gradients();
    const auto number = static_cast<std::int32_t>(chunk);
    const bool again = of.sent < of.done;
    if (again) run.each.up = plan::kMessageHeader;
    submit({again ? Errand::replay : Errand::backward, of.device, s, 0, number, q, of.makes_good()}, of.way_back(q),
           run, Bytes(0), false,
           {.owner = of.for_owner,
            .row = from,
            .rows = to - from,
            .back = true,
            .begins = of.sent == 0,
            .keeps = of.kept,
            .returns_rows = !again && wanted,
            .returns_norms = !again && chunk == 0});
    if (of.sent > 0) continue;
    for (std::int32_t hop = 1; hop <= kLookAhead; ++hop) want_backward(q, std::min(s, head) - hop);
  }
  if (of.turn == 0 || of.sent < chunks) return;
  sum_visited(q, s);
  give_turn(s, of.device);
}

void StageRun::backward_done(const Purpose& purpose) {
  const std::int32_t s = purpose.stage;
  ++tally.backward[static_cast<std::size_t>(s)];
  const std::int64_t q = purpose.sequence;
  const Visit& of = chunk_done(backward, purpose);
  if (of.done == chunks) witnesses.visit_done(purpose, true);
  if (s >= head) return head_join.backward_done(purpose);
  if (s > lowest) arrive_backward(q, s - 1);
  if (of.done < chunks) return;
  if (--at(s).backward_left == 0) norms_done(s);
  own_visited(q, s);
  if (s > lowest) return sum_elsewhere(q, s - 1);
  bottom_done();
}

void StageRun::place_waiting_backward(std::int32_t s) {
  place_waiting(at(s).waiting_backward, backward, s, &ActiveReplica::backward_slots, &StageRun::open_backward);
}

void StageRun::bottom_done() {
  if (at(lowest).backward_left == 0) server->residual_gradient_done();
}

void StageRun::norms_done(std::int32_t s) {
  progress.stage_passed(s);
  const Visitor nothing = [](TensorId) {}, done = [&](TensorId norm) { server->source_done(norm); };
  for_sources(plan.stages[static_cast<std::size_t>(s)], nothing, done);
  for (const ActiveReplica& replica : at(s).replicas) send_due(replica.device);
}

bool StageRun::has_gradient(std::int32_t s, std::int64_t q) {
  if (in_parts() && s + 1 >= head) return s >= head ? head_join.has_passed(q) : head_join.is_joined(q);
  return (s + 1 >= head ? visit(forward, head, q) : visit(backward, s + 1, q)).done == chunks;
}

}  // namespace cleave::sched::stages
