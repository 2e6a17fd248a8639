// galaxy: tensor and sequence parallelism with unequal shares, transfers under compute.
//
// A device holds a share of every layer's heads and hidden columns, in proportion to its speed as far as its memory
// allows, and the same share of every sequence's rows between the layers. Before each half of a layer the rows are
// gathered, after it they are summed and scattered again, forward and backward alike, tile by tile under the products:
//   half of a layer = max(compute of the slowest device, gather and scatter around the ring)
// Embedding and head are split over the vocabulary by the same shares. Data parallelism over groups of devices. The
// system was published for inference; the backward pass mirrors the forward pass. Source: Ye et al. 2024 (Galaxy,
// arXiv 2405.17245), whose planner balances compute first and moves load where memory does not allow it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "replica_grid.hpp"

namespace cleave::rivals {

namespace {

struct GalaxySchedule {
  std::int64_t micro_batch = 1;
  bool recompute = false;
};

/// Memory of a device with a share of everything, for a micro-batch: linear in the share but for what is gathered.
struct ShareMemory {
  double fixed = 0, whole = 0;
  [[nodiscard]] double with(double share) const { return fixed + share * whole; }
};
ShareMemory memory_of(const Workload& w, const GalaxySchedule& schedule) {
  const std::size_t units = w.units.size();
  const auto sequences = static_cast<double>(schedule.micro_batch);
  const double kept =
      schedule.recompute ? w.input_bytes(0, units) + w.largest_kept_bytes(0, units) : w.kept_bytes(0, units);
  return {.fixed = sequences * 2 * w.units.front().output_bytes,
          .whole = static_cast<double>(w.total_parameters() * Workload::kStateBytes) + sequences * kept};
}

class GalaxyGrid final : public ReplicaGrid {
 public:
  GalaxyGrid(const StudyInput& study, const Workload& model, Grid grid, GalaxySchedule schedule)
      : ReplicaGrid(study, model, std::move(grid)), schedule_(schedule), heads_(study.model.n_head) {}

  [[nodiscard]] bool fits() const {
    return std::all_of(grid().begin(), grid().end(), [&](const auto& replica) { return holds(replica); });
  }

 private:
  // Shares follow memory too, so devices of several groups may have less room together than each group had.
  [[nodiscard]] bool holds(const std::vector<std::size_t>& group) const override { return !split(group).empty(); }

  // Heads of each device: in proportion to speed, none above what its memory holds, what is left over to those that
  // have room. Empty: they do not fit.
  [[nodiscard]] std::vector<std::int64_t> split(const std::vector<std::size_t>& group) const {
    const ShareMemory memory = memory_of(workload(), schedule_);
    std::vector<std::int64_t> most, heads(group.size(), 0);
    for (const std::size_t d : group) {
      const double room = static_cast<double>(network().device(d).memory.value()) - memory.fixed;
      most.push_back(std::clamp<std::int64_t>(
          static_cast<std::int64_t>(std::floor(room / memory.whole * static_cast<double>(heads_))), 0, heads_));
    }
    std::int64_t left = heads_;
    while (left > 0) {
      std::vector<double> rates(group.size(), 0);
      for (std::size_t i = 0; i < group.size(); ++i) {
        if (heads[i] < most[i]) rates[i] = network().device(group[i]).compute.value();
      }
      if (std::accumulate(rates.begin(), rates.end(), 0.0) == 0) return {};
      const std::vector<std::int64_t> more = apportion(left, rates);
      for (std::size_t i = 0; i < group.size(); ++i) {
        const std::int64_t taken = rates[i] > 0 ? std::min(more[i], most[i] - heads[i]) : 0;
        heads[i] += taken;
        left -= taken;
      }
    }
    return heads;
  }

  struct Pace {
    double pass_s = 0;           // of a micro-batch through both passes
    std::vector<double> shares;  // of each device
    CollectiveCost carried;      // by the rings of that micro-batch
    double flops = 0;            // of a sequence, both passes
  };

  [[nodiscard]] Pace pace_of(const std::vector<std::size_t>& group) const {
    const std::size_t units = workload().units.size();
    const std::vector<std::int64_t> heads = split(group);
    const auto sequences = static_cast<double>(schedule_.micro_batch);
    Pace pace;
    double slowest = 0;  // share over rate
    for (std::size_t i = 0; i < group.size(); ++i) {
      pace.shares.push_back(static_cast<double>(heads[i]) / static_cast<double>(heads_));
      slowest = std::max(slowest, pace.shares.back() / network().device(group[i]).compute.value());
    }
    // A gather and a scatter of a micro-batch's rows are one all-reduce.
    pace.carried = ring_all_reduce(network(), group, sequences * workload().units.front().output_bytes);
    const double ring_s = pace.carried.time_s;
    double rings = 0;
    for (std::size_t u = 0; u < units; ++u) {
      const Unit& unit = workload().units[u];
      const double halves = u == 0 || u + 1 == units ? 1 : 2;
      const double forward = unit.forward_flops / halves * slowest * sequences;
      const double backward =
          (unit.backward_flops + (schedule_.recompute ? unit.forward_flops : 0)) / halves * slowest * sequences;
      const double again = schedule_.recompute ? 2 : 1;
      pace.pass_s += halves * (std::max(forward, ring_s) + std::max(backward, again * ring_s));
      rings += halves * (1 + again);
      pace.flops += unit.forward_flops * again + unit.backward_flops;
    }
    pace.carried = scaled(std::move(pace.carried), rings);
    return pace;
  }

  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override {
    std::vector<double> speeds;
    for (const std::vector<std::size_t>& group : grid) speeds.push_back(1 / pace_of(group).pass_s);
    return apportion(workload().batch, speeds);
  }

  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override {
    StepCost cost;
    cost.usage.resize(network().size());
    const ShareMemory memory = memory_of(workload(), schedule_);
    const auto parameters = static_cast<double>(workload().total_parameters());
    double passes_s = 0, update_s = 0;
    Grid working;
    double largest = 0;  // share of any device: what the exchange between groups waits for
    for (std::size_t r = 0; r < grid.size(); ++r) {
      if (shares[r] == 0) continue;
      working.push_back(grid[r]);
      Pace pace = pace_of(grid[r]);
      const double passes = static_cast<double>(shares[r]) / static_cast<double>(schedule_.micro_batch);
      passes_s = std::max(passes_s, std::ceil(passes) * pace.pass_s);
      for (std::size_t i = 0; i < grid[r].size(); ++i) {
        sched::Usage& used = cost.usage[grid[r][i]];
        const double rate = network().device(grid[r][i]).compute.value();
        const double own_update_s = Workload::kUpdateFlops * parameters * pace.shares[i] / rate;
        used.compute += Seconds(static_cast<double>(shares[r]) * pace.flops * pace.shares[i] / rate + own_update_s);
        used.memory_peak = Bytes(std::llround(memory.with(pace.shares[i])));
        update_s = std::max(update_s, own_update_s);
        largest = std::max(largest, pace.shares[i]);
      }
      charge(scaled(std::move(pace.carried), passes), grid[r], cost.usage);
    }
    double exchange_s = 0;
    for (std::size_t position = 0; position < grid.front().size(); ++position) {
      std::vector<std::size_t> members;
      for (const std::vector<std::size_t>& group : working) members.push_back(group[position]);
      const CollectiveCost exchange =
          ring_all_reduce(network(), members, largest * parameters * static_cast<double>(workload().element));
      exchange_s = std::max(exchange_s, exchange.time_s);
      charge(exchange, members, cost.usage);
    }
    cost.time_s = passes_s + exchange_s + update_s;
    return cost;
  }

  GalaxySchedule schedule_;
  std::int64_t heads_;
};

class Galaxy final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "galaxy"; }
  [[nodiscard]] std::string summary() const override {
    return "tensor and sequence parallelism with unequal shares, transfers under compute (Galaxy)";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    const std::vector<std::size_t> order = by_link(study);
    Grid best;
    GalaxySchedule best_schedule;
    double shortest_s = std::numeric_limits<double>::infinity();
    const auto try_schedules = [&](const Grid& grid) {
      for (const bool recompute : {false, true}) {
        for (std::int64_t micro_batch = 1; micro_batch <= workload.batch; micro_batch *= 2) {
          const GalaxyGrid trial(study, workload, grid, {micro_batch, recompute});
          if (!trial.fits()) break;
          const double step_s = trial.step().time_s;
          if (step_s >= shortest_s) continue;
          shortest_s = step_s;
          best = grid;
          best_schedule = {micro_batch, recompute};
        }
      }
    };
    const std::size_t largest = std::min(order.size(), static_cast<std::size_t>(study.model.n_head));
    for (std::size_t size = largest; size > 0; size = fewer(size)) {
      const std::size_t most = std::min(order.size() / size, static_cast<std::size_t>(workload.batch));
      for (std::size_t groups = most; groups > 0; groups = fewer(groups)) {
        Grid grid(groups);
        // Dealt in turn, so that groups are alike.
        for (std::size_t i = 0; i < groups * size; ++i) grid[i % groups].push_back(order[i]);
        for (const Grid& tried : worth_trying(study, std::move(grid))) try_schedules(tried);
      }
    }
    if (best.empty()) {
      const ShareMemory memory = memory_of(workload, {1, true});
      report.why = fmt::format(
          "the model with gradients and moments takes {} in shares of whole heads, {} at most; all devices "
          "together have {}",
          show_bytes(memory.whole), study.model.n_head, show_bytes(memory_of_fleet(study).together));
      return {};
    }
    std::string layout =
        fmt::format("{} groups of {} devices, micro-batches of {}{}", best.size(), best.front().size(),
                    best_schedule.micro_batch, best_schedule.recompute ? ", layers computed again" : "");
    return one_layout(std::move(layout), std::make_unique<GalaxyGrid>(study, workload, std::move(best), best_schedule));
  }
};

}  // namespace

std::unique_ptr<System> make_galaxy() { return std::make_unique<Galaxy>(); }

}  // namespace cleave::rivals
