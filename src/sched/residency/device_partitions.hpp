// DevicePartitions: devices of their own for every type of operation of the critical path, while row groups follow each
// other through it.
//
// With groups in flight at several places of a layer, operations of different types run at the same time. On 1/g of the
// fleet an operation moves g^(-1/3) of the bytes, so each type gets devices of its own: as many as make all partitions
// of a phase take as long, those with slow downlinks where few operands travel for many results. A partition's devices
// keep their columns of the weights from group to group (plan::plan_row_groups). What is planned depends on arguments
// alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/plan/plan.hpp"
#include "plan_cache.hpp"

namespace cleave::sched {

/// Operations of one type and shape that row groups go through, layer after layer.
struct DevicePartition {
  model::Phase phase = model::Phase::forward;
  plan::Work work;                  ///< with the rows, or sequences, of all groups
  std::vector<std::int64_t> sizes;  ///< rows, or sequences, of each group
  std::vector<OpId> first_parts;    ///< first parts of its operations, in order
  // Once planned:
  std::vector<plan::TaskletPlan> columns;             ///< that devices keep
  std::map<std::int64_t, plan::OperationPlan> plans;  ///< of a group of such a size
  Seconds busy{0};     ///< for which one operation, all groups of it, takes the partition's devices
  Seconds columns_in;  ///< time until the columns of an operation are there, on links that do nothing else
};

/// What devices keep leaves the rest of their memory to tasklets.
void leave_room_for_columns(std::span<plan::DeviceState> devices);

/// Whether devices may keep columns of an operation's B from row group to row group.
[[nodiscard]] bool may_keep_columns(const model::StepGraph& graph, const model::Operation& op,
                                    const plan::PlanOptions& options);

class DevicePartitions {
 public:
  /// Finds the partitions of a graph, which must outlive its use. `urgency`: as of urgencies(); operations of the
  /// critical path have 0. True: they are others than before, and without plans.
  bool begin(const model::StepGraph& graph, DType wire, const std::vector<int>& urgency);

  /// Plans them on the devices of `whole`, if the step is predicted to be quicker then than with every operation on the
  /// whole fleet, or is to be planned so; else partitions are not in use until the next time.
  void renew(PlanCache& whole, const plan::PlanOptions& options);

  /// Until the next renew() there are none.
  void leave() { in_use_ = false; }

  /// Whether partitions are in use.
  [[nodiscard]] bool in_use() const { return in_use_; }
  [[nodiscard]] std::span<const DevicePartition> all() const { return partitions_; }
  /// Index of an operation's partition, whether in use or not; none.
  [[nodiscard]] std::optional<std::size_t> of(OpId op) const;
  /// The same while partitions are in use; else none.
  [[nodiscard]] std::optional<std::size_t> in_use_by(OpId op) const;
  /// Requires: in_use(), and `part` is of the partition.
  [[nodiscard]] const plan::OperationPlan& plan_of(std::size_t partition, const plan::Work& part) const;

 private:
  // A partition that is to get devices: bytes down over bytes up of its operations, and the share of the fleet to begin
  // with.
  struct Claim {
    DevicePartition* partition;
    double down_for_up, share;
  };
  // Devices, and where among them each partition's end.
  struct Deal {
    std::vector<plan::DeviceState> devices;
    std::vector<std::size_t> ends;
    Seconds devices_busy, interface_busy;  // with a phase's operations, of the busiest partition and of the server
    [[nodiscard]] Seconds busy() const { return std::max(devices_busy, interface_busy); }
  };
  static Deal deal(std::vector<Claim> claims, std::vector<plan::DeviceState> devices, const plan::PlanOptions& options);
  void plan_phase(model::Phase phase, PlanCache& whole, const plan::PlanOptions& options);
  void plan_partition(DevicePartition& partition, std::span<const plan::DeviceState> devices,
                      const plan::PlanOptions& options);
  [[nodiscard]] Seconds forecast(PlanCache& fleet, const plan::PlanOptions& options, bool in_partitions) const;

  const model::StepGraph* graph_ = nullptr;
  DType wire_ = DType::f32;
  std::vector<DevicePartition> partitions_;
  std::vector<std::int32_t> partition_of_;  // by operation; -1: none
  bool in_use_ = false;
};

}  // namespace cleave::sched
