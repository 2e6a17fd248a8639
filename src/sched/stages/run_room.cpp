// Memory of devices while a step runs: which roles free it, and which lend some.
#include <algorithm>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

void StageRun::give_back(TaskletId held, std::int32_t id, Bytes memory) {
  std::erase_if(loads, [&](const auto& one) { return one.first == held; });
  fleet.release(held, DeviceId(id));
  book(id).free += memory;
}

void StageRun::give_up_weights(const ActiveReplica& replica, std::int32_t s) {
  if (replica.brought.valid()) give_back(replica.brought, replica.device, Bytes(0));
  give_back(replica.load, replica.device, at(s).cost.weights());
}

void StageRun::retire_replicas() {
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (progress.left_of(s) > 0 || witnesses.has_pairs(s)) continue;
    for (ActiveReplica& replica : at(s).replicas) {
      if (replica.retired || replica.kept_slots < replica.kept_all)
        continue;  // values that it keeps are still to be summed
      replica.retired = true;
      give_back(replica.places, replica.device, places(at(s).cost, replica));
      replica.forward_all = replica.backward_all = replica.forward_slots = replica.backward_slots = kLeastSlots;
      replica.witness_all = replica.witness_slots = 0;
      replica.kept_all = replica.kept_slots = 0;
    }
  }
}

bool StageRun::may_go(const ActiveReplica& replica, std::int32_t s) const {
  return replica.retired && std::ranges::none_of(stage[static_cast<std::size_t>(s)].owners, [&](std::int32_t index) {
           const OwnerState& of = owner_at(index);
           return of.device == replica.device && of.replica && of.left > 0 && of.active();
         });
}

std::pair<std::int64_t, std::int64_t> StageRun::lendable(const ActiveReplica& replica) {
  return {std::min(replica.forward_slots, replica.forward_all - kLeastSlots),
          std::min(replica.backward_slots, replica.backward_all - kLeastSlots)};
}

void StageRun::make_room(std::int32_t id, Bytes need, std::int32_t keeps) {
  for (std::size_t r = 0; r < stage.size() && book(id).free < need; ++r) {
    for (ActiveReplica& replica : stage[r].replicas) {
      if (replica.device != id) continue;
      const plan::StageCost& cost = stage[r].cost;
      const Bytes before = places(cost, replica);
      auto [forward_slots, backward_slots] = lendable(replica);
      for (Bytes lent; book(id).free + lent < need && forward_slots + backward_slots > 0;) {
        const bool forwards = forward_slots > backward_slots;
        --(forwards ? forward_slots : backward_slots);
        --(forwards ? replica.forward_slots : replica.backward_slots);
        --(forwards ? replica.forward_all : replica.backward_all);
        lent = before - places(cost, replica);
      }
      if (places(cost, replica) == before) continue;
      book(id).free += before - places(cost, replica);
      release_places(replica);
      hold_places(cost, replica, static_cast<std::int32_t>(r));
    }
  }
  for (std::int32_t r = 0; r <= top() && book(id).free < need; ++r) {
    const auto replica = std::ranges::find(at(r).replicas, id, &ActiveReplica::device);
    if (r == keeps || replica == at(r).replicas.end() || !may_go(*replica, r)) continue;
    give_up_weights(*replica, r);
    at(r).replicas.erase(replica);
  }
}

void StageRun::leave_role(const OwnerState& of) {
  if (of.active() || of.device == kServer || !book(of.device).present) return;
  if (of.brought.valid()) give_back(of.brought, of.device, Bytes(0));
  give_back(of.load, of.device, memory_of(of));
  pass_on_room(of);
}

// One owner of a stage on a device holds OwnerCost::at_work for all of them. When its role ends, the next one takes
// that memory over.
void StageRun::pass_on_room(const OwnerState& of) {
  const bool had_room = !of.shares_room || of.room.valid();
  if (of.room.valid()) give_back(of.room, of.device, of.cost.at_work);
  if (!had_room) return;
  for (const std::int32_t other : at(of.stage).owners) {
    OwnerState& its = owner_at(other);
    if (!its.active() || its.device != of.device || !its.shares_room || its.room.valid()) continue;
    its.room = load({Errand::weights, its.device, its.stage}, kWeights, Bytes(0), its.cost.at_work, {});
    return;
  }
}

}  // namespace cleave::sched::stages
