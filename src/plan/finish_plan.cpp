// Costs are estimated in the order of the pieces, each over its device as loaded by those before it.
#include "finish_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

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
  // How often an element is covered is a function that changes at corners of boxes only. It is 1 everywhere if its
  // corners, each with its sign, are those of the whole box.
  using Corner = std::array<std::int64_t, 4>;  // row, column, depth, sign
  std::vector<Corner> corners;
  corners.reserve(8 * (pieces.size() + 1));
  const auto add = [&](const TaskletPlan& piece, std::int64_t sign) {
    const GemmBox box =
        work.kind == WorkKind::gemm
            ? piece.box
            : GemmBox{.m0 = piece.pairs.pair0, .m1 = piece.pairs.pair1, .n0 = 0, .n1 = 1, .k0 = 0, .k1 = 1};
    if (box.m() == 0 || box.n() == 0 || box.k() == 0) return;
    for (const auto& [m, m_sign] : {std::pair(box.m0, 1), std::pair(box.m1, -1)}) {
      for (const auto& [n, n_sign] : {std::pair(box.n0, 1), std::pair(box.n1, -1)}) {
        for (const auto& [k, k_sign] : {std::pair(box.k0, 1), std::pair(box.k1, -1)})
          corners.push_back({m, n, k, sign * m_sign * n_sign * k_sign});
      }
    }
  };
  for (const TaskletPlan& piece : pieces) add(piece, 1);
  add(whole_of(work), -1);
  std::ranges::sort(corners);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < corners.size(); ++i) {
    const auto [m, n, k, sign] = corners[i];
    sum += sign;
    const bool last =
        i + 1 == corners.size() || !std::equal(corners[i].begin(), corners[i].begin() + 3, corners[i + 1].begin());
    CLEAVE_ASSERT(!last || sum == 0,
                  "pieces of partition {} leave a gap or overlap at row {}, column {}, depth {} of the {}",
                  partition.name(), m, n, k, work.kind == WorkKind::gemm ? "box" : "attention");
    if (last) sum = 0;
  }
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
