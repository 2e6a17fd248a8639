// Makes a StagePlan of a layout: replicas with their open sequences, owners with their slices, and bytes.
#include "stages/finish.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "stages/slices.hpp"

namespace cleave::plan::stages {

namespace {

constexpr std::int64_t kMostSlots = 8;  // more open sequences than this no longer help
// Kept sequences of a stage that are on their way to the head and back: so many for each stage above, divided among its
// replicas. More of them would only wait at processors.
constexpr std::int64_t kOnTheirWay = 2;

// Most open sequences of a replica. They wait for its uplink, so a slow replica opens fewer: what it can send while the
// quickest replica of the stage sends twice kMostSlots.
std::int64_t most_open(const Problem& problem, const StageDraft& draft, std::size_t replica) {
  const auto uplink = [&](std::size_t device) { return problem.devices[device].uplink.value(); };
  double quickest = 0;
  for (const std::size_t device : draft.replicas) quickest = std::max(quickest, uplink(device));
  const double most = 2 * kMostSlots * uplink(draft.replicas[replica]) / quickest;
  return most < kMostSlots ? static_cast<std::int64_t>(most) : kMostSlots;
}

// Sets slots and memory of replicas. Sequences are kept where there is room for enough of them. Memory that is left
// holds more open sequences, which even out the work of the replicas.
void open_slots(const Problem& problem, const Layout& layout, StagePlan& plan) {
  std::vector<std::int64_t> left;
  for (const fleet::DeviceProfile& device : problem.devices) left.push_back(device.memory.value());
  std::unordered_map<DeviceId, std::size_t> places;
  for (std::size_t i = 0; i < problem.devices.size(); ++i) places.try_emplace(problem.devices[i].id, i);
  const auto index = [&](DeviceId id) { return places.at(id); };
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageCost& cost = layout.stages[s].cost;
    for (std::size_t k = 0; k < plan.stages[s].replicas.size(); ++k) {
      StageReplica& replica = plan.stages[s].replicas[k];
      replica.memory = cost.weights() + cost.at_work() + cost.open_forward() * replica.forward_slots +
                       cost.open_backward() * replica.backward_slots;
      left[layout.stages[s].replicas[k]] -= replica.memory.value();
    }
  }
  // By stage and device: memory of the owners there for each further open sequence.
  std::map<std::pair<std::int64_t, std::size_t>, Bytes> held;
  for (const GradientOwner& owner : plan.owners) {
    left[index(owner.device)] -= owner.memory.value();
    if (!owner.replica) continue;
    const StageCost& cost = layout.stages[static_cast<std::size_t>(owner.stage)].cost;
    held[{owner.stage, index(owner.device)}] += owner_cost(*problem.work, cost, owner.slices, plan.chunk).of_each();
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageCost& cost = layout.stages[s].cost;
    for (std::size_t k = 0; k < plan.stages[s].replicas.size(); ++k) {
      StageReplica& replica = plan.stages[s].replicas[k];
      const std::size_t device = layout.stages[s].replicas[k];
      std::int64_t& free = left[device];
      if (const auto found = held.find({static_cast<std::int64_t>(s), device}); found != held.end())
        replica.held = found->second;
      const auto [forward, backward] = slot_bytes(cost, replica.held);
      const std::int64_t most = most_open(problem, layout.stages[s], k);
      if (is_kept(layout.settings, cost)) {
        const std::int64_t above = std::ssize(plan.stages) - 1 - static_cast<std::int64_t>(s);
        const std::int64_t on_their_way = kOnTheirWay * above / std::ssize(plan.stages[s].replicas);
        const std::int64_t slots = std::min(
            {problem.work->batch, kFewestKept + on_their_way, (free - cost.packed().value()) / cost.kept().value()});
        if (slots >= least_kept(*problem.work)) {
          const Bytes kept = cost.packed() + cost.kept() * slots;
          replica.kept_slots = slots;
          replica.memory += kept;
          free -= kept.value();
        }
      }
      for (;;) {
        const bool back = replica.backward_slots < replica.forward_slots && replica.backward_slots < most;
        const std::int64_t size = (back ? backward : forward).value();
        std::int64_t& slots = back ? replica.backward_slots : replica.forward_slots;
        if (slots >= most || size > free) break;
        ++slots;
        free -= size;
        replica.memory += Bytes(size);
      }
    }
  }
}

void count_bytes(const Problem& problem, const Layout& layout, StagePlan& plan) {
  const StageWork& work = *problem.work;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageCost& cost = layout.stages[s].cost;
    plan.bytes_down += plan.stages[s].weights * std::ssize(plan.stages[s].replicas);
    plan.bytes_down += cost.taken_in(work.tokens(), plan.stages[s].kept_slots() > 0);
    plan.bytes_up += cost.sent(work.tokens());
  }
  for (const GradientOwner& owner : plan.owners) {
    const auto s = static_cast<std::size_t>(owner.stage);
    const OwnerCost cost = owner_cost(work, layout.stages[s].cost, owner.slices, plan.chunk);
    const std::int64_t size = plan.groups[s] == 1 ? size_of(work.wire) : sum_bytes(work.wire);
    plan.bytes_down += owner.weights + cost.operands * (work.batch / plan.groups[s]);
    plan.bytes_up += Bytes(static_cast<std::int64_t>(cost.elements) * size);
  }
}

StagePlan finish_with(const Problem& problem, const Layout& layout, bool whole_heads) {
  StagePlan plan;
  plan.chunk = std::min(layout.settings.chunk, problem.work->seq);
  plan.preload = problem.preload;
  plan.head_parts = problem.work->pieces.back().part.count;
  plan.groups = layout.groups;
  for (const StageDraft& draft : layout.stages) {
    Stage stage{draft.cost.first(), draft.cost.end(), draft.cost.weights(), {}};
    for (const std::size_t device : draft.replicas) {
      StageReplica replica;
      replica.device = problem.devices[device].id;
      stage.replicas.push_back(replica);
    }
    plan.stages.push_back(std::move(stage));
  }
  plan.owners = owners_with_slices(problem, layout, whole_heads);
  open_slots(problem, layout, plan);
  count_bytes(problem, layout, plan);
  return plan;
}

}  // namespace

// Slices of attention end where heads do, unless memory is too short for that: a device may have room for a part of a
// head only.
StagePlan finish(const Problem& problem, const Layout& layout) {
  StagePlan plan = finish_with(problem, layout, true);
  return within_memory(problem, plan) ? plan : finish_with(problem, layout, false);
}

bool within_memory(const Problem& problem, const StagePlan& plan) {
  std::unordered_map<DeviceId, Bytes> left;
  for (const fleet::DeviceProfile& device : problem.devices) left[device.id] = device.memory;
  for (const Stage& stage : plan.stages) {
    for (const StageReplica& replica : stage.replicas) left[replica.device] -= replica.memory;
  }
  for (const GradientOwner& owner : plan.owners) left[owner.device] -= owner.memory;
  return std::ranges::all_of(left, [](const auto& of) { return of.second.value() >= 0; });
}

}  // namespace cleave::plan::stages
