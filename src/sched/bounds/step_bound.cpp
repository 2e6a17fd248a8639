// The lower bound of a whole step; docs/simulator.md derives it.
//
// Three things no schedule can avoid: operations that depend on each other run one after another, each for at least its
// own bound (critical path); every byte and FLOP is carried by some resource (volumes); and an operation that is
// hurried moves more bytes than one that takes its time, so that the two cannot both be had at their best
// (tradeoff_bound.hpp).
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "bounds/tradeoff_bound.hpp"
#include "cleave/plan/bound.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/scheduler.hpp"
#include "residency/device_partitions.hpp"
#include "work_hash.hpp"

namespace cleave::sched {

namespace {

/// Devices are taken together in at most this many classes, each as good as its best member.
constexpr std::size_t kMostClasses = 256;

// Devices in order of downlink, neighbours together, each class with the best rates of its members.
std::vector<BestOfClass> classes_of(std::span<const plan::DeviceState> devices, const fleet::ServerProfile& server) {
  std::vector<BestOfClass> all;
  for (const plan::DeviceState& device : devices) {
    all.push_back({std::min(device.profile.downlink, server.nic_out).value(),
                   std::min(device.profile.uplink, server.nic_in).value(), device.profile.compute.value(), 1});
  }
  if (all.size() <= kMostClasses) return all;
  std::sort(all.begin(), all.end(), [](const BestOfClass& a, const BestOfClass& b) { return a.down < b.down; });
  std::vector<BestOfClass> classes;
  const std::size_t per_class = (all.size() + kMostClasses - 1) / kMostClasses;
  for (std::size_t first = 0; first < all.size(); first += per_class) {
    BestOfClass best{0, 0, 0, 0};
    for (std::size_t i = first; i < std::min(all.size(), first + per_class); ++i) {
      best.down = std::max(best.down, all[i].down);
      best.up = std::max(best.up, all[i].up);
      best.compute = std::max(best.compute, all[i].compute);
      best.count += 1;
    }
    classes.push_back(best);
  }
  return classes;
}

// Least time of a row group's part whose columns of B are on the devices already: by then every device has been sent
// rows, has multiplied them with all columns and has returned results; cuts of k would only return more of them.
double bound_beside_columns(const plan::Work& work, std::span<const BestOfClass> devices,
                            const fleet::ServerProfile& server) {
  const auto m = static_cast<double>(work.gemm.m), n = static_cast<double>(work.gemm.n),
             k = static_cast<double>(work.gemm.k), element = static_cast<double>(size_of(work.wire));
  double elements = 0;  // of the result, in a second
  for (const BestOfClass& device : devices) {
    elements +=
        device.count * std::min({device.down / (k * element) * n, device.up / element, device.compute / (2 * k)});
  }
  return std::max(
      {m * n / elements, m * k * element / server.nic_out.value(), m * n * element / server.nic_in.value()});
}

}  // namespace

Seconds step_lower_bound(const model::StepGraph& graph, std::span<const plan::DeviceState> devices,
                         const SchedulerOptions& options) {
  if (graph.operations.empty()) return Seconds(0);
  const fleet::ServerProfile& server = options.plan.server;
  double compute = 0, downlink = 0, uplink = 0;
  const std::vector<BestOfClass> classes = classes_of(devices, server);
  for (const BestOfClass& device : classes) {
    compute += device.count * device.compute;
    downlink += device.count * device.down;
    uplink += device.count * device.up;
  }
  const double down_rate = std::min(downlink, server.nic_out.value()),
               up_rate = std::min(uplink, server.nic_in.value());

  // Shapes, their bounds, and the longest path.
  std::vector<ShapeBound> shapes;
  std::map<std::int64_t, std::unordered_map<plan::Work, std::size_t, WorkHash>> shape_of;  // by groups that share B
  std::vector<Node> nodes(graph.operations.size());
  std::vector<double> until(graph.operations.size());
  double kernels = 0, down = 0, up = 0, path = 0;
  for (const model::Operation& op : graph.operations) {
    const auto i = static_cast<std::size_t>(op.id.value);
    if (!model::runs_on_devices(op.kind)) {
      nodes[i].time = plan::kernel_time(op, server).value();
      kernels += nodes[i].time;
    } else {
      const plan::Work work = plan::work_of(op, options.wire);
      const std::int64_t groups = may_keep_columns(graph, op, options.plan) ? op.rows.count : 1;
      const auto [found, is_new] = shape_of[groups].try_emplace(work, shapes.size());
      if (is_new) {
        // The bisection ends a millionth above the least feasible time.
        const double least = groups > 1 ? bound_beside_columns(work, classes, server)
                                        : plan::lower_bound(work, devices, options.plan).value() * (1 - 2e-6);
        shapes.push_back({work, least, static_cast<double>(groups)});
      }
      nodes[i] = {found->second, shapes[found->second].time};
      const plan::Volume volume = plan::volume_of(work);
      const Bytes columns =
          kept_columns_bytes(work.gemm.n, work.gemm.k, work.wire, k_blocks(work.gemm.k) > 1);  // shared by its groups
      down += static_cast<double>(volume.down.value()) -
              static_cast<double>(columns.value()) * (1 - 1 / static_cast<double>(groups));
      up += static_cast<double>(volume.up.value());
    }
    double start = 0;
    for (const OpId before : op.after) start = std::max(start, until[static_cast<std::size_t>(before.value)]);
    until[i] = start + nodes[i].time;
    path = std::max(path, until[i]);
  }
  const double bound =
      std::max({path, kernels, model::device_flops(graph).value() / compute, down / down_rate, up / up_rate});
  if (!std::isfinite(bound) || !std::isfinite(down_rate) || !std::isfinite(up_rate)) return Seconds(bound);
  return Seconds(tradeoff_bound(graph, nodes, shapes, classes, down_rate, up_rate, bound));
}

}  // namespace cleave::sched
