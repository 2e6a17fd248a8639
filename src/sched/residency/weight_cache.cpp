// Counting users; sending what finds room.
#include "residency/weight_cache.hpp"

#include <algorithm>
#include <utility>

namespace cleave::sched {

void WeightCache::clear() {
  cut_operations_.clear();
  for (auto& [id, device] : devices_) device = {.room = device.room};
  for (const auto& [id, kept] : std::exchange(kept_, {})) release_(id, kept.device);
}

void WeightCache::want_for(const model::Operation& op, std::size_t index, std::span<const DevicePartition> partitions,
                           const model::StepGraph& graph, std::uint64_t version) {
  const auto want_for = [&](const DevicePartition& partition, OpId first_part) {
    const auto found = cut_operations_.find(first_part);
    if (found != cut_operations_.end() && found->second.version == version) return;
    want(first_part, graph.operation(first_part).rows.count, partition.columns, version);
  };
  const DevicePartition& partition = partitions[index];
  const bool first = cut_operations_.empty();
  want_for(partition, op.rows.first);
  for (const DevicePartition& other : partitions) {
    if (first && other.phase == partition.phase) want_for(other, other.first_parts.front());
  }
  const auto next = std::ranges::upper_bound(partition.first_parts, op.rows.first);
  if (next != partition.first_parts.end()) return want_for(partition, *next);
  for (const DevicePartition& other : partitions) {
    if (other.phase > partition.phase) want_for(other, other.first_parts.front());
  }
}

void WeightCache::want(OpId id, std::int64_t groups, std::span<const plan::TaskletPlan> columns,
                       std::uint64_t version) {
  CutOperation& cut = cut_operation(id, groups);
  end(cut);
  cut.version = version;
  if (cut.left == 0) return;
  cut.waiting = std::ssize(columns);
  for (const plan::TaskletPlan& piece : columns) {
    devices_[piece.device].waiting.push_back({id, piece, version});
    send_waiting(piece.device);
  }
}

void WeightCache::send_waiting(DeviceId id) {
  Device& device = devices_[id];
  while (!device.waiting.empty()) {
    const Waiting& next = device.waiting.front();
    CutOperation& cut = cut_operations_.at(next.first_part);
    if (cut.version == next.version && cut.left > 0) {
      const Bytes bytes = next.columns.resident;
      if (device.taken + bytes > device.room) return;
      device.taken += bytes;
      const TaskletId columns = send_(next.first_part, next.columns);
      kept_.emplace(columns,
                    Kept{.first_part = next.first_part, .device = id, .box = next.columns.box, .bytes = bytes});
      --cut.waiting;
      cut.kept.push_back(columns);
      cut.by_device[id].push_back(columns);
    }
    device.waiting.pop_front();
  }
}

bool WeightCache::must_wait(OpId first_part) const {
  const auto found = cut_operations_.find(first_part);
  return found != cut_operations_.end() && found->second.waiting > 0;
}

std::optional<TaskletId> WeightCache::use(OpId first_part, const plan::TaskletPlan& piece) {
  const auto& by_device = cut_operations_.at(first_part).by_device;
  const auto found = by_device.find(piece.device);
  if (found == by_device.end()) return std::nullopt;
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

WeightCache::CutOperation& WeightCache::cut_operation(OpId id, std::int64_t groups) {
  const auto [found, is_new] = cut_operations_.try_emplace(id);
  if (is_new) found->second.left = groups;
  return found->second;
}

void WeightCache::sent_group(const model::RowGroup& group) {
  CutOperation& cut = cut_operation(group.first, group.count);
  if (--cut.left == 0) end(cut);
}

void WeightCache::leave() {
  for (auto& [id, device] : devices_) device.waiting.clear();
  std::vector<OpId> first_parts;
  for (const auto& [id, cut] : cut_operations_) {
    if (cut.version != 0) first_parts.push_back(id);
  }
  std::ranges::sort(first_parts);
  for (const OpId id : first_parts) {
    cut_operations_.at(id).version = 0;
    end(cut_operations_.at(id));
  }
}

// None of its columns are to be used by others than those that use them now.
void WeightCache::end(CutOperation& cut) {
  cut.waiting = 0;
  cut.by_device.clear();
  for (const TaskletId id : std::exchange(cut.kept, {})) doubt(id);
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
    CutOperation& cut = cut_operations_.at(waiting.first_part);
    if (cut.version == waiting.version && cut.waiting > 0) --cut.waiting;
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
