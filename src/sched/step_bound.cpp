// The lower bound of a whole step.
//
// Whatever the schedule: (1) every FLOP is done by some device, (2) every block of a result, or a finished part of it,
// goes up at least once, (3) every operation takes at least its own bound. The step takes at least the largest of
// these.
#include <algorithm>
#include <unordered_map>

#include "cleave/plan/bound.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/scheduler.hpp"

namespace cleave::sched {

Seconds step_lower_bound(const model::StepGraph& graph, std::span<const plan::DeviceState> devices,
                         const SchedulerOptions& options) {
  FlopsPerSecond compute{0};
  BytesPerSecond uplink{0};
  for (const plan::DeviceState& device : devices) {
    compute += device.profile.compute;
    uplink += device.profile.uplink;
  }
  uplink = std::min(uplink, options.plan.server.nic_in);

  Bytes up{0};
  Seconds kernels{0}, longest{0};
  std::vector<plan::Work> seen;
  for (const model::Operation& op : graph.operations) {
    if (!model::runs_on_devices(op.kind)) {
      kernels += std::max(model::flops_of(op) / options.plan.server.compute,
                          model::traffic_of(op) / options.plan.server.memory_bandwidth);
      continue;
    }
    const plan::Work work = plan::work_of(op, options.wire);
    plan::TaskletPlan whole;
    whole.box = {0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
    whole.pairs = {0, work.attention.pairs()};
    up += plan::volume_of(work, whole).up;
    if (std::find(seen.begin(), seen.end(), work) == seen.end()) {
      seen.push_back(work);
      longest = std::max(longest, plan::lower_bound(work, devices, options.plan));
    }
  }
  return std::max({model::device_flops(graph) / compute, up / uplink, kernels, longest});
}

}  // namespace cleave::sched
