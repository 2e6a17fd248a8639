// Row groups planned together: the plan of all rows, with every row boundary moved in proportion.
//
// Tiles meet at common row boundaries. A boundary r of M rows becomes r * m / M of a group's m rows, rounded down, for
// the tiles on both sides of it: so a group's tiles are disjoint and fill it, as those of the whole are and do.
#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/plan/plan.hpp"
#include "finish_plan.hpp"
#include "fit.hpp"
#include "order.hpp"

namespace cleave::plan {

namespace {

__extension__ using WideRows = __int128;  // a product of two counts

std::int64_t in_proportion(std::int64_t row, std::int64_t rows, std::int64_t all) {
  return static_cast<std::int64_t>(WideRows(row) * rows / all);
}

// What one device does for all groups.
struct TakenByAll {
  Seconds down, compute, up;
};

}  // namespace

RowGroupsPlan plan_row_groups(const Work& work, std::span<const std::int64_t> rows,
                              std::span<const DeviceState> devices, const PlanOptions& options) {
  CLEAVE_ASSERT(work.kind == WorkKind::gemm && work.instances == 1, "row groups of {} instances", work.instances);
  std::vector<DeviceState> roomy(devices.begin(), devices.end());
  std::unordered_map<DeviceId, Bytes> room;
  std::unordered_map<DeviceId, const DeviceState*> states;
  for (DeviceState& device : roomy) {
    const Bytes for_columns = room_for_columns(device.profile.memory);
    room[device.profile.id] = Bytes(for_columns.value() / 2);
    device.profile.memory -= for_columns;
    states[device.profile.id] = &device;
  }
  const OperationPlan together = plan_operation(work, roomy, options);

  RowGroupsPlan plan;
  std::vector<TaskletPlan> pieces = together.tasklets;
  for (TaskletPlan& piece : pieces) {
    TaskletPlan columns = piece;
    columns.box.m0 = columns.box.m1 = 0;
    columns.order = PanelOrder::row_resident;
    TaskletPlan one_row = piece;
    one_row.box.m1 = piece.box.m0 + 1;
    one_row.columns_kept = true;
    one_row.panels = 1;
    const Bytes bytes = resident_bytes(work, columns);
    Bytes& left = room.at(piece.device);
    if (bytes > left || resident_bytes(work, one_row) > states.at(piece.device)->profile.memory ||
        !choose_order(work, columns, *states.at(piece.device), options))
      continue;
    left -= bytes;
    estimate_cost(work, columns, *states.at(piece.device), options);
    plan.columns.push_back(columns);
    piece.columns_kept = true;
  }

  std::unordered_map<DeviceId, TakenByAll> taken;
  const auto take = [&](const Work& part, const TaskletPlan& tasklet) {
    const fleet::DeviceProfile& profile = states.at(tasklet.device)->profile;
    TakenByAll& use = taken[tasklet.device];
    use.down += tasklet.bytes_down / profile.downlink;
    use.compute += volume_of(part, tasklet).flops / profile.compute;
    use.up += tasklet.bytes_up / profile.uplink;
    plan.busy = std::max({plan.busy, use.down, use.compute, use.up});
  };
  for (const TaskletPlan& columns : plan.columns) take(work, columns);
  plan.columns_in = plan.busy;  // so far nothing else
  for (const std::int64_t group : rows) {
    Work part = work;
    part.gemm.m = group;
    const auto [found, is_new] = plan.groups.try_emplace(group);
    if (is_new) {
      std::vector<TaskletPlan> parts;
      for (const TaskletPlan& piece : pieces) {
        TaskletPlan own = piece;
        own.box.m0 = in_proportion(piece.box.m0, group, work.gemm.m);
        own.box.m1 = in_proportion(piece.box.m1, group, work.gemm.m);
        if (own.box.m() > 0) parts.push_back(own);
      }
      found->second.tasklets = finish_pieces(part, parts, roomy, options);
      total_up(part, found->second, roomy, options);
      found->second.lower_bound =
          together.lower_bound * (static_cast<double>(group) / static_cast<double>(work.gemm.m));
    }
    for (const TaskletPlan& tasklet : found->second.tasklets) take(part, tasklet);
  }
  return plan;
}

std::vector<TaskletPlan> with_own_columns(const Work& work, const TaskletPlan& piece,
                                          std::span<const DeviceState> devices, const PlanOptions& options) {
  TaskletPlan own = piece;
  own.columns_kept = false;
  const auto device =
      std::ranges::find(devices, piece.device, [](const DeviceState& state) { return state.profile.id; });
  return finish_pieces(work, std::span(&own, 1), std::span(&*device, 1), options);
}

}  // namespace cleave::plan
