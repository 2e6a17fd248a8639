// Planning: who computes which box of an operation. A pure function from (operation, devices, options) to tasklets with
// their predicted times; no MPI, files, clock, environment or hidden random numbers.
//
// The scheduler calls plan_operation() when an operation is ready and replan() when blocks were lost; `plan` prints
// what plan_operation() makes of each operation alone. Costs come from cost.hpp, the bound from bound.hpp.
#pragma once

#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/resident.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/base/units.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/plan/search_stages.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::plan {

enum class WorkKind : std::uint8_t { gemm, attention_forward, attention_backward };

/// What is to be computed: the shape of an operation and how its operands travel.
struct Work {
  WorkKind kind = WorkKind::gemm;
  GemmShape gemm;            ///< for gemm
  AttentionShape attention;  ///< for attention
  DType wire = DType::f32;   ///< f32, bf16 or f16
  /// Of the gemm: independent products of one shape that follow each other. A tasklet is the same box of each of them.
  std::int64_t instances = 1;
  bool operator==(const Work&) const = default;
};

/// The planner's view of an operation that runs on devices. Requires: runs_on_devices(operation.kind).
[[nodiscard]] Work work_of(const model::Operation& operation, DType wire);

/// How the work is cut: one of the registry's partitions (src/plan/registry.cpp), by the name that inputs have for it.
class Partition {
 public:
  static const Partition automatic;  ///< three dimensions, by what each device can do
  static const Partition equal;      ///< row strips of equal size over all devices, whatever they are
  static const Partition rows;       ///< row strips in proportion to what each device can do
  static const Partition grid;       ///< two dimensions (columns, then rows), k never cut
  static const Partition paper;      ///< the published scheme: equal areas from its cost model, k never cut

  /// Requires: a name of the registry, from storage that lasts.
  explicit constexpr Partition(std::string_view name) : name_(name) {}
  [[nodiscard]] constexpr std::string_view name() const { return name_; }
  bool operator==(const Partition&) const = default;

 private:
  std::string_view name_;
};
inline constexpr Partition Partition::automatic{"auto"};
inline constexpr Partition Partition::equal{"equal"};
inline constexpr Partition Partition::rows{"rows"};
inline constexpr Partition Partition::grid{"grid"};
inline constexpr Partition Partition::paper{"paper"};

/// Every partition with one line of help, in the order of the registry.
[[nodiscard]] std::vector<std::pair<Partition, std::string_view>> all_partitions();

/// What a plan is for.
enum class Objective : std::uint8_t {
  step,   ///< resources are taken for as short as can be: while results of one operation leave, the next one's inputs
          ///< come
  alone,  ///< the last result is there as soon as can be; resources may be taken a few per cent longer
};

/// A device as it is at the moment of planning.
using timing::DeviceState;

/// Whether devices keep their columns of the weights while row groups follow each other (plan_row_groups).
enum class KeepColumns : std::uint8_t { never, where_quicker, always };

struct PlanOptions {
  Partition partition = Partition::automatic;
  Objective objective = Objective::step;
  fleet::ServerProfile server;
  /// Panels of a tasklet, where memory asks for no more: more overlap better, and cost messages (and simulated events).
  /// An operation alone has up to four times as many.
  std::int64_t most_panels = 32;
  /// No panel of a GEMM's tasklet takes a link for much longer than this, so that what is more urgent soon goes ahead.
  Seconds longest_panel{std::numeric_limits<double>::infinity()};
  /// A tasklet's operands, and its result, stay below kMaxMessage together, for fleets that send them in one message.
  bool single_message = false;
  KeepColumns keep_columns = KeepColumns::where_quicker;  ///< as predicted
  StageSet stages = {};                                   ///< of Partition::automatic
};

using cleave::PanelOrder;  // base/resident.hpp: devices must agree about what stays in memory

/// One tasklet: a box (or a run of attention pairs) on a device, with its cost. A box without rows only brings columns
/// of B, which the device keeps for tasklets that are to come; no answer comes of it.
struct TaskletPlan {
  DeviceId device;
  GemmBox box;      ///< gemm
  PairRange pairs;  ///< attention
  PanelOrder order = PanelOrder::whole;
  std::int64_t panels = 1;
  Bytes bytes_down, bytes_up;  ///< payload and headers
  bool columns_kept = false;   ///< gemm: the device keeps these columns of B already, at this depth; only A travels
  Bytes resident;              ///< most memory that it takes on the device at once
  Seconds time;                ///< from dispatch to its last byte at the server, alone on the server's interface
};

enum class Bottleneck : std::uint8_t { none, downlink, compute, uplink, server_out, server_in, latency, memory };
[[nodiscard]] const char* name_of(Bottleneck bottleneck);

/// A legal plan: tasklets disjoint, together filling the work's box exactly, each within its device's memory.
struct OperationPlan {
  std::vector<TaskletPlan> tasklets;
  Seconds time;         ///< the operation alone, from dispatch to its last block
  Seconds busy;         ///< for which its busiest resource is taken
  Seconds lower_bound;  ///< perfect overlap, free block shapes (bound.hpp)
  Bottleneck bottleneck = Bottleneck::none;
  Bytes bytes_down, bytes_up;
  std::int64_t devices_used = 0;
};

/// Plans one operation over the devices as they are now.
/// Errors: InputError when no device can hold the smallest block of the work, with the memory needed and had.
[[nodiscard]] OperationPlan plan_operation(const Work& work, std::span<const DeviceState> devices,
                                           const PlanOptions& options);

/// An operation that is cut into row groups, planned for all of them together.
struct RowGroupsPlan {
  /// Columns of B that stay on their device from row group to row group: boxes without rows.
  std::vector<TaskletPlan> columns;
  std::map<std::int64_t, OperationPlan> groups;  ///< of a row group with so many rows
  Seconds busy;                                  ///< of the busiest resource, for all of them and the columns together
  Seconds columns_in;                            ///< until all columns are there, on links that do nothing else
};

/// What a device may keep of columns, those in use and the next ones together: half of its memory. The other half is
/// its tasklets', so that none of them ever waits for columns to be released.
[[nodiscard]] constexpr Bytes room_for_columns(Bytes memory) { return Bytes(memory.value() / 2); }

/// Plans row groups of `rows` rows each, which follow each other through `work` (the operation with all of their rows):
/// a device has the same columns of B and, in proportion, the same rows of every row group. So the blocks of one are as
/// narrow as its share of the rows, and operands that all of them need travel once. Devices keep half of
/// room_for_columns() at most, and have the memory beside that room for tasklets. Errors: as plan_operation.
[[nodiscard]] RowGroupsPlan plan_row_groups(const Work& work, std::span<const std::int64_t> rows,
                                            std::span<const DeviceState> devices, const PlanOptions& options);

/// `piece` with its columns of B travelling along. Requires: its device is among `devices`. Errors: as plan_operation.
[[nodiscard]] std::vector<TaskletPlan> with_own_columns(const Work& work, const TaskletPlan& piece,
                                                        std::span<const DeviceState> devices,
                                                        const PlanOptions& options);

/// Plans lost pieces (boxes or pair ranges of one operation) over the devices that remain, as loaded as they are.
/// Only `box` and `pairs` of `lost` are read. Errors: as plan_operation.
[[nodiscard]] std::vector<TaskletPlan> replan(const Work& work, std::span<const TaskletPlan> lost,
                                              std::span<const DeviceState> devices, const PlanOptions& options);

}  // namespace cleave::plan
