// Replicas and owners get weights, and memory for the sequences that pass, as planned.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cleave/base/error.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

plan::PanelRun run_of_weights(Bytes weights) {
  plan::PanelRun run;
  run.panels = std::max<std::int64_t>(1, weights.value() / kWeightPanel);
  if (weights.value() > 0) run.each.down = with_header(Bytes((weights.value() + run.panels - 1) / run.panels));
  return run;
}

}  // namespace

TaskletId StageRun::load(const Purpose& purpose, Urgency urgency, Bytes weights, Bytes memory, StageItem item) {
  book(purpose.device).free -= memory;
  const Bytes now = at(purpose.stage).loaded ? weights : Bytes(0);
  item.weights = now.value() > 0;
  return submit(purpose, {urgency, purpose.stage}, run_of_weights(now), memory, true, std::move(item));
}

void StageRun::bring_weights(std::int32_t s) {
  at(s).loaded = true;
  const Bytes weights = at(s).cost.weights();
  for (ActiveReplica& active : at(s).replicas) {
    active.ready = fleet.now() + weights / BytesPerSecond(book(active.device).downlink);
    active.brought = submit({Errand::weights, active.device, s}, {kWeights, s}, run_of_weights(weights), Bytes(0), true,
                            {.weights = true, .keeps = active.keeps()});
  }
  for (const std::int32_t index : at(s).owners) {
    OwnerState& of = owner_at(index);
    if (of.replica || !of.active() || of.device == kServer || !book(of.device).present) continue;
    of.brought = submit({Errand::weights, of.device, s}, {kSliceWeights, s}, run_of_weights(of.cost.weights), Bytes(0),
                        true, {.owner = index, .weights = true});
  }
}

Bytes StageRun::places(const plan::StageCost& cost, const ActiveReplica& active) const {
  // Owners' own memory covers what they hold of kLeastOpen open sequences; slot_bytes() adds that of further ones.
  const auto [there, back] = plan::slot_bytes(cost, active.held);
  return cost.at_work() + (cost.open_forward() + cost.open_backward()) * kLeastSlots +
         there * (active.forward_all - kLeastSlots) + back * (active.backward_all - kLeastSlots) +
         cost.kept() * active.kept_all + (active.keeps() ? cost.packed() : Bytes(0)) +
         std::max(cost.open_forward(), cost.open_backward()) * active.witness_all;
}

void StageRun::hold_places(const plan::StageCost& cost, ActiveReplica& active, std::int32_t s) {
  plan::PanelRun run;
  run.panels = 1;
  active.places = submit({Errand::weights, active.device, s}, {kWeights, s}, run, places(cost, active), true, {});
}

void StageRun::release_places(ActiveReplica& active) {
  std::erase_if(loads, [&](const auto& load) { return load.first == active.places; });
  fleet.release(active.places, DeviceId(active.device));
}

Bytes StageRun::places_beside(const plan::StageCost& cost, const ActiveReplica& active, Bytes held) const {
  ActiveReplica wider = active;
  wider.held += held;
  return places(cost, wider) - places(cost, active);
}

void StageRun::widen_places(std::int32_t s, ActiveReplica& active, Bytes held) {
  const plan::StageCost& cost = at(s).cost;
  const Bytes more = places_beside(cost, active, held);
  active.held += held;
  if (more.value() == 0) return;
  book(active.device).free -= more;
  release_places(active);
  hold_places(cost, active, s);
}

void StageRun::open_stages() {
  for (const plan::Stage& of_plan : plan.stages) {
    stage.emplace_back(plan::StageCost(work, of_plan.first, of_plan.end, plan.chunk));
    stage.back().backward_left = batch;
    if (of_plan.tiles && stage.back().cost.backward()) stage.back().gradients_left = 1;
  }
}

bool StageRun::load_replicas() {
  bool all_there = true;
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (!is_open(s) || runs_in_tiles(s)) continue;
    at(s).loaded = plan.preload || phase >= plan.rounds();  // in later phases all sequences are there already
    at(s).uplink = 0;
    for (const plan::StageReplica& replica : plan.stages[static_cast<std::size_t>(s)].replicas) {
      const auto id = static_cast<std::int32_t>(replica.device.value);
      if ((outgrown || phase > 0) && !book(id).present) {
        at(s).uplink +=
            std::ranges::lower_bound(planned_with, replica.device, {}, &fleet::DeviceProfile::id)->uplink.value();
        all_there = false;
        continue;
      }
      CLEAVE_ASSERT(static_cast<std::size_t>(id) < device.size() && book(id).present, "device {} is not there", id);
      add_replica(s, replica, false);
      at(s).uplink += book(id).uplink;
    }
    CLEAVE_ASSERT(!all_there || !at(s).replicas.empty(), "stage {} has no replica", s);
  }
  return all_there;
}

void StageRun::add_replica(std::int32_t s, const plan::StageReplica& replica, bool helps) {
  const plan::StageCost& cost = at(s).cost;
  const auto id = static_cast<std::int32_t>(replica.device.value);
  // A helper's weights come in the gaps that its own work leaves, unless the stage has no other replica.
  const Urgency urgency = helps && !at(s).replicas.empty() ? kSliceWeights : kWeights;
  Seconds ready = fleet.now();
  for (const StageState& other : stage) {
    for (const ActiveReplica& active : other.replicas) {
      if (active.device == id) ready = std::max(ready, active.ready);
    }
  }
  ActiveReplica active{.device = id,
                       .forward_slots = replica.forward_slots,
                       .backward_slots = replica.backward_slots,
                       .forward_all = replica.forward_slots,
                       .backward_all = replica.backward_slots,
                       .kept_slots = replica.kept_slots,
                       .kept_all = replica.kept_slots,
                       .held = replica.held,
                       .ready = ready + cost.weights() / BytesPerSecond(book(id).downlink),
                       .load = {},
                       .brought = {},
                       .places = {},
                       .helps = helps};
  if (options.quorum) witnesses.keep_slots(active);
  active.load = load({Errand::weights, id, s}, urgency, cost.weights(), cost.weights(), {.keeps = active.keeps()});
  hold_places(cost, active, s);
  book(id).free -= places(cost, active);
  ++book(id).roles;
  at(s).replicas.push_back(active);
}

bool StageRun::load_owners() {
  if (!goes_back()) return true;
  bool all_there = true;
  const std::size_t before = owner.size();
  for (const plan::GradientOwner& of_plan : plan.owners) {
    const auto id = static_cast<std::int32_t>(of_plan.device.value), s = static_cast<std::int32_t>(of_plan.stage);
    if (!is_open(s)) continue;
    const std::int64_t groups = plan.groups[static_cast<std::size_t>(s)];
    std::vector<std::int64_t> sequences;  // with several groups: join_group() adds them as they come
    if (groups == 1) {
      sequences.resize(static_cast<std::size_t>(batch));
      std::iota(sequences.begin(), sequences.end(), std::int64_t{0});
    } else if (at(s).groups.empty()) {
      at(s).groups.assign(static_cast<std::size_t>(groups), 0);
      at(s).grouped.assign(static_cast<std::size_t>(batch), false);
      at(s).ungrouped = batch;
    }
    const std::int32_t index = add_owner(id, s, of_plan.replica, groups > 1, of_plan.slices, std::move(sequences));
    owner_at(index).group = of_plan.group;
    if (id == kServer || book(id).present) continue;
    recovery.wait_for_room(index);
    all_there = false;
  }
  watchers.watch();
  witnesses.add_slots();
  for (std::size_t index = before; index < owner.size(); ++index) {
    if (!owner[index].lost) load_owner(static_cast<std::int32_t>(index));
  }
  return all_there;
}

Bytes StageRun::memory_of(const OwnerState& of) const {
  return owner_memory(work, of.cost, of.replica) - (of.shares_room ? of.cost.at_work : Bytes(0));
}

std::int32_t StageRun::add_owner(std::int32_t id, std::int32_t s, bool replica, bool partial,
                                 std::vector<plan::PieceSlice> slices, std::vector<std::int64_t> sequences,
                                 bool shares_room) {
  OwnerState state;
  state.shares_room = shares_room;
  state.stands_in = began < fleet.now() && !slices.empty();
  state.device = id;
  state.stage = s;
  state.replica = replica;
  state.partial = partial;
  state.since = fleet.now();
  state.slices = std::move(slices);
  state.closed = state.slices.empty();
  state.cost = plan::owner_cost(work, at(s).cost, state.slices, plan.chunk);
  state.elements = state.cost.elements;
  const std::int64_t size = partial ? plan::sum_bytes(work.wire) : size_of(work.wire);
  state.sums = Bytes(static_cast<std::int64_t>(state.elements) * size);
  state.seen.assign(static_cast<std::size_t>(batch), true);
  for (const std::int64_t q : sequences) state.seen[static_cast<std::size_t>(q)] = false;
  state.left = std::ssize(sequences);
  state.sequences = std::move(sequences);
  const auto index = static_cast<std::int32_t>(owner.size());
  at(s).owners.push_back(index);
  if (!state.closed) ++at(s).gradients_left;
  if (id != kServer && book(id).present) book(id).free -= memory_of(state);
  owner.push_back(std::move(state));
  return index;
}

void StageRun::load_owner(std::int32_t index) {
  OwnerState& of = owner_at(index);
  if (of.device == kServer) return;
  CLEAVE_ASSERT(book(of.device).free.value() >= 0, "device {} is to hold {} bytes too many", of.device,
                -book(of.device).free.value());
  const Bytes weights = of.replica || !at(of.stage).loaded ? Bytes(0) : of.cost.weights;
  std::vector<plan::PieceSlice> held = of.slices;
  held.insert(held.end(), of.watched.begin(), of.watched.end());
  std::ranges::sort(held, {}, [](const plan::PieceSlice& slice) { return std::pair(slice.piece, slice.begin); });
  // A stand-in's weights come right before its operands, behind what its device was planned to read. If it shares room
  // with another owner of the stage, it may be sent operands together with that one, so its weights come early.
  const bool last = of.rank > 0 && !of.shares_room;
  const Urgency urgency = of.replica ? kWeights : of.slices.empty() ? kWitness : last ? kAgain : kSliceWeights;
  of.load =
      submit({Errand::weights, of.device, of.stage}, {urgency, urgency == kAgain ? turn_again(index, -1) : of.stage},
             run_of_weights(weights), memory_of(of), true,
             {.owner = index,
              .weights = weights.value() > 0,
              .slices = std::make_shared<const std::vector<plan::PieceSlice>>(std::move(held))});
}

}  // namespace cleave::sched::stages
