// Counting users; sending what finds room.
#include "residency/weight_cache.hpp"

#include <algorithm>
#include <utility>

namespace cleave::sched {

void WeightCache::clear() {
  families_.clear();
  for (auto& [id, device] : devices_) device = {.room = device.room};
  for (const auto& [id, kept] : std::exchange(kept_, {})) release_(id, kept.device);
}

void WeightCache::want_for(const model::Operation& op, std::size_t index, std::span<const DevicePartition> partitions,
                           const model::StepGraph& graph, std::uint64_t version) {
  const auto want_family = [&](const DevicePartition& partition, OpId family) {
    const auto found = families_.find(family);
    if (found != families_.end() && found->second.version == version) return;
    want(family, graph.operation(family).rows.count, partition.columns, version);
  };
  const DevicePartition& partition = partitions[index];
  const bool first = families_.empty();
  want_family(partition, op.rows.first);
  for (const DevicePartition& other : partitions) {
    if (first && other.phase == partition.phase) want_family(other, other.families.front());
  }
  const auto next = std::ranges::upper_bound(partition.families, op.rows.first);
  if (next != partition.families.end()) return want_family(partition, *next);
  for (const DevicePartition& other : partitions) {
    if (other.phase > partition.phase) want_family(other, other.families.front());
  }
}

void WeightCache::want(OpId id, std::int64_t groups, std::span<const plan::TaskletPlan> columns,
                       std::uint64_t version) {
  Family& family = family_of(id, groups);
  end(family);
  family.version = version;
  if (family.left == 0) return;
  family.waiting = std::ssize(columns);
  for (const plan::TaskletPlan& piece : columns) {
    devices_[piece.device].waiting.push_back({id, piece, version});
    send_waiting(piece.device);
  }
}

void WeightCache::send_waiting(DeviceId id) {
  Device& device = devices_[id];
  while (!device.waiting.empty()) {
    const Waiting& next = device.waiting.front();
    Family& family = families_.at(next.family);
    if (family.version == next.version && family.left > 0) {
      const Bytes bytes = next.columns.resident;
      if (device.taken + bytes > device.room) return;
      device.taken += bytes;
      const TaskletId columns = send_(next.family, next.columns);
      kept_.emplace(columns, Kept{.family = next.family, .device = id, .box = next.columns.box, .bytes = bytes});
      --family.waiting;
      family.kept.push_back(columns);
      family.by_device[id].push_back(columns);
    }
    device.waiting.pop_front();
  }
}

bool WeightCache::find_no_room(OpId family) const {
  const auto found = families_.find(family);
  return found != families_.end() && found->second.waiting > 0;
}

std::optional<TaskletId> WeightCache::use(OpId family, const plan::TaskletPlan& piece) {
  const auto& of_family = families_.at(family).by_device;
  const auto found = of_family.find(piece.device);
  if (found == of_family.end()) return std::nullopt;
  for (const TaskletId id : found->second) {
    const auto kept = kept_.find(id);
    if (kept == kept_.end() || kept->second.over) continue;
    const GemmBox &box = kept->second.box, &wanted = piece.box;
    if (box.n0 != wanted.n0 || box.n1 != wanted.n1 || box.k0 != wanted.k0 || box.k1 != wanted.k1) continue;
    ++kept->second.users;
    return id;
  }
  return std::nullopt;
}

WeightCache::Family& WeightCache::family_of(OpId id, std::int64_t groups) {
  const auto [found, is_new] = families_.try_emplace(id);
  if (is_new) found->second.left = groups;
  return found->second;
}

void WeightCache::sent_group(const model::RowGroup& group) {
  Family& family = family_of(group.first, group.count);
  if (--family.left == 0) end(family);
}

void WeightCache::leave() {
  for (auto& [id, device] : devices_) device.waiting.clear();
  std::vector<OpId> families;
  for (const auto& [id, family] : families_) {
    if (family.version != 0) families.push_back(id);
  }
  std::ranges::sort(families);
  for (const OpId id : families) {
    families_.at(id).version = 0;
    end(families_.at(id));
  }
}

// None of its columns are to be used by others than those that use them now.
void WeightCache::end(Family& family) {
  family.waiting = 0;
  family.by_device.clear();
  for (const TaskletId id : std::exchange(family.kept, {})) doubt(id);
}

void WeightCache::doubt(TaskletId columns) {
  const auto found = kept_.find(columns);
  if (found == kept_.end()) return;
  found->second.over = true;
  release_if_over(columns);
}

void WeightCache::done(TaskletId columns) {
  const auto found = kept_.find(columns);
  if (found == kept_.end()) return;
  --found->second.users;
  release_if_over(columns);
}

void WeightCache::release_if_over(TaskletId id) {
  const auto found = kept_.find(id);
  if (!found->second.over || found->second.users > 0) return;
  const Kept kept = found->second;
  kept_.erase(found);
  devices_[kept.device].taken -= kept.bytes;
  release_(id, kept.device);
  send_waiting(kept.device);
}

void WeightCache::forget(DeviceId device) {
  Device& forgotten = devices_[device];
  for (const Waiting& waiting : std::exchange(forgotten.waiting, {})) {
    Family& family = families_.at(waiting.family);
    if (family.version == waiting.version && family.waiting > 0) --family.waiting;
  }
  forgotten.taken = Bytes(0);
  std::vector<TaskletId> gone;
  for (const auto& [id, kept] : kept_) {
    if (kept.device == device) gone.push_back(id);
  }
  std::ranges::sort(gone);
  for (const TaskletId id : gone) {
    kept_.erase(id);
    release_(id, device);
  }
}

}  // namespace cleave::sched
