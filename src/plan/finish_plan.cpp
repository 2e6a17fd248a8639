// Costs are estimated in the order of the pieces, each over its device as loaded by those before it.
#include "finish_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "fit.hpp"
#include "partition.hpp"
#include "predict.hpp"

namespace cleave::plan {

namespace {

// What one device does in a plan.
struct Taken {
  Seconds down, compute, up;
  std::int64_t tasklets = 0;
};

std::unordered_map<DeviceId, DeviceState> by_id(std::span<const DeviceState> devices) {
  std::unordered_map<DeviceId, DeviceState> map;
  for (const DeviceState& device : devices) map.emplace(device.profile.id, device);
  return map;
}

}  // namespace

void require_whole(const Work& work, std::span<const TaskletPlan> pieces, Partition partition) {
  const auto elements = [&](const TaskletPlan& piece) {
    return work.kind == WorkKind::gemm ? piece.box.m() * piece.box.n() * piece.box.k() : piece.pairs.count();
  };
  std::int64_t filled = 0;
  for (const TaskletPlan& piece : pieces) filled += elements(piece);
  const std::int64_t whole = elements(whole_of(work));
  CLEAVE_ASSERT(filled == whole, "pieces of partition {} have {} elements, the {} has {}", partition.name(), filled,
                work.kind == WorkKind::gemm ? "box" : "attention", whole);
}

std::vector<TaskletPlan> finish_pieces(const Work& work, std::span<const TaskletPlan> pieces,
                                       std::span<const DeviceState> devices, const PlanOptions& options) {
  std::unordered_map<DeviceId, DeviceState> state = by_id(devices);
  std::vector<TaskletPlan> tasklets;
  for (const TaskletPlan& piece : pieces) {
    DeviceState& device = state.at(piece.device);
    for (TaskletPlan part : fit_piece(work, piece, device, options)) {
      estimate_cost(work, part, device, options);
      device.down_busy += part.bytes_down / device.profile.downlink;
      device.compute_busy += volume_of(work, part).flops / device.profile.compute;
      device.up_busy += part.bytes_up / device.profile.uplink;
      tasklets.push_back(part);
    }
  }
  return tasklets;
}

void total_up(const Work& work, OperationPlan& plan, std::span<const DeviceState> devices, const PlanOptions& options) {
  const std::unordered_map<DeviceId, DeviceState> state = by_id(devices);
  std::unordered_map<DeviceId, Taken> taken;
  plan.busy = Seconds(0);
  plan.bytes_down = plan.bytes_up = Bytes(0);
  plan.bottleneck = Bottleneck::none;
  const auto consider = [&plan](Seconds time, Bottleneck bottleneck) {
    if (time > plan.busy) {
      plan.busy = time;
      plan.bottleneck = bottleneck;
    }
  };
  for (const TaskletPlan& tasklet : plan.tasklets) {
    const fleet::DeviceProfile& device = state.at(tasklet.device).profile;
    plan.bytes_down += tasklet.bytes_down;
    plan.bytes_up += tasklet.bytes_up;
    Taken& use = taken[tasklet.device];
    use.down += tasklet.bytes_down / device.downlink;
    use.compute += volume_of(work, tasklet).flops / device.compute;
    use.up += tasklet.bytes_up / device.uplink;
    ++use.tasklets;
    consider(use.down, Bottleneck::downlink);
    consider(use.compute, Bottleneck::compute);
    consider(use.up, Bottleneck::uplink);
  }
  consider(plan.bytes_down / options.server.nic_out, Bottleneck::server_out);
  consider(plan.bytes_up / options.server.nic_in, Bottleneck::server_in);
  plan.time = predict_time(work, plan.tasklets, devices, options.server);
  plan.devices_used = std::ssize(taken);
}

}  // namespace cleave::plan
