// fsdp: fully sharded data parallelism (ZeRO stage 3), in groups that hold one copy of the model each.
//
// A device of a group of g keeps 1/g of weights, gradients and moments. Before a unit (a layer, the embedding, the
// head) runs, its weights are gathered from the group, in the forward and again in the backward pass; after its
// backward pass its gradients are scattered and summed. Both go around a ring, under the compute of the unit before:
//   pass over a unit = max(compute of the slowest member, gather (+ scatter) of the next unit)
// Groups share the batch, and all-reduce their shards of gradients once a step (hybrid sharding; one group is plain
// FSDP). Source: Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "replica_grid.hpp"

namespace cleave::rivals {

namespace {

struct ShardedSchedule {
  std::int64_t micro_batch = 1;  ///< sequences of a device at a time
  bool recompute = false;
};

/// Half of a ring all-reduce: all-gather, or reduce-scatter.
constexpr double kHalf = 0.5;

// State in shards, two units' whole weights (one at work, one under way), one unit's gradients, and activations.
double memory_of(const Workload& w, std::size_t group, const ShardedSchedule& schedule) {
  const std::size_t units = w.units.size();
  std::int64_t largest = 0;
  for (const Unit& unit : w.units) largest = std::max(largest, unit.parameters);
  const double state = static_cast<double>(w.total_parameters() * Workload::kStateBytes) / static_cast<double>(group);
  const double whole = group == 1 ? 0 : 3.0 * static_cast<double>(largest * w.element);
  const double kept =
      schedule.recompute ? w.input_bytes(0, units) + w.largest_kept_bytes(0, units) : w.kept_bytes(0, units);
  return state + whole + static_cast<double>(schedule.micro_batch) * kept;
}

class FsdpGrid final : public ReplicaGrid {
 public:
  FsdpGrid(const StudyInput& study, const Workload& model, Grid grid, ShardedSchedule schedule)
      : ReplicaGrid(study, model, std::move(grid)), schedule_(schedule) {}

 private:
  [[nodiscard]] double rate_of(std::size_t device) const { return network().device(device).compute.value(); }

  // Sequences of the group's share for each member, in proportion to speed.
  [[nodiscard]] std::vector<std::int64_t> split(const std::vector<std::size_t>& group, std::int64_t share) const {
    std::vector<double> rates;
    for (const std::size_t d : group) rates.push_back(rate_of(d));
    return apportion(share, rates);
  }

  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override {
    std::vector<double> rates(grid.size(), 0);
    for (std::size_t r = 0; r < grid.size(); ++r) {
      for (const std::size_t d : grid[r]) rates[r] += rate_of(d);
    }
    return apportion(workload().batch, rates);
  }

  // One group's passes over its share: what they take, and what they take of its members' resources.
  double run_group(const std::vector<std::size_t>& group, std::int64_t share, std::vector<sched::Usage>& usage) const {
    const std::size_t units = workload().units.size();
    const std::vector<std::int64_t> mine = split(group, share);
    std::int64_t passes = 0;
    for (const std::int64_t sequences : mine) {
      passes = std::max(passes, (sequences + schedule_.micro_batch - 1) / schedule_.micro_batch);
    }
    double slowest_s = 0;  // per FLOP of a sequence in one pass
    for (std::size_t i = 0; i < group.size(); ++i) {
      const double per_pass = static_cast<double>(mine[i]) / static_cast<double>(passes);
      slowest_s = std::max(slowest_s, per_pass / rate_of(group[i]));
    }
    std::map<std::int64_t, CollectiveCost> rings;  // layers are alike
    const auto ring_of = [&](std::size_t unit) -> const auto& {
      const std::int64_t bytes = workload().units[unit].parameters * workload().element;
      const auto found = rings.find(bytes);
      if (found != rings.end()) return found->second;
      return rings.emplace(bytes, ring_all_reduce(network(), group, static_cast<double>(bytes))).first->second;
    };
    double pass_s = ring_of(0).time_s * kHalf;  // nothing runs under the first unit's weights
    for (std::size_t u = 0; u < units; ++u) {
      const Unit& unit = workload().units[u];
      const double next_s = u + 1 < units ? ring_of(u + 1).time_s * kHalf : 0;
      pass_s += std::max(slowest_s * unit.forward_flops, next_s);
      // Backward: the unit before is gathered and the unit after is scattered meanwhile. The last one is still there.
      const double backward = unit.backward_flops + (schedule_.recompute ? unit.forward_flops : 0);
      const double gathered_s = u > 0 ? ring_of(u - 1).time_s * kHalf : 0;
      const double scattered_s = u + 1 < units ? ring_of(u + 1).time_s * kHalf : 0;
      pass_s += std::max(slowest_s * backward, gathered_s + scattered_s);
    }
    pass_s += ring_of(0).time_s * kHalf;  // nothing runs under the first unit's gradients
    const auto count = static_cast<double>(passes);
    const double flops =
        workload().forward_flops(0, units) * (schedule_.recompute ? 2 : 1) + workload().backward_flops(0, units);
    for (std::size_t u = 0; u < units; ++u) {
      // Two gathers (one for the last unit) and one scatter.
      charge(scaled(ring_of(u), count * (u + 1 < units ? 3 : 2) * kHalf), group, usage);
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      usage[group[i]].compute += Seconds(static_cast<double>(mine[i]) * flops / rate_of(group[i]));
      usage[group[i]].memory_peak = Bytes(std::llround(memory_of(workload(), group.size(), schedule_)));
    }
    return count * pass_s;
  }

  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override {
    StepCost cost;
    cost.usage.resize(network().size());
    const std::size_t group = grid.front().size();
    Grid working;
    double passes_s = 0;
    for (std::size_t r = 0; r < grid.size(); ++r) {
      if (shares[r] == 0) continue;
      working.push_back(grid[r]);
      passes_s = std::max(passes_s, run_group(grid[r], shares[r], cost.usage));
    }
    const double shard = static_cast<double>(workload().total_parameters()) / static_cast<double>(group);
    double reduce_s = 0, update_s = 0;
    for (std::size_t position = 0; position < group; ++position) {
      std::vector<std::size_t> members;
      for (const std::vector<std::size_t>& replica : working) members.push_back(replica[position]);
      const auto reduced = ring_all_reduce(network(), members, shard * static_cast<double>(workload().element));
      reduce_s = std::max(reduce_s, reduced.time_s);
      charge(reduced, members, cost.usage);
      for (const std::size_t d : members) {
        const double time_s = Workload::kUpdateFlops * shard / rate_of(d);
        cost.usage[d].compute += Seconds(time_s);
        update_s = std::max(update_s, time_s);
      }
    }
    cost.time_s = passes_s + reduce_s + update_s;
    return cost;
  }

  ShardedSchedule schedule_;
};

class Fsdp final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "fsdp"; }
  [[nodiscard]] std::string summary() const override {
    return "fully sharded data parallelism (ZeRO-3), weights gathered layer by layer";
  }

 private:
  struct Choice {
    Grid grid;
    ShardedSchedule schedule;
    double step_s = std::numeric_limits<double>::infinity();
  };

  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    const std::vector<std::size_t> order = by_link(study);
    Choice best;
    // Groups of every size, falling by a fifth from all devices; as many of them as there are devices that can.
    for (std::size_t group = order.size(); group > 0; group = fewer(group)) {
      const double need = memory_of(workload, group, {1, true});
      const std::vector<std::size_t> able = with_room(study, order, need);
      const std::size_t most = std::min(able.size() / group, static_cast<std::size_t>(workload.batch));
      for (std::size_t replicas = most; replicas > 0; replicas = fewer(replicas)) {
        Grid grid(replicas);
        for (std::size_t i = 0; i < replicas * group; ++i) grid[i / group].push_back(able[i]);
        for (const Grid& tried : worth_trying(study, std::move(grid))) try_schedules(study, workload, tried, best);
      }
    }
    if (best.grid.empty()) {
      report.why = why_not(study, workload);
      return {};
    }
    std::string layout =
        fmt::format("{} groups of {} devices, micro-batches of {}{}", best.grid.size(), best.grid.front().size(),
                    best.schedule.micro_batch, best.schedule.recompute ? ", layers computed again" : "");
    return one_layout(std::move(layout),
                      std::make_unique<FsdpGrid>(study, workload, std::move(best.grid), best.schedule));
  }

  static void try_schedules(const StudyInput& study, const Workload& workload, const Grid& grid, Choice& best) {
    double have = std::numeric_limits<double>::infinity();
    for (const std::vector<std::size_t>& replica : grid) {
      for (const std::size_t d : replica) have = std::min(have, static_cast<double>(study.devices[d].memory.value()));
    }
    for (const bool recompute : {false, true}) {
      for (std::int64_t micro_batch = 1; micro_batch <= workload.batch; micro_batch *= 2) {
        const ShardedSchedule schedule{micro_batch, recompute};
        if (memory_of(workload, grid.front().size(), schedule) > have) break;
        const double step_s = FsdpGrid(study, workload, grid, schedule).step().time_s;
        if (step_s < best.step_s) best = {grid, schedule, step_s};
      }
    }
  }

  static std::string why_not(const StudyInput& study, const Workload& workload) {
    return fmt::format(
        "a shard over all {} devices with the layers at work takes {}; not all of them have that (the largest "
        "{})",
        study.devices.size(), show_bytes(memory_of(workload, study.devices.size(), {1, true})),
        show_bytes(memory_of_fleet(study).largest));
  }
};

}  // namespace

std::unique_ptr<System> make_fsdp() { return std::make_unique<Fsdp>(); }

}  // namespace cleave::rivals
