// Owners sum sequences that have passed, and send their sums.
#include "stages/stage_run.hpp"

#include <algorithm>
#include <limits>

#include "cleave/plan/cost.hpp"

namespace cleave::sched::stages {

namespace {

constexpr std::int64_t kOperandPanels = 8;  // panels of a sequence that an owner is sent
constexpr std::int64_t kSumsAtOnce = 4;     // sequences for stand-ins that a replica may have been sent at one time
constexpr std::int64_t kServerSums = 1;     // the same of the server: its other kernels wait for no more than one
constexpr std::int64_t kSumPanels = 2;      // panels of sums in one tasklet
// Most panels of sums in one message, so that it stays below kMaxMessage: with a margin, since a part of sums is
// rounded up to whole units.
constexpr std::int64_t kMostSumPanels = plan::kMaxMessage.value() / kWeightPanel * 3 / 4;

}  // namespace

bool StageRun::wants(const OwnerState& of, std::int64_t q) {
  return of.active() && (of.device == kServer || book(of.device).present) && !of.seen[static_cast<std::size_t>(q)];
}

// At a head the operands of every open sequence wait on the device until they are summed. A stand-in has memory for
// kLeastOpen of them, however many sequences its device has open. It is sent the others later.
bool StageRun::has_its_hands_full(std::int32_t index) {
  const OwnerState& of = owner_at(index);
  if (!of.stands_in || of.stage < head) return false;
  std::int64_t held = 0;
  for (std::int64_t q = 0; q < batch; ++q) {
    const Visit& ran = summed_visit(of.stage, q);
    const bool open = ran.device == of.device && (ran.sums > 0 || (ran.sent > 0 && ran.done < chunks));
    if (open && ran.keeps_for(index)) ++held;
  }
  return held >= plan::kLeastOpen;
}

std::int32_t StageRun::owner_served(std::int64_t q, std::int32_t s, std::int32_t id) {
  std::int64_t wanting = 0, others = 0;
  std::int32_t most = kForNoOwner;
  for (const std::int32_t index : at(s).owners) {
    const OwnerState& of = owner_at(index);
    if (!of.replica || of.device != id || !of.active()) continue;
    if (!wants(of, q) || has_its_hands_full(index)) {
      ++others;
      continue;
    }
    ++wanting;
    if (most < 0 || of.elements > owner_at(most).elements) most = index;
  }
  return wanting > 0 && others == 0 ? kForAllOwners : most;
}

bool StageRun::sums_where_it_runs(std::int32_t index, std::int64_t q) {
  const OwnerState& of = owner_at(index);
  const Visit& ran = summed_visit(of.stage, q);
  return of.replica && (!ran.placed() || (ran.device == of.device && ran.keeps_for(index)));
}

void StageRun::sum_elsewhere(std::int64_t q, std::int32_t s) {
  progress.stage_opened(s);
  for (const std::int32_t index : at(s).owners) {
    if (!wants(owner_at(index), q) || sums_where_it_runs(index, q)) continue;
    send_operands(index, q);
  }
}

void StageRun::send_operands(std::int32_t index, std::int64_t q) {
  OwnerState& of = owner_at(index);
  if (of.stands_in || of.is_servers_own()) return send_again(index, q, of.loss);
  std::vector<std::int32_t> all{index};
  of.seen[static_cast<std::size_t>(q)] = true;
  // Owners of one stage on one device read a sequence together, but for those that need not read it.
  for (const std::int32_t other : at(of.stage).owners) {
    if (of.slices.empty()) break;
    OwnerState& its = owner_at(other);
    if (its.device != of.device || its.slices.empty() || !wants(its, q) || sums_where_it_runs(other, q)) continue;
    its.seen[static_cast<std::size_t>(q)] = true;
    all.push_back(other);
  }
  submit_sum({.sequence = q, .stage = of.stage, .owner = index}, std::move(all), false);
}

void StageRun::send_again(std::int32_t index, std::int64_t q, std::int32_t loss) {
  OwnerState& of = owner_at(index);
  of.seen[static_cast<std::size_t>(q)] = true;
  book(of.device).due.insert({.rank = of.rank, .sequence = q, .stage = of.stage, .owner = index, .loss = loss});
  send_due(of.device);
}

std::int64_t StageRun::turn_again(std::int32_t index, std::int64_t q) const {
  return owner_at(index).rank * (batch + 1) + 1 + q;
}

void StageRun::submit_sum(const DueSum& first, std::vector<std::int32_t> all, bool again) {
  Flops recomputed{0}, flops{0};
  Bytes operands;
  for (const std::int32_t index : all) {
    const OwnerState& of = owner_at(index);
    recomputed = std::max(recomputed, of.cost.alone - of.cost.beside);
    flops = flops + of.cost.beside;
    operands = of.cost.operands;
  }
  flops = flops + recomputed;
  operands += Bytes(plan::kOwnerNumber * (std::ssize(all) - 1));
  plan::PanelRun run;
  run.panels = std::min(chunks, kOperandPanels);
  run.each.down = with_header(Bytes((operands.value() + run.panels - 1) / run.panels));
  run.each.flops = flops * (1.0 / static_cast<double>(run.panels));
  run.last_up = plan::kMessageHeader;
  const OwnerState& of_first = owner[static_cast<std::size_t>(first.owner)];
  const std::int32_t id = of_first.device;
  std::erase(all, first.owner);
  StageItem item{.owner = first.owner, .row = std::ssize(all), .rows = work.seq};
  if (of_first.is_servers_own()) item.slices = std::make_shared<const std::vector<plan::PieceSlice>>(of_first.slices);
  if (!all.empty()) item.others = std::make_shared<const std::vector<std::int32_t>>(all);
  const Urgency urgency = of_first.slices.empty() ? kWitness : again ? kAgain : kOperands;
  const std::int64_t turn = urgency == kAgain ? turn_again(first.owner, first.sequence) : first.sequence;
  const TaskletId sent = submit({.errand = Errand::sum,
                                 .device = id,
                                 .stage = first.stage,
                                 .owner = first.owner,
                                 .sequence = first.sequence,
                                 .loss = first.loss,
                                 .reads = true},
                                {urgency, turn}, run, Bytes(0), false, std::move(item));
  if (again) ++book(id).summing;
  if (again || !all.empty()) shared_sums.emplace(sent.value, SharedSum{std::move(all), again});
}

bool StageRun::has_visits(std::int32_t id) const {
  return std::ranges::any_of(stage, [&](const StageState& of) {
    return of.backward_left > 0 && std::ranges::find(of.replicas, id, &ActiveReplica::device) != of.replicas.end();
  });
}

// A device's processor computes in the order in which operands arrive. So that sequences on their way through its
// stages do not wait behind many sums for stand-ins, it gets few of these at one time.
std::int64_t StageRun::sums_at_once(std::int32_t id) const {
  if (id == kServer) return kServerSums;
  return has_visits(id) ? kSumsAtOnce : std::numeric_limits<std::int64_t>::max();
}

// What of a device's due sums is read together with the first one: of the same sequence at the same stage, in order.
std::vector<DueSum> StageRun::due_with(std::int32_t id, const DueSum& first) {
  if (id == kServer) return {first};  // each owner has a worker of its own there
  const std::set<DueSum>& due = book(id).due;
  std::vector<DueSum> all;
  for (const std::int32_t index : at(first.stage).owners) {
    const OwnerState& of = owner_at(index);
    if (of.device != id) continue;
    const auto found = due.find({.rank = of.rank, .sequence = first.sequence, .stage = first.stage, .owner = index});
    if (found != due.end()) all.push_back(*found);
  }
  std::ranges::sort(all, [](const DueSum& a, const DueSum& b) { return a < b; });
  return all;
}

void StageRun::send_due(std::int32_t id) {
  DeviceBook& on = book(id);
  const std::int64_t most = sums_at_once(id);
  while (on.summing < most && !on.due.empty()) {
    const DueSum first = *on.due.begin();
    std::vector<std::int32_t> all;
    for (const DueSum& due : due_with(id, first)) {
      all.push_back(due.owner);
      on.due.erase(due);
    }
    submit_sum(first, std::move(all), true);
  }
}

void StageRun::sum_visited(std::int64_t q, std::int32_t s) {
  Visit& ran = summed_visit(s, q);
  for (const std::int32_t index : at(s).owners) {
    OwnerState& of = owner_at(index);
    if (!of.replica || ran.device != of.device || !ran.keeps_for(index) || !wants(of, q)) continue;
    ++ran.sums;
    of.seen[static_cast<std::size_t>(q)] = true;
    const plan::PanelRun run{
        .each = {Bytes(0), of.cost.beside, plan::kMessageHeader}, .panels = 1, .last_up = Bytes(0)};
    submit({.errand = Errand::sum, .device = of.device, .stage = s, .owner = index, .sequence = q, .of_visited = true},
           ran.way_back(q), run, Bytes(0), false, {.owner = index, .rows = work.seq});
  }
}

void StageRun::own_visited(std::int64_t q, std::int32_t s) {
  sum_visited(q, s);
  if (summed_visit(s, q).sums == 0) leave_summed(q, s);
  sum_elsewhere(q, s);
}

void StageRun::join_group(std::int64_t q, std::int32_t s, std::int32_t id) {
  StageState& of_stage = at(s);
  if (of_stage.ungrouped == 0 || of_stage.grouped[static_cast<std::size_t>(q)]) return;
  std::int64_t group = std::ranges::min_element(of_stage.groups) - of_stage.groups.begin();
  for (const std::int32_t index : of_stage.owners) {
    const OwnerState& of = owner_at(index);
    if (of.replica && of.device == id && !of.slices.empty()) group = of.group;
  }
  of_stage.grouped[static_cast<std::size_t>(q)] = true;
  ++of_stage.groups[static_cast<std::size_t>(group)];
  --of_stage.ungrouped;
  for (const std::int32_t index : of_stage.owners) {
    OwnerState& of = owner_at(index);
    if (of.group != group) continue;
    of.sequences.push_back(q);
    of.seen[static_cast<std::size_t>(q)] = false;
    ++of.left;
  }
  if (has_gradient(s, q)) sum_elsewhere(q, s);
  if (of_stage.ungrouped > 0) return;
  for (const std::int32_t index : of_stage.owners) {
    if (owner_at(index).left == 0) all_summed(index);
  }
}

void StageRun::settle_groups(std::int32_t s) {
  for (std::int64_t q = 0; q < batch && at(s).ungrouped > 0; ++q) join_group(q, s, kNobody);
}

void StageRun::visited_is_summed(const Purpose& sum) {
  Visit& ran = summed_visit(sum.stage, sum.sequence);
  if (ran.device == sum.device && --ran.sums == 0 && ran.done == chunks) leave_summed(sum.sequence, sum.stage);
}

void StageRun::summed(const Purpose& purpose) {
  const auto count = [&](std::int32_t index) {
    OwnerState& of = owner_at(index);
    if (!of.active()) return;
    if (--of.left == 0 && at(of.stage).ungrouped == 0) all_summed(index);
  };
  if (purpose.of_visited) visited_is_summed(purpose);
  count(purpose.owner);
  const auto found = shared_sums.find(purpose.tasklet.value);
  if (found == shared_sums.end()) return;
  const SharedSum with = std::move(found->second);
  shared_sums.erase(found);
  std::ranges::for_each(with.owners, count);
  if (!with.again) return;
  --book(purpose.device).summing;
  send_due(purpose.device);
}

void StageRun::all_summed(std::int32_t index) {
  if (const std::int32_t id = owner_at(index).device; id != kServer) progress.device_summed(id);
  send_sums(index);
  if (!owner_at(index).watched.empty()) watchers.ask_for_digests(index);
}

void StageRun::send_sums(std::int32_t index) {
  OwnerState& of = owner_at(index);
  if (of.closed || of.lost || !book(of.device).present) return;
  if (DeviceBook& on = book(of.device); on.sending++ == 0) on.sending_since = fleet.now();
  of.panels = std::max<std::int64_t>(1, of.sums.value() / kWeightPanel);
  // Sums go in several parts, so that those that are in are not lost if the device is lost while it sends. Every part
  // is a message: where messages have latency, small parts are sent only once something has been lost.
  of.part =
      progress.undisturbed() || book(of.device).latency.value() == 0 ? kSumPanels : std::min(of.panels, kMostSumPanels);
  if (of.device == kServer) of.part = of.panels = 1;
  of.parts_in.assign(static_cast<std::size_t>((of.panels + of.part - 1) / of.part), false);
  for (std::int64_t sent = 0; sent < of.panels; sent += of.part) {
    plan::PanelRun run;
    run.panels = std::min(of.part, of.panels - sent);
    run.each.up = with_header(Bytes((of.sums.value() + of.panels - 1) / of.panels));
    const auto number = static_cast<std::int32_t>(sent / of.part);
    std::vector<plan::PieceSlice> slices = slices_of_panels(of, sent, sent + run.panels);
    submit({Errand::send_sums, of.device, of.stage, index, number, 0, of.loss}, {kSums, of.stage}, run, Bytes(0), false,
           {.owner = index,
            .row = number,
            .partial = of.partial,
            .slices = std::make_shared<const std::vector<plan::PieceSlice>>(std::move(slices))});
  }
}

std::vector<plan::PieceSlice> StageRun::slices_of_panels(const OwnerState& of, std::int64_t from, std::int64_t to) {
  const auto share = [&](std::int64_t panel) { return static_cast<double>(panel) / static_cast<double>(of.panels); };
  return slices_of_share(work, at(of.stage).cost, of.slices, share(from), share(to), plan.chunk);
}

void StageRun::sums_in(const Purpose& purpose) {
  OwnerState& of = owner[static_cast<std::size_t>(purpose.owner)];
  of.parts_in[static_cast<std::size_t>(purpose.chunk)] = true;
  of.panels_in += std::min(of.part, of.panels - purpose.chunk * of.part);
  if (of.panels_in < of.panels) return;
  of.closed = of.sent = true;
  if (DeviceBook& on = book(of.device); --on.sending == 0) on.sent_at = fleet.now();
  leave_role(of);
  tally.summed[static_cast<std::size_t>(of.stage)] += of.elements * static_cast<double>(of.sequences.size());
  watchers.compare(purpose.owner);
  gradient_in(purpose.stage);
}

void StageRun::gradient_in(std::int32_t s) {
  if (--at(s).gradients_left > 0) return;
  const Visitor done = [&](TensorId tensor) { server->source_done(tensor); }, nothing = [](TensorId) {};
  for_sources(plan.stages[static_cast<std::size_t>(s)], done, nothing);
}

}  // namespace cleave::sched::stages
