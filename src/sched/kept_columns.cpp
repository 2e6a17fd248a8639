// Counting users; sending what finds room.
#include "kept_columns.hpp"

#include <algorithm>
#include <utility>

namespace cleave::sched {

void KeptColumns::clear() {
  families_.clear();
  for (auto& [id, device] : devices_) device = {.room = device.room};
  for (const auto& [id, kept] : std::exchange(kept_, {})) release_(id, kept.device);
}

bool KeptColumns::wanted(OpId family, std::uint64_t version) const {
  const auto found = families_.find(family);
  return found != families_.end() && found->second.version == version;
}

void KeptColumns::want(OpId id, std::int64_t groups, std::span<const plan::TaskletPlan> columns,
                       std::uint64_t version) {
  Family& family = families_[id];
  end(family);
  if (!std::exchange(family.begun, true)) family.left = groups;
  family.version = version;
  if (family.left == 0) return;
  for (const plan::TaskletPlan& piece : columns) {
    devices_[piece.device].waiting.push_back({id, piece, version});
    send_waiting(piece.device);
  }
}

void KeptColumns::send_waiting(DeviceId id) {
  Device& device = devices_[id];
  while (!device.waiting.empty()) {
    const Waiting& next = device.waiting.front();
    Family& family = families_[next.family];
    if (family.version == next.version && family.left > 0) {
      const Bytes bytes = next.columns.resident;
      if (device.taken + bytes > device.room) return;
      device.taken += bytes;
      const TaskletId columns = send_(next.family, next.columns);
      kept_.emplace(columns, Kept{.family = next.family, .device = id, .box = next.columns.box, .bytes = bytes});
      family.kept.push_back(columns);
      family.by_device[id].push_back(columns);
    }
    device.waiting.pop_front();
  }
}

std::optional<TaskletId> KeptColumns::use(OpId family, const plan::TaskletPlan& piece) {
  const auto found = families_[family].by_device.find(piece.device);
  if (found == families_[family].by_device.end()) return std::nullopt;
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

void KeptColumns::sent_group(OpId id) {
  Family& family = families_[id];
  if (--family.left == 0) end(family);
}

// None of its columns are to be used by others than those that use them now.
void KeptColumns::end(Family& family) {
  family.by_device.clear();
  for (const TaskletId id : std::exchange(family.kept, {})) doubt(id);
}

void KeptColumns::doubt(TaskletId columns) {
  const auto found = kept_.find(columns);
  if (found == kept_.end()) return;
  found->second.over = true;
  release_if_over(columns);
}

void KeptColumns::done(TaskletId columns) {
  const auto found = kept_.find(columns);
  if (found == kept_.end()) return;
  --found->second.users;
  release_if_over(columns);
}

void KeptColumns::release_if_over(TaskletId id) {
  const auto found = kept_.find(id);
  if (!found->second.over || found->second.users > 0) return;
  const Kept kept = found->second;
  kept_.erase(found);
  devices_[kept.device].taken -= kept.bytes;
  release_(id, kept.device);
  send_waiting(kept.device);
}

void KeptColumns::forget(DeviceId device) {
  Device& forgotten = devices_[device];
  forgotten.waiting.clear();
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
