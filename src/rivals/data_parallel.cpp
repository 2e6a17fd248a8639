// data-parallel: the whole model on each device, ring all-reduce of gradients, shares in proportion to speed.
//
// The all-reduce of a layer may start when its gradient is complete everywhere; it is also tried as one message ring at
// the end, which pays fewer latencies, and the shorter counts. Of the devices that hold the model, the best-connected n
// are used, for the n (falling by a fifth from all) that makes the step shortest.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "cleave/rivals/system.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

class DataParallelGrid final : public ReplicaGrid {
 public:
  DataParallelGrid(const StudyInput& study, const Workload& model, Grid grid)
      : ReplicaGrid(study, model, std::move(grid)) {}

 private:
  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override {
    std::vector<double> speeds;
    for (const std::vector<std::size_t>& replica : grid) {
      speeds.push_back(network().device(replica.front()).compute.value());
    }
    return apportion(workload().batch, speeds);
  }

  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override {
    const std::size_t units = workload().units.size();
    const double forward = workload().forward_flops(0, units), backward = workload().backward_flops(0, units);
    StepCost cost;
    cost.usage.resize(network().size());
    std::vector<std::size_t> members;
    std::vector<double> ready_s(units, 0);  // unit's gradient complete on every device
    double computed_s = 0;
    for (std::size_t r = 0; r < grid.size(); ++r) {
      if (shares[r] == 0) continue;
      const std::size_t d = grid[r].front();
      members.push_back(d);
      const double rate = network().device(d).compute.value();
      const auto have = static_cast<double>(network().device(d).memory.value());
      std::int64_t micro_batch = std::max<std::int64_t>(1, largest_micro_batch(have, shares[r], false));
      const bool recompute = micro_batch == 1 && stage_memory(workload(), 0, units, 1, false).with(1) > have;
      if (recompute) micro_batch = std::max<std::int64_t>(1, largest_micro_batch(have, shares[r], true));
      const double extra = recompute ? forward : 0;
      const double end_s = static_cast<double>(shares[r]) * (forward + backward + extra) / rate;
      computed_s = std::max(computed_s, end_s);
      double below = 0;  // backward work of the units that come after, in the last micro-batch
      for (std::size_t u = 0; u < units; ++u) {
        ready_s[u] = std::max(ready_s[u], end_s - static_cast<double>(micro_batch) * below / rate);
        below += workload().units[u].backward_flops + (recompute ? workload().units[u].forward_flops : 0);
      }
      cost.usage[d].compute = Seconds(end_s) + update_time(d);
      cost.usage[d].memory_peak =
          Bytes(std::llround(stage_memory(workload(), 0, units, micro_batch, recompute).with(1)));
    }

    double update_s = 0;
    for (const std::size_t d : members) update_s = std::max(update_s, update_time(d).value());
    const auto total = static_cast<double>(workload().total_parameters() * workload().element);
    CollectiveCost exchange = ring_all_reduce(network(), members, total);
    cost.time_s = computed_s + exchange.time_s;
    std::vector<CollectiveCost> layers;
    double overlapped_s = 0;
    for (std::size_t u = units; u-- > 0;) {
      layers.push_back(ring_all_reduce(network(), members,
                                       static_cast<double>(workload().units[u].parameters * workload().element)));
      overlapped_s = std::max(overlapped_s, ready_s[u]) + layers.back().time_s;
    }
    if (overlapped_s < cost.time_s) {
      cost.time_s = overlapped_s;
    } else {
      layers = {std::move(exchange)};
    }
    cost.time_s += update_s;
    for (const CollectiveCost& part : layers) charge(part, members, cost.usage);
    return cost;
  }

  [[nodiscard]] std::int64_t largest_micro_batch(double have, std::int64_t share, bool recompute) const {
    std::int64_t size = 0;
    for (std::int64_t trial = 1; trial <= share; trial *= 2) {
      if (stage_memory(workload(), 0, workload().units.size(), trial, recompute).with(1) > have) break;
      size = trial;
    }
    return size;
  }

  [[nodiscard]] Seconds update_time(std::size_t d) const {
    return Flops(Workload::kUpdateFlops * static_cast<double>(workload().total_parameters())) /
           network().device(d).compute;
  }
};

class DataParallel final : public System {
 public:
  [[nodiscard]] std::string name() const override { return "data-parallel"; }
  [[nodiscard]] std::string summary() const override { return "the whole model on each device, ring all-reduce"; }

 private:
  void carry_out(const StudyInput& study, const std::function<Seconds()>& elapsed,
                 SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    const double need = stage_memory(workload, 0, workload.units.size(), 1, true).with(1);

    std::vector<std::size_t> able;
    Bytes largest{0};
    for (std::size_t d = 0; d < study.devices.size(); ++d) {
      largest = std::max(largest, study.devices[d].memory);
      if (static_cast<double>(study.devices[d].memory.value()) >= need) able.push_back(d);
    }
    if (able.empty()) {
      report.feasible = false;
      report.why = fmt::format(
          "the whole model with gradients and moments takes {:.2f} GB on a device; the largest has {:.2f} GB",
          need / 1e9, static_cast<double>(largest.value()) / 1e9);
      report.planning = elapsed();
      return;
    }
    std::stable_sort(able.begin(), able.end(), [&](std::size_t a, std::size_t b) {
      const auto link = [&](std::size_t d) { return std::min(study.devices[d].uplink, study.devices[d].downlink); };
      return link(a) > link(b);
    });
    Grid best;
    double shortest_s = std::numeric_limits<double>::infinity();
    for (std::size_t count = able.size(); count > 0; count = fewer(count)) {
      Grid grid;
      for (std::size_t i = 0; i < count; ++i) grid.push_back({able[i]});
      if (count == 1) {  // alone, links do not matter
        grid.front() = {*std::max_element(able.begin(), able.end(), [&](std::size_t a, std::size_t b) {
          return study.devices[a].compute < study.devices[b].compute;
        })};
      }
      const double step_s = DataParallelGrid(study, workload, grid).step().time_s;
      if (step_s >= shortest_s) continue;
      shortest_s = step_s;
      best = std::move(grid);
    }
    report.planning = elapsed();
    report.layout = fmt::format("{} of {} devices that hold the model", best.size(), able.size());
    DataParallelGrid grid(study, workload, std::move(best));
    run_study(study, grid, report);
  }
};

}  // namespace

std::unique_ptr<System> make_data_parallel() { return std::make_unique<DataParallel>(); }

}  // namespace cleave::rivals
