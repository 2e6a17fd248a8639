// Memory of devices while a step runs: who gives some back, who lends some, and what waits where nobody has any.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

constexpr double kMissed = 0.05;   // of a stage's uplink, before helpers are called
constexpr double kPatience = 0.5;  // share of a stage's remaining time that a helper's weights may take

}  // namespace

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
      if (host.retired || host.kept_slots < host.kept_all) continue;  // there are sums to make of what it keeps
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
           return of.device == host.device && of.replica && of.left > 0 && !of.lost;
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

void StageRun::call_helpers(std::int32_t s) {
  const double left = progress.left_of(s);
  if (left == 0) return;
  for (;;) {
    double uplink = 0;
    for (const Host& host : at(s).hosts) uplink += book(host.device).uplink * (host.helps ? kLent : 1);
    if (uplink >= at(s).uplink * (1 - kMissed)) break;
    const Seconds patience(uplink > 0 ? kPatience * left / uplink : std::numeric_limits<double>::infinity());
    const Lack lack{.stage = s, .sends = left, .uplink = uplink, .patience = patience, .step_left = progress.ends_in()};
    const std::optional<Candidate> helper = choose_helper(candidates(), at(s).cost, lack);
    if (!helper) break;
    make_room(helper->device, least_memory(at(s).cost), s);
    add_host(s, {.device = DeviceId(helper->device), .memory = {}, .held = {}}, true);
  }
  place_waiting_forward(s);
  place_waiting_backward(s);
}

bool StageRun::lacks_replica(std::int32_t s) { return at(s).hosts.empty() && progress.left_of(s) > 0; }

bool StageRun::call_replicas() {
  bool found = true;
  // Who finds no room for so much is not asked for more.
  Bytes least(std::numeric_limits<std::int64_t>::max());
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (!lacks_replica(s)) continue;
    const Bytes need = least_memory(at(s).cost);
    if (need < least) call_helpers(s);
    if (!at(s).hosts.empty()) continue;
    if (need < least && make_way(s)) call_helpers(s);
    if (!at(s).hosts.empty()) continue;
    least = std::min(least, need);
    found = false;
  }
  return found;
}

void StageRun::call_all_helpers() {
  if (!call_replicas()) return;
  for (std::int32_t s = 0; s <= top(); ++s) call_helpers(s);
}

bool StageRun::can_wait(const OwnerState& of) const {
  return !of.closed && !of.lost && !of.replica && of.watched.empty() && of.panels == 0 && of.device != kServer &&
         std::ranges::none_of(of.sequences, [&](std::int64_t q) { return of.seen[static_cast<std::size_t>(q)]; });
}

void StageRun::wait_for_room(std::int32_t index) {
  owner[static_cast<std::size_t>(index)].lost = true;
  homeless.push_back(index);
}

bool StageRun::make_way(std::int32_t s) {
  // Owners of a stage on a device go together: what is at work on a sequence has its room in one role of theirs.
  std::map<std::int32_t, std::map<std::int32_t, std::vector<std::int32_t>>> waiting;  // of devices, by stage
  for (std::int32_t r = 0; r <= top(); ++r) {
    settle_groups(r);
    std::set<std::int32_t> busy;
    for (const std::int32_t index : at(r).owners) {
      const OwnerState& of = owner[static_cast<std::size_t>(index)];
      if (!of.active() || of.device == kServer || !book(of.device).present) continue;
      if (can_wait(of)) {
        waiting[of.device][r].push_back(index);
      } else {
        busy.insert(of.device);
      }
    }
    for (const std::int32_t id : busy) {
      if (const auto on = waiting.find(id); on != waiting.end()) on->second.erase(r);
    }
  }
  const auto need = static_cast<double>(least_memory(at(s).cost).value());
  std::vector<std::int32_t> best;
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates()) {
    const auto on = waiting.find(candidate.device);
    if (candidate.is_replica(s) || on == waiting.end()) continue;
    double room = candidate.memory_for(s), taken = 0;
    std::vector<std::int32_t> those;
    for (const auto& [below, indices] : on->second) {  // stages below are summed last
      if (room >= need) break;
      for (const std::int32_t index : indices) {
        const auto memory = static_cast<double>(memory_of(owner[static_cast<std::size_t>(index)]).value());
        room += memory;
        taken += memory;
        those.push_back(index);
      }
    }
    if (room < need || taken >= least) continue;
    least = taken;
    best = those;
  }
  for (const std::int32_t index : best) {
    const OwnerState& of = owner[static_cast<std::size_t>(index)];
    wait_for_room(index);
    if (purposes.find(of.load) != nullptr) remove_purpose(of.load);
    leave_role(of);
  }
  return !best.empty();
}

void StageRun::leave_role(const OwnerState& of) {
  if (of.active() || of.device == kServer || !book(of.device).present) return;
  if (of.brought.valid()) give_back(of.brought, of.device, Bytes(0));
  give_back(of.load, of.device, memory_of(of));
  pass_on_room(of);
}

// What is at work on a sequence has its room in one role of a device at a stage: the next one takes it over.
void StageRun::pass_on_room(const OwnerState& of) {
  const bool had_room = !of.guest || of.room.valid();
  if (of.room.valid()) give_back(of.room, of.device, of.cost.at_work);
  if (!had_room) return;
  for (const std::int32_t other : at(of.stage).owners) {
    OwnerState& its = owner[static_cast<std::size_t>(other)];
    if (!its.active() || its.device != of.device || !its.guest || its.room.valid()) continue;
    its.room = load({Errand::weights, its.device, its.stage}, kWeights, Bytes(0), its.cost.at_work, {});
    return;
  }
}

}  // namespace cleave::sched::stages
