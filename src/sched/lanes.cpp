// Dealing devices to lanes, and whether lanes are worth having.
#include "lanes.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "cleave/base/error.hpp"
#include "share.hpp"

namespace cleave::sched {

namespace {

/// Rounds of dealing devices to lanes; busy times this close to each other are equal.
constexpr int kDeals = 10;
constexpr double kEvenLanes = 0.03;
/// A predicted gain of less is not worth it.
constexpr double kWorthLanes = 0.97;

std::int64_t size_of_part(const plan::Work& work) {
  return work.kind == plan::WorkKind::gemm ? work.gemm.m : work.attention.batch;
}
std::int64_t& size_of_part(plan::Work& work) {
  return work.kind == plan::WorkKind::gemm ? work.gemm.m : work.attention.batch;
}

// An operation of the chain whose groups have an operand, or nothing, in common: not one that multiplies activations.
bool belongs_in_lane(const model::StepGraph& graph, const model::Operation& op) {
  if (!model::runs_on_devices(op.kind) || op.rows.count < 2 || op.instances > 1) return false;
  return op.kind != model::OpKind::gemm || graph.tensor(op.in[1].tensor).role == model::TensorRole::parameter;
}

Seconds times(Seconds time, std::size_t count) { return time * static_cast<double>(count); }

}  // namespace

bool may_keep_columns(const model::StepGraph& graph, const model::Operation& op, const plan::PlanOptions& options) {
  return options.keep_columns != plan::KeepColumns::never && options.partition == plan::Partition::automatic &&
         op.kind == model::OpKind::gemm && belongs_in_lane(graph, op);
}

bool Lanes::begin(const model::StepGraph& graph, DType wire, const std::vector<bool>& urgent) {
  if (graph_ == &graph) return false;
  const bool had = !lanes_.empty();
  graph_ = &graph;
  wire_ = wire;
  lanes_.clear();
  in_use_ = false;
  lane_of_.assign(graph.operations.size(), -1);
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::size_t> by_type;
  for (const model::Operation& op : graph.operations) {
    const auto i = static_cast<std::size_t>(op.id.value);
    if (!urgent[i] || !belongs_in_lane(graph, op)) continue;
    const plan::Work work = plan::work_of(op, wire);
    const auto [found, is_new] = by_type.try_emplace({op.type, work.gemm.n, work.gemm.k}, lanes_.size());
    if (is_new) {
      Lane& lane = lanes_.emplace_back();
      lane.phase = op.phase;
      lane.work = work;
      size_of_part(lane.work) = 0;
    }
    Lane& lane = lanes_[found->second];
    if (op.rows.index == 0) lane.families.push_back(op.rows.first);
    if (op.rows.first == lane.families.front()) {
      lane.sizes.push_back(size_of_part(work));
      size_of_part(lane.work) += size_of_part(work);
    }
    lane_of_[i] = static_cast<std::int32_t>(found->second);
  }
  return had || !lanes_.empty();
}

std::optional<std::size_t> Lanes::of(OpId op) const {
  const std::int32_t lane = lane_of_[static_cast<std::size_t>(op.value)];
  return lane < 0 ? std::nullopt : std::optional(static_cast<std::size_t>(lane));
}

const plan::OperationPlan& Lanes::plan_of(std::size_t lane, const plan::Work& part) const {
  return lanes_[lane].plans.at(size_of_part(part));
}

void Lanes::plan_lane(Lane& lane, std::span<const plan::DeviceState> devices, const plan::PlanOptions& options) {
  lane.columns.clear();
  lane.plans.clear();
  if (lane.work.kind == plan::WorkKind::gemm) {
    plan::RowGroupsPlan plan = plan::plan_row_groups(lane.work, lane.sizes, devices, options);
    lane.columns = std::move(plan.columns);
    lane.plans = std::move(plan.groups);
    lane.busy = plan.busy;
    return;
  }
  lane.busy = Seconds(0);
  for (const std::int64_t size : lane.sizes) {
    plan::Work part = lane.work;
    size_of_part(part) = size;
    const auto [found, is_new] = lane.plans.try_emplace(size);
    if (is_new) found->second = plan::plan_operation(part, devices, options);
    lane.busy += found->second.busy;
  }
}

// Neighbours in the order of what their links are good for share a lane; every lane's share of the fleet follows from
// how long it took with the last one. Returns the time of the busiest lane.
Seconds Lanes::plan_phase(model::Phase phase, PlanCache& whole, const plan::PlanOptions& options) {
  struct Place {
    Lane* lane;
    double down_for_up, share;
  };
  std::vector<Place> places;
  for (Lane& lane : lanes_) {
    if (lane.phase != phase) continue;
    const plan::OperationPlan& plan = whole.plan_for(lane.work);
    places.push_back({&lane, static_cast<double>(plan.bytes_down.value()) / static_cast<double>(plan.bytes_up.value()),
                      times(plan.busy, lane.families.size()).value()});
  }
  if (places.empty()) return Seconds(0);
  std::vector<plan::DeviceState> devices(whole.devices().begin(), whole.devices().end());
  if (devices.size() < places.size()) throw InputError("too few devices for lanes");
  std::ranges::stable_sort(places, {}, &Place::down_for_up);
  std::ranges::stable_sort(devices, {}, [&](const plan::DeviceState& device) {
    const double down = std::min(device.profile.downlink, options.server.nic_out).value();
    const double up = std::min(device.profile.uplink, options.server.nic_in).value();
    return std::isfinite(down / up) ? down / up : 1.0;
  });
  double fleet = 0;
  for (const plan::DeviceState& device : devices) fleet += power_of(device, options.server);

  std::vector<std::size_t> best;
  Seconds least{std::numeric_limits<double>::infinity()};
  for (int deal = 0; deal < kDeals; ++deal) {
    const double shares = std::accumulate(places.begin(), places.end(), 0.0,
                                          [](double sum, const Place& place) { return sum + place.share; });
    std::vector<std::size_t> ends;
    double reached = 0, wanted = 0;
    std::size_t next = 0;
    for (std::size_t p = 0; p < places.size(); ++p) {
      wanted += places[p].share / shares * fleet;
      const std::size_t most = devices.size() - (places.size() - p - 1), first = next;
      while (next < most && (next == first || p + 1 == places.size() ||
                             reached + power_of(devices[next], options.server) / 2 < wanted)) {
        reached += power_of(devices[next++], options.server);
      }
      ends.push_back(next);
    }
    Seconds longest{0}, shortest{std::numeric_limits<double>::infinity()};
    std::vector<Seconds> taken;
    for (std::size_t p = 0; p < places.size(); ++p) {
      const std::size_t first = p == 0 ? 0 : ends[p - 1];
      const plan::OperationPlan plan =
          plan::plan_operation(places[p].lane->work, std::span(devices).subspan(first, ends[p] - first), options);
      taken.push_back(times(plan.busy, places[p].lane->families.size()));
      longest = std::max(longest, taken.back());
      shortest = std::min(shortest, taken.back());
    }
    if (longest < least) {
      least = longest;
      best = ends;
    }
    if (longest - shortest < longest * kEvenLanes) break;
    for (std::size_t p = 0; p < places.size(); ++p) places[p].share *= std::pow(taken[p] / longest, 0.8);
  }
  Seconds busiest{0};
  for (std::size_t p = 0; p < places.size(); ++p) {
    const std::size_t first = p == 0 ? 0 : best[p - 1];
    plan_lane(*places[p].lane, std::span(devices).subspan(first, best[p] - first), options);
    busiest = std::max(busiest, times(places[p].lane->busy, places[p].lane->families.size()));
  }
  return busiest;
}

// Of operations in lanes alone, each for its time alone: what one group after another cannot be quicker than.
Seconds Lanes::longest_path(PlanCache& whole, bool in_lanes) const {
  std::vector<Seconds> until(graph_->operations.size());
  Seconds longest{0};
  for (const model::Operation& op : graph_->operations) {
    Seconds end{0};
    for (const OpId before : op.after) end = std::max(end, until[static_cast<std::size_t>(before.value)]);
    if (const auto lane = of(op.id)) {
      const plan::Work part = plan::work_of(op, wire_);
      end += in_lanes ? plan_of(*lane, part).time : whole.plan_for(part).time;
    }
    until[static_cast<std::size_t>(op.id.value)] = end;
    longest = std::max(longest, end);
  }
  return longest;
}

void Lanes::renew(PlanCache& whole, const plan::PlanOptions& options) {
  in_use_ = false;
  if (options.keep_columns == plan::KeepColumns::never || lanes_.empty() || whole.no_devices() ||
      options.partition != plan::Partition::automatic)
    return;
  try {
    Seconds by_turns{0};
    for (const Lane& lane : lanes_) {
      for (const std::int64_t size : lane.sizes) {
        plan::Work part = lane.work;
        size_of_part(part) = size;
        by_turns += times(whole.plan_for(part).busy, lane.families.size());
      }
    }
    const Seconds forward = plan_phase(model::Phase::forward, whole, options);
    const Seconds backward = plan_phase(model::Phase::input_gradient, whole, options);
    const Seconds in_lanes = std::max(forward + backward, longest_path(whole, true));
    in_use_ = options.keep_columns == plan::KeepColumns::always ||
              in_lanes < std::max(by_turns, longest_path(whole, false)) * kWorthLanes;
  } catch (const InputError&) {}  // too few devices, or in some lane nobody can hold the smallest block
}

}  // namespace cleave::sched
