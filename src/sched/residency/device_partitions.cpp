// Dealing devices to partitions, and whether partitions are worth having.
#include "residency/device_partitions.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <queue>
#include <string>
#include <tuple>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "share.hpp"

namespace cleave::sched {

namespace {

/// Rounds of dealing devices to partitions; busy times this close to each other are equal.
constexpr int kDeals = 10;
constexpr double kEvenPartitions = 0.03;
/// A predicted gain of less is not worth it.
constexpr double kWorthPartitions = 0.97;
/// Work that nothing urgent waits for fills the gaps of the critical path; this share of its time finds none, as found
/// on the fleets of "What each idea brings" (docs/measurements/fleet_sizes.md).
constexpr double kInTheWay = 0.3;

std::int64_t size_of_part(const plan::Work& work) {
  return work.kind == plan::WorkKind::gemm ? work.gemm.m : work.attention.batch;
}
std::int64_t& size_of_part(plan::Work& work) {
  return work.kind == plan::WorkKind::gemm ? work.gemm.m : work.attention.batch;
}

// An operation of the critical path whose groups have an operand, or nothing, in common: not one that multiplies
// activations.
bool belongs_in_partition(const model::StepGraph& graph, const model::Operation& op) {
  if (!model::runs_on_devices(op.kind) || op.rows.count < 2 || op.instances > 1) return false;
  return op.kind != model::OpKind::gemm || graph.tensor(op.in[1].tensor).role == model::TensorRole::parameter;
}

Seconds times(Seconds time, std::size_t count) { return time * static_cast<double>(count); }

// The `count` most able of some devices, in their order.
std::vector<plan::DeviceState> most_able(std::span<const plan::DeviceState> devices, std::size_t count,
                                         const fleet::ServerProfile& server) {
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>{}, [&](std::size_t i) { return power_of(devices[i], server); });
  order.resize(count);
  std::ranges::sort(order);
  std::vector<plan::DeviceState> chosen;
  for (const std::size_t i : order) chosen.push_back(devices[i]);
  return chosen;
}

}  // namespace

bool may_keep_columns(const model::StepGraph& graph, const model::Operation& op, const plan::PlanOptions& options) {
  return options.keep_columns != plan::KeepColumns::never && options.partition == plan::Partition::automatic &&
         op.kind == model::OpKind::gemm && belongs_in_partition(graph, op);
}

void leave_room_for_columns(std::span<plan::DeviceState> devices) {
  for (plan::DeviceState& device : devices) device.profile.memory -= plan::room_for_columns(device.profile.memory);
}

bool DevicePartitions::begin(const model::StepGraph& graph, DType wire, const std::vector<int>& urgency) {
  graph_ = &graph;
  wire_ = wire;
  std::vector<DevicePartition> partitions;
  partition_of_.assign(graph.operations.size(), -1);
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::size_t> by_type;
  for (const model::Operation& op : graph.operations) {
    const auto i = static_cast<std::size_t>(op.id.value);
    if (urgency[i] > 0 || !belongs_in_partition(graph, op)) continue;
    const plan::Work work = plan::work_of(op, wire);
    const auto [found, is_new] = by_type.try_emplace({op.type, work.gemm.n, work.gemm.k}, partitions.size());
    if (is_new) {
      DevicePartition& partition = partitions.emplace_back();
      partition.phase = op.phase;
      partition.work = work;
      size_of_part(partition.work) = 0;
    }
    DevicePartition& partition = partitions[found->second];
    if (op.rows.index == 0) partition.first_parts.push_back(op.rows.first);
    if (op.rows.first == partition.first_parts.front()) {
      partition.sizes.push_back(size_of_part(work));
      size_of_part(partition.work) += size_of_part(work);
    }
    partition_of_[i] = static_cast<std::int32_t>(found->second);
  }
  const auto same = [](const DevicePartition& a, const DevicePartition& b) {
    return a.phase == b.phase && a.work == b.work && a.sizes == b.sizes && a.first_parts == b.first_parts;
  };
  if (std::ranges::equal(partitions, partitions_, same)) return false;
  partitions_ = std::move(partitions);
  in_use_ = false;
  return true;
}

std::optional<std::size_t> DevicePartitions::in_use_by(OpId op) const { return in_use_ ? of(op) : std::nullopt; }

std::optional<std::size_t> DevicePartitions::of(OpId op) const {
  const std::int32_t partition = partition_of_[static_cast<std::size_t>(op.value)];
  return partition < 0 ? std::nullopt : std::optional(static_cast<std::size_t>(partition));
}

const plan::OperationPlan& DevicePartitions::plan_of(std::size_t partition, const plan::Work& part) const {
  return partitions_[partition].plans.at(size_of_part(part));
}

void DevicePartitions::plan_partition(DevicePartition& partition, std::span<const plan::DeviceState> devices,
                                      const plan::PlanOptions& options) {
  partition.columns.clear();
  partition.plans.clear();
  partition.columns_in = Seconds(0);
  if (partition.work.kind == plan::WorkKind::gemm) {
    plan::RowGroupsPlan plan = plan::plan_row_groups(partition.work, partition.sizes, devices, options);
    partition.columns = std::move(plan.columns);
    partition.plans = std::move(plan.groups);
    partition.busy = plan.busy;
    partition.columns_in = plan.columns_in;
    return;
  }
  partition.busy = Seconds(0);
  for (const std::int64_t size : partition.sizes) {
    plan::Work part = partition.work;
    size_of_part(part) = size;
    const auto [found, is_new] = partition.plans.try_emplace(size);
    if (is_new) found->second = plan::plan_operation(part, devices, options);
    partition.busy += found->second.busy;
  }
}

// Neighbours in the order of what their links are good for share a partition; every partition's share of the fleet
// follows from how long it took with the last one.
DevicePartitions::Deal DevicePartitions::deal(std::vector<Claim> claims, std::vector<plan::DeviceState> devices,
                                              const plan::PlanOptions& options) {
  if (devices.size() < claims.size()) throw InputError("too few devices for partitions");
  std::ranges::stable_sort(devices, {}, [&](const plan::DeviceState& device) {
    const double down = std::min(device.profile.downlink, options.server.nic_out).value();
    const double up = std::min(device.profile.uplink, options.server.nic_in).value();
    return std::isfinite(down / up) ? down / up : 1.0;
  });
  double fleet = 0;
  for (const plan::DeviceState& device : devices) fleet += power_of(device, options.server);

  Deal best;
  for (int round = 0; round < kDeals; ++round) {
    const double shares = std::accumulate(claims.begin(), claims.end(), 0.0,
                                          [](double sum, const Claim& claim) { return sum + claim.share; });
    Deal deal;
    double reached = 0, wanted = 0;
    std::size_t next = 0;
    for (std::size_t p = 0; p < claims.size(); ++p) {
      wanted += claims[p].share / shares * fleet;
      const std::size_t most = devices.size() - (claims.size() - p - 1), first = next;
      while (next < most && (next == first || p + 1 == claims.size() ||
                             reached + power_of(devices[next], options.server) / 2 < wanted)) {
        reached += power_of(devices[next++], options.server);
      }
      deal.ends.push_back(next);
    }
    Seconds longest{0}, shortest{std::numeric_limits<double>::infinity()};
    std::vector<Seconds> taken;
    Seconds out{0}, in{0};
    for (std::size_t p = 0; p < claims.size(); ++p) {
      const std::size_t first = p == 0 ? 0 : deal.ends[p - 1], first_parts = claims[p].partition->first_parts.size();
      const plan::OperationPlan plan = plan::plan_operation(
          claims[p].partition->work, std::span(devices).subspan(first, deal.ends[p] - first), options);
      taken.push_back(times(plan.busy, first_parts));
      out += times(plan.bytes_down / options.server.nic_out, first_parts);
      in += times(plan.bytes_up / options.server.nic_in, first_parts);
      longest = std::max(longest, taken.back());
      shortest = std::min(shortest, taken.back());
    }
    deal.devices_busy = longest;
    deal.interface_busy = std::max(out, in);
    if (best.ends.empty() || deal.busy() < best.busy()) best = std::move(deal);
    if (longest - shortest < longest * kEvenPartitions) break;
    for (std::size_t p = 0; p < claims.size(); ++p) claims[p].share *= std::pow(taken[p] / longest, 0.8);
  }
  best.devices = std::move(devices);
  return best;
}

// Where the server's interface would be the last to be done, fewer devices, with larger blocks, move fewer bytes.
void DevicePartitions::plan_phase(model::Phase phase, PlanCache& whole, const plan::PlanOptions& options) {
  std::vector<Claim> claims;
  for (DevicePartition& partition : partitions_) {
    if (partition.phase != phase) continue;
    const plan::OperationPlan& plan = whole.plan_for(partition.work);
    claims.push_back({&partition,
                      static_cast<double>(plan.bytes_down.value()) / static_cast<double>(plan.bytes_up.value()),
                      times(plan.busy, partition.first_parts.size()).value()});
  }
  if (claims.empty()) return;
  std::ranges::stable_sort(claims, {}, &Claim::down_for_up);
  const std::span<const plan::DeviceState> devices = whole.devices();
  Deal best = deal(claims, {devices.begin(), devices.end()}, options);
  for (std::size_t count = devices.size(); best.interface_busy > best.devices_busy;) {
    count = count * 3 / 4;
    if (count < claims.size()) break;
    Deal fewer = deal(claims, most_able(devices, count, options.server), options);
    if (fewer.busy() >= best.busy()) break;
    best = std::move(fewer);
  }
  for (std::size_t p = 0; p < claims.size(); ++p) {
    const std::size_t first = p == 0 ? 0 : best.ends[p - 1];
    plan_partition(*claims[p].partition, std::span(best.devices).subspan(first, best.ends[p] - first), options);
  }
}

// The graph gone through in the order in which operations become ready: each takes its devices, which are its
// partition's or all of them, after those that came before; the first of a partition waits for its columns. Then what
// is not of the critical path.
Seconds DevicePartitions::forecast(PlanCache& fleet, const plan::PlanOptions& options, bool in_partitions) const {
  const auto share = [](const DevicePartition& partition, const plan::Work& part) {
    return static_cast<double>(size_of_part(part)) / static_cast<double>(size_of_part(partition.work));
  };
  const std::size_t count = graph_->operations.size();
  std::vector<std::vector<OpId>> releases(count);
  std::vector<std::size_t> waiting_for(count);
  std::vector<Seconds> ready(count), free(in_partitions ? partitions_.size() : 1);
  using Next = std::pair<Seconds, OpId>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  for (const model::Operation& op : graph_->operations) {
    for (const OpId before : op.after) releases[static_cast<std::size_t>(before.value)].push_back(op.id);
    waiting_for[static_cast<std::size_t>(op.id.value)] = op.after.size();
    if (op.after.empty()) queue.emplace(Seconds(0), op.id);
  }
  Seconds end{0}, server{0}, others{0};
  while (!queue.empty()) {
    auto [start, id] = queue.top();
    queue.pop();
    const model::Operation& op = graph_->operation(id);
    Seconds done = start;
    const auto index = of(id);
    if (!model::runs_on_devices(op.kind)) {
      done = server = std::max(start, server) + plan::kernel_time(op, options.server);
    } else if (!index) {
      others += fleet.plan_for(plan::work_of(op, wire_)).busy;
    } else {
      const DevicePartition& partition = partitions_[*index];
      const plan::Work part = plan::work_of(op, wire_);
      const plan::OperationPlan& plan = in_partitions ? plan_of(*index, part) : fleet.plan_for(part);
      const Seconds busy = in_partitions ? partition.busy * share(partition, part) : plan.busy;
      if (in_partitions && partition.phase == model::Phase::forward && op.id == partition.first_parts.front()) {
        start = std::max(start, partition.columns_in);
      }
      Seconds& next = free[in_partitions ? *index : 0];
      start = std::max(start, next);
      next = start + busy;
      done = start + std::max(plan.time, busy);
    }
    end = std::max(end, done);
    for (const OpId after : releases[static_cast<std::size_t>(id.value)]) {
      const auto a = static_cast<std::size_t>(after.value);
      ready[a] = std::max(ready[a], done);
      if (--waiting_for[a] == 0) queue.emplace(ready[a], after);
    }
  }
  return end + others * kInTheWay;
}

void DevicePartitions::renew(PlanCache& whole, const plan::PlanOptions& options) {
  in_use_ = false;
  if (options.keep_columns == plan::KeepColumns::never || partitions_.empty() || whole.no_devices() ||
      options.partition != plan::Partition::automatic)
    return;
  try {
    plan_phase(model::Phase::forward, whole, options);
    plan_phase(model::Phase::input_gradient, whole, options);
    if (options.keep_columns == plan::KeepColumns::where_quicker) {
      std::vector<plan::DeviceState> devices(whole.devices().begin(), whole.devices().end());
      leave_room_for_columns(devices);
      PlanCache beside_columns(options);
      beside_columns.renew(std::move(devices));
      if (forecast(beside_columns, options, true) >= forecast(whole, options, false) * kWorthPartitions) return;
    }
    in_use_ = true;
  } catch (const InputError&) {}  // too few devices, or in some partition nobody can hold the smallest block
}

}  // namespace cleave::sched
