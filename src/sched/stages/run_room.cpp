// Memory of devices while a step runs: which roles free it, and which lend some.
#include <algorithm>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

void StageRun::give_back(TaskletId held, std::int32_t id, Bytes memory) {
  std::erase_if(loads, [&](const auto& one) { return one.first == held; });
  fleet.release(held, DeviceId(id));
  book(id).free += memory;
}

void StageRun::give_up_weights(const Host& host, std::int32_t s) {
  if (host.brought.valid()) give_back(host.brought, host.device, Bytes(0));
  give_back(host.load, host.device, at(s).cost.weights());
}

void StageRun::retire_replicas() {
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (progress.left_of(s) > 0 || witnesses.has_pairs(s)) continue;
    for (Host& host : at(s).hosts) {
      if (host.retired || host.kept_slots < host.kept_all) continue;  // values that it keeps are still to be summed
      host.retired = true;
      give_back(host.places, host.device, places(at(s).cost, host));
      host.forward_all = host.backward_all = host.forward_slots = host.backward_slots = kLeastSlots;
      host.witness_all = host.witness_slots = 0;
      host.kept_all = host.kept_slots = 0;
    }
  }
}

bool StageRun::may_go(const Host& host, std::int32_t s) const {
  return host.retired && std::ranges::none_of(stage[static_cast<std::size_t>(s)].owners, [&](std::int32_t index) {
           const OwnerState& of = owner[static_cast<std::size_t>(index)];
           return of.device == host.device && of.replica && of.left > 0 && of.active();
         });
}

std::pair<std::int64_t, std::int64_t> StageRun::lendable(const Host& host) {
  return {std::min(host.forward_slots, host.forward_all - kLeastSlots),
          std::min(host.backward_slots, host.backward_all - kLeastSlots)};
}

void StageRun::make_room(std::int32_t id, Bytes need, std::int32_t keeps) {
  for (std::size_t r = 0; r < stage.size() && book(id).free < need; ++r) {
    for (Host& host : stage[r].hosts) {
      if (host.device != id) continue;
      const plan::StageCost& cost = stage[r].cost;
      const Bytes before = places(cost, host);
      auto [forward_slots, backward_slots] = lendable(host);
      for (Bytes lent; book(id).free + lent < need && forward_slots + backward_slots > 0;) {
        const bool forwards = forward_slots > backward_slots;
        --(forwards ? forward_slots : backward_slots);
        --(forwards ? host.forward_slots : host.backward_slots);
        --(forwards ? host.forward_all : host.backward_all);
        lent = before - places(cost, host);
      }
      if (places(cost, host) == before) continue;
      book(id).free += before - places(cost, host);
      release_places(host);
      hold_places(cost, host, static_cast<std::int32_t>(r));
    }
  }
  for (std::int32_t r = 0; r <= top() && book(id).free < need; ++r) {
    const auto host = std::ranges::find(at(r).hosts, id, &Host::device);
    if (r == keeps || host == at(r).hosts.end() || !may_go(*host, r)) continue;
    give_up_weights(*host, r);
    at(r).hosts.erase(host);
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
    OwnerState& its = owner[static_cast<std::size_t>(other)];
    if (!its.active() || its.device != of.device || !its.shares_room || its.room.valid()) continue;
    its.room = load({Errand::weights, its.device, its.stage}, kWeights, Bytes(0), its.cost.at_work, {});
    return;
  }
}

}  // namespace cleave::sched::stages
