// What a lost device had is given to others, and memory is made for it.
#include "stages/stage_run.hpp"

#include <algorithm>
#include <limits>

namespace cleave::sched::stages {

namespace {

constexpr double kDownOfUp = 1.5;  // bytes down a byte up: X, X again and dY for X and dX
constexpr double kLent = 0.5;      // share of a helper's uplink that its new stage may count on
constexpr double kMissed = 0.05;   // of a stage's uplink, before helpers are called
constexpr double kPatience = 0.5;  // share of a stage's remaining time that a helper's weights may take

}  // namespace

double StageRun::left_of(std::int32_t s) {
  std::int64_t left = 0;
  for (std::int64_t q = 0; q < batch; ++q) {
    left += chunks - visit(forward, s, q).done;
    if (s < top() && s >= lowest) left += chunks - visit(backward, s, q).done;
  }
  return static_cast<double>(left * at(s).cost.boundary(work.seq).value()) / static_cast<double>(chunks);
}

std::vector<Candidate> StageRun::candidates(std::int32_t s) {
  std::vector<Candidate> all;
  for (std::size_t id = 0; id < device.size(); ++id) {
    const DeviceBook& of = device[id];
    if (!of.present) continue;
    Candidate candidate;
    candidate.device = static_cast<std::int32_t>(id);
    candidate.memory = static_cast<double>(of.free.value());
    candidate.uplink = of.uplink;
    candidate.downlink = of.downlink;
    candidate.compute = of.compute;
    candidate.roles = of.roles;
    all.push_back(candidate);
  }
  const auto entry = [&](std::int32_t id) { return std::ranges::lower_bound(all, id, {}, &Candidate::device); };
  for (std::int32_t r = 0; r <= top(); ++r) {
    const plan::StageCost& cost = at(r).cost;
    double uplink = 0;
    for (const Host& host : at(r).hosts) uplink += book(host.device).uplink;
    const double left = kDownOfUp * left_of(r);
    for (const Host& host : at(r).hosts) {
      Candidate& of = *entry(host.device);
      const auto [forward_slots, backward_slots] = lendable(host);
      of.memory +=
          static_cast<double>((cost.open_forward() * forward_slots + cost.open_backward() * backward_slots).value());
      of.down_busy += left * of.uplink / uplink / of.downlink;
      if (r == s) of.replica = true;
      if (r != s && may_go(host, r)) of.memory += static_cast<double>(cost.weights().value());
    }
  }
  for (const OwnerState& of : owner) {
    if (of.closed || !book(of.device).present) continue;
    Candidate& candidate = *entry(of.device);
    candidate.down_busy += static_cast<double>(of.left * of.cost.operands.value()) / candidate.downlink;
    candidate.up_busy += static_cast<double>(of.sums.value()) / candidate.uplink;
  }
  return all;
}

void StageRun::give_back(TaskletId held, std::int32_t id, Bytes memory) {
  std::erase_if(loads, [&](const auto& one) { return one.first == held; });
  fleet.release(held, DeviceId(id));
  book(id).free += memory;
}

void StageRun::retire_replicas() {
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (left_of(s) > 0) continue;
    for (Host& host : at(s).hosts) {
      if (host.retired) continue;
      host.retired = true;
      const plan::StageCost& cost = at(s).cost;
      if (host.more.valid()) give_back(host.more, host.device, more_slots(cost, host));
      give_back(host.load, host.device, least_memory(cost));
      host.forward_all = host.backward_all = host.forward_slots = host.backward_slots = kLeastSlots;
      host.more = TaskletId();
      host.load = load({Errand::weights, host.device, s}, kWeights, Bytes(0), cost.weights());
    }
  }
}

bool StageRun::may_go(const Host& host, std::int32_t s) const {
  return host.retired && std::ranges::none_of(stage[static_cast<std::size_t>(s)].owners, [&](std::int32_t index) {
           const OwnerState& of = owner[static_cast<std::size_t>(index)];
           return of.device == host.device && of.replica && of.left > 0;
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
      const Bytes before = more_slots(cost, host);
      auto [forward_slots, backward_slots] = lendable(host);
      for (Bytes lent; book(id).free + lent < need && forward_slots + backward_slots > 0;) {
        const bool forwards = forward_slots > backward_slots;
        --(forwards ? forward_slots : backward_slots);
        --(forwards ? host.forward_slots : host.backward_slots);
        --(forwards ? host.forward_all : host.backward_all);
        lent = before - more_slots(cost, host);
      }
      if (more_slots(cost, host) == before) continue;
      book(id).free += before - more_slots(cost, host);
      std::erase_if(loads, [&](const auto& load) { return load.first == host.more; });
      fleet.release(host.more, DeviceId(id));
      hold_more(cost, host, static_cast<std::int32_t>(r));
    }
  }
  for (std::int32_t r = 0; r <= top() && book(id).free < need; ++r) {
    const auto host = std::ranges::find(at(r).hosts, id, &Host::device);
    if (r == keeps || host == at(r).hosts.end() || !may_go(*host, r)) continue;
    give_back(host->load, id, at(r).cost.weights());
    at(r).hosts.erase(host);
  }
}

void StageRun::lose(std::int32_t id) {
  if (static_cast<std::size_t>(id) >= device.size() || !book(id).present) return;
  book(id).present = false;
  std::erase_if(loads, [&](const auto& load) { return load.second == id; });
  std::vector<TaskletId> gone;
  purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device == id) gone.push_back(purpose.tasklet);
  });
  for (const TaskletId tasklet : gone) purposes.remove(tasklet);
  report.lost += std::ssize(gone);
  for (std::int32_t s = 0; s <= top(); ++s) {
    std::erase_if(at(s).hosts, [&](const Host& host) { return host.device == id; });
  }
  retire_replicas();
  for (std::int32_t s = 0; s <= top(); ++s) settle_groups(s);
  for (std::int32_t s = 0; s <= top(); ++s) call_helpers(s);
  for (std::int32_t s = 0; s <= top(); ++s) {
    for (std::int64_t q = 0; q < batch; ++q) place_again(id, s, q);
  }
  for (std::size_t i = 0, count = owner.size(); i < count; ++i) {
    if (owner[i].device == id && !owner[i].closed) stand_in(static_cast<std::int32_t>(i));
  }
  try_again();
}

void StageRun::place_again(std::int32_t id, std::int32_t s, std::int64_t q) {
  Visit &forth = visit(forward, s, q), &back = visit(backward, s, q);
  if (forth.device == id && forth.done < chunks) {
    forth.device = kNobody;
    // Where no keys and values are kept, chunks do not need those before them.
    forth.sent = at(s).is_stateless() ? forth.done : 0;
    ++report.redone;
    if (place_visit(forth, s, &Host::forward_slots)) {
      send_forward(q, s);
    } else {
      at(s).waiting_forward.insert(q);
    }
  }
  if (back.device == id && back.done < chunks) {
    back.device = kNobody;
    back.sent = 0;
    ++report.redone;
    if (place_visit(back, s, &Host::backward_slots)) {
      open_backward(q, s);
    } else {
      at(s).waiting_backward.insert(q);
    }
  }
}

void StageRun::call_helpers(std::int32_t s) {
  const double left = left_of(s);
  if (left == 0) return;
  for (;;) {
    double uplink = 0;
    for (const Host& host : at(s).hosts) uplink += book(host.device).uplink * (host.helps ? kLent : 1);
    if (uplink >= at(s).uplink * (1 - kMissed)) break;
    const Seconds patience(uplink > 0 ? kPatience * left / uplink : std::numeric_limits<double>::infinity());
    const std::optional<Candidate> helper = choose_helper(candidates(s), at(s).cost, patience);
    if (!helper) break;
    make_room(helper->device, least_memory(at(s).cost), s);
    add_host(s, helper->device, kLeastSlots, kLeastSlots, true);
  }
  place_waiting_forward(s);
  place_waiting_backward(s);
}

bool StageRun::has_gradient(std::int32_t s, std::int64_t q) {
  return (s + 1 >= top() ? visit(forward, top(), q) : visit(backward, s + 1, q)).done == chunks;
}

void StageRun::stand_in(std::int32_t index) {
  const std::int32_t s = owner[static_cast<std::size_t>(index)].stage;
  const std::vector<std::int64_t> sequences = owner[static_cast<std::size_t>(index)].sequences;
  LostSums lost{.slices = owner[static_cast<std::size_t>(index)].slices,
                .partial = owner[static_cast<std::size_t>(index)].partial,
                .remaining = std::max(Seconds(0), plan.forecast - (fleet.now() - began))};
  for (const std::int64_t q : sequences) ++(has_gradient(s, q) ? lost.at_once : lost.later);
  const std::vector<OwnerPart> parts = share_out(work, at(s).cost, lost, candidates(s), plan.chunk);
  if (parts.empty()) return homeless.push_back(index);
  owner[static_cast<std::size_t>(index)].closed = true;
  for (const OwnerPart& part : parts) {
    std::vector<std::int64_t> its;
    for (auto i = part.part; i < std::ssize(sequences); i += part.parts)
      its.push_back(sequences[static_cast<std::size_t>(i)]);
    make_room(part.device, owner_memory(work, part.cost, part.replica), s);
    const std::int32_t stands =
        add_owner(part.device, s, part.replica, lost.partial || part.parts > 1, part.slices, its);
    for (const std::int64_t q : its) {
      const Visit& ran = visit(s == top() ? forward : backward, s, q);
      if (!has_gradient(s, q)) continue;
      if (!part.replica || ran.done == chunks || (ran.placed() && ran.device != part.device)) send_operands(stands, q);
    }
    ++report.redone;
  }
  --at(s).gradients_left;
}

void StageRun::try_again() {
  needy = false;
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (!at(s).hosts.empty() || left_of(s) == 0) continue;
    call_helpers(s);
    needy = needy || at(s).hosts.empty();
  }
  for (const std::int32_t index : std::exchange(homeless, {})) stand_in(index);
  needy = needy || !homeless.empty();
}

void StageRun::join(DeviceId id) {
  for (const plan::DeviceState& state : fleet.devices()) {
    if (state.profile.id == id) open_book(state.profile);
  }
  for (std::int32_t s = 0; s <= top(); ++s) call_helpers(s);
  try_again();
}

}  // namespace cleave::sched::stages
