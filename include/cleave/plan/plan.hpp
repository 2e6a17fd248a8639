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
  /// gemm: number of independent products of this shape, one after another. A tasklet is the same box of each of them.
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
  static const Partition paper;      ///< the published scheme: areas by its cost model, k never cut

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
  step,   ///< least busy time: while the results of one operation leave, the inputs of the next one come
  alone,  ///< least time of the operation alone; busy time may be a few per cent longer
};

/// A device as it is at the moment of planning.
using timing::DeviceState;

/// Whether devices keep their columns of the weights while row groups follow each other (plan_row_groups).
enum class KeepColumns : std::uint8_t { never, where_quicker, always };

struct PlanOptions {
  Partition partition = Partition::automatic;
  Objective objective = Objective::step;
  fleet::ServerProfile server;
  /// Most panels of a tasklet, unless memory requires more. More panels overlap better but cost messages (and simulated
  /// events). Objective::alone uses up to four times as many.
  std::int64_t most_panels = 32;
  /// A panel of a GEMM's tasklet takes a link for about this long at most, so that more urgent traffic need not wait
  /// long.
  Seconds longest_panel{std::numeric_limits<double>::infinity()};
  /// The fleet sends a tasklet's operands in one message, and its result in one; each stays below kMaxMessage.
  bool single_message = false;
  KeepColumns keep_columns = KeepColumns::where_quicker;  ///< where_quicker: as predicted
  SearchStageSet search_stages = {};                      ///< search stages of Partition::automatic
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
  Seconds busy;         ///< busy time: for how long its busiest resource is taken
  Seconds lower_bound;  ///< perfect overlap, free block shapes (bound.hpp)
  Bottleneck bottleneck = Bottleneck::none;
  Bytes bytes_down, bytes_up;
  std::int64_t devices_used = 0;
};

/// Plans one operation over the devices as they are now. Deterministic.
/// Errors: InputError where no device can hold the smallest block of the work; it states the memory needed and present.
[[nodiscard]] OperationPlan plan_operation(const Work& work, std::span<const DeviceState> devices,
                                           const PlanOptions& options);

/// An operation that is cut into row groups, planned for all of them together.
struct RowGroupsPlan {
  /// Columns of B that stay on their device from row group to row group: boxes without rows.
  std::vector<TaskletPlan> columns;
  std::map<std::int64_t, OperationPlan> groups;  ///< by the number of rows of a row group
  Seconds busy;                                  ///< busy time of all row groups and the columns together
  Seconds columns_in;                            ///< time for the columns to arrive, on links that do nothing else
};

/// Memory of a device for kept columns, those in use and the next ones together: half of its memory. The other half is
/// for its tasklets, so that no tasklet ever waits for columns to be released.
[[nodiscard]] constexpr Bytes room_for_columns(Bytes memory) { return Bytes(memory.value() / 2); }

/// Plans an operation that is cut into row groups, which follow each other; rows[i] is the number of rows of group i,
/// and `work` has the rows of all groups. A device gets the same columns of B for every row group, and the same share
/// of its rows. So these columns travel once. A device keeps columns of at most half of room_for_columns(); tasklets
/// have the memory beside that room. Errors: as plan_operation().
[[nodiscard]] RowGroupsPlan plan_row_groups(const Work& work, std::span<const std::int64_t> rows,
                                            std::span<const DeviceState> devices, const PlanOptions& options);

/// Plans `piece`, which was to use kept columns, on its device with columns of B that travel. Requires: it is among
/// `devices`. Errors: as plan_operation().
[[nodiscard]] std::vector<TaskletPlan> with_own_columns(const Work& work, const TaskletPlan& piece,
                                                        std::span<const DeviceState> devices,
                                                        const PlanOptions& options);

/// Plans lost boxes, or runs of pairs, of one operation over the devices that remain, as loaded as they are. Reads only
/// `box` and `pairs` of `lost`. Errors: as plan_operation().
[[nodiscard]] std::vector<TaskletPlan> replan(const Work& work, std::span<const TaskletPlan> lost,
                                              std::span<const DeviceState> devices, const PlanOptions& options);

}  // namespace cleave::plan
