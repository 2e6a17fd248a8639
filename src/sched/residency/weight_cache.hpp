// WeightCache: the scheduler's book of columns of B that devices keep from row group to row group.
//
// Columns travel in a tasklet of their own (a box without rows), ahead of the operation that needs them, and are
// released when the last group's tasklets that use them are answered or given up. What a device keeps stays below the
// room that plans leave for it: columns that find none wait, first come, first served, in the order of the operations,
// and the groups that need them wait with them. So a group never is more than two operations of a partition ahead of
// the last one. A device that leaves, fails or is planned anew is forgotten; a tasklet without columns brings its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/plan/plan.hpp"
#include "residency/device_partitions.hpp"

namespace cleave::sched {

class WeightCache {
 public:
  /// Sends columns of the operation whose first part is `first_part` on their way; returns their tasklet's id.
  using Send = std::function<TaskletId(OpId first_part, const plan::TaskletPlan& columns)>;
  /// The device may give them up.
  using Release = std::function<void(TaskletId columns, DeviceId device)>;
  WeightCache(Send send, Release release) : send_(std::move(send)), release_(std::move(release)) {}

  /// A new step: everything is released.
  void clear();
  /// Bytes that a device may keep at once.
  void set_room(DeviceId device, Bytes room) { devices_[device].room = room; }

  /// Devices are to get what an operation of partitions[index], planned as this version, needs, unless they have it,
  /// and what the partition's next one does: with the step's first, the columns of every partition of its phase; with a
  /// partition's last, those that the next phase begins with.
  void want_for(const model::Operation& op, std::size_t index, std::span<const DevicePartition> partitions,
                const model::StepGraph& graph, std::uint64_t version);
  /// Devices are to get them, for groups (of `groups`) that are still to come; those of an earlier plan are released.
  void want(OpId first_part, std::int64_t groups, std::span<const plan::TaskletPlan> columns, std::uint64_t version);

  /// Some of an operation's columns find no room yet: its groups had better wait than bring their own.
  [[nodiscard]] bool must_wait(OpId first_part) const;

  /// The columns that a tasklet is to use, which it holds from now on; none where they were not sent.
  [[nodiscard]] std::optional<TaskletId> use(OpId first_part, const plan::TaskletPlan& piece);
  /// Every tasklet of one more group is on its way, whether it uses columns or not.
  void sent_group(const model::RowGroup& group);
  /// A tasklet that used them is answered or given up.
  void done(TaskletId columns);
  /// What was planned does not hold any more: nobody else is to use what is kept, or gets what waits.
  void leave();
  /// They may not have come: nobody is to use them from now on.
  void doubt(TaskletId columns);
  /// The device is gone, or not to be trusted, with everything on it.
  void forget(DeviceId device);

 private:
  struct Kept {
    OpId first_part;
    DeviceId device;
    GemmBox box;
    Bytes bytes;
    std::int64_t users = 0;
    bool over = false;  // nobody else is to use them
  };
  struct Waiting {
    OpId first_part;
    plan::TaskletPlan columns;
    std::uint64_t version = 0;
  };
  struct Device {
    Bytes room, taken{};
    std::deque<Waiting> waiting{};
  };
  struct CutOperation {
    std::uint64_t version = 0;  // of the plan that its columns are of; 0: none
    std::int64_t left = 0;      // groups to come
    std::int64_t waiting = 0;   // columns of this version that find no room yet
    std::vector<TaskletId> kept;
    std::unordered_map<DeviceId, std::vector<TaskletId>> by_device;
  };
  void send_waiting(DeviceId id);
  [[nodiscard]] CutOperation& cut_operation(OpId id, std::int64_t groups);
  void end(CutOperation& cut);
  void release_if_over(TaskletId id);

  Send send_;
  Release release_;
  std::unordered_map<TaskletId, Kept> kept_;
  std::unordered_map<DeviceId, Device> devices_;
  NodePool nodes_;
  std::pmr::unordered_map<OpId, CutOperation> cut_operations_{&nodes_};
};

}  // namespace cleave::sched
