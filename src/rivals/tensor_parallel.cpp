// tensor-parallel: Megatron's column and row split of every layer over t devices, data parallelism over the groups.
//
// A layer makes two all-reduces of its activations forward and two backward (and two more where its forward pass is run
// again), the embedding one forward, the head one backward; a ring goes at the pace of its slowest link, and the shards
// are equal, so at the pace of its slowest processor. t divides the heads. All-reduces wait for what they reduce and
// the next product waits for them: they do not overlap with compute. Source: Shoeybi et al. 2019; activations are kept
// in shards, as in the sequence-parallel variant (Korthikanti et al. 2022).
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

struct TensorSchedule {
  std::int64_t micro_batch = 1;
  bool recompute = false;
};

double memory_of(const Workload& w, std::size_t degree, const TensorSchedule& schedule) {
  const std::size_t units = w.units.size();
  const auto share = 1.0 / static_cast<double>(degree), sequences = static_cast<double>(schedule.micro_batch);
  const double state = static_cast<double>(w.total_parameters() * Workload::kStateBytes) * share;
  const double kept = schedule.recompute ? w.input_bytes(0, units) * share + w.largest_kept_bytes(0, units) * share
                                         : w.kept_bytes(0, units) * share;
  return state + sequences * (kept + 2 * w.units.front().output_bytes);  // an all-reduce holds input and result
}

class TensorGrid final : public ReplicaGrid {
 public:
  TensorGrid(const StudyInput& study, const Workload& model, Grid grid, TensorSchedule schedule)
      : ReplicaGrid(study, model, std::move(grid)), schedule_(schedule) {}

 private:
  struct Pace {            // of one replica
    double compute_s = 0;  // per sequence
    double count = 0;      // all-reduces of a micro-batch
  };

  // One all-reduce of so many sequences' activations.
  [[nodiscard]] CollectiveCost reduction(const std::vector<std::size_t>& replica, std::int64_t sequences) const {
    return ring_all_reduce(network(), replica, static_cast<double>(sequences) * workload().units.front().output_bytes);
  }

  [[nodiscard]] Pace pace_of(const std::vector<std::size_t>& replica) const {
    const std::size_t units = workload().units.size();
    double rate = std::numeric_limits<double>::infinity();
    for (const std::size_t d : replica) rate = std::min(rate, network().device(d).compute.value());
    const double forward = workload().forward_flops(0, units), backward = workload().backward_flops(0, units);
    const double flops = forward + backward + (schedule_.recompute ? forward : 0);
    const auto layers = static_cast<double>(units - 2);
    Pace pace;
    pace.compute_s = flops / static_cast<double>(replica.size()) / rate;
    pace.count = layers * (schedule_.recompute ? 6 : 4) + 2;
    return pace;
  }

  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override {
    std::vector<double> speeds;
    for (const std::vector<std::size_t>& replica : grid) {
      const Pace pace = pace_of(replica);
      const double micro_batch_s = static_cast<double>(schedule_.micro_batch) * pace.compute_s +
                                   pace.count * reduction(replica, schedule_.micro_batch).time_s;
      speeds.push_back(1 / micro_batch_s);
    }
    return apportion(workload().batch, speeds);
  }

  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override {
    const std::size_t degree = grid.front().size();
    const auto parameters = static_cast<double>(workload().total_parameters()) / static_cast<double>(degree);
    StepCost cost;
    cost.usage.resize(network().size());
    double computed_s = 0;
    Grid working;
    for (std::size_t r = 0; r < grid.size(); ++r) {
      if (shares[r] == 0) continue;
      working.push_back(grid[r]);
      const Pace pace = pace_of(grid[r]);
      const auto sequences = static_cast<double>(shares[r]);
      double reduced_s = 0;
      std::map<std::int64_t, double> sizes;  // of micro-batches, and how many all-reduces there are of each
      for (const std::int64_t size : split_batch(shares[r], schedule_.micro_batch)) sizes[size] += pace.count;
      for (const auto& [size, times] : sizes) {
        const CollectiveCost all = scaled(reduction(grid[r], size), times);
        charge(all, grid[r], cost.usage);
        reduced_s += all.time_s;
      }
      computed_s = std::max(computed_s, sequences * pace.compute_s + reduced_s);
      for (std::size_t i = 0; i < degree; ++i) {
        sched::Usage& used = cost.usage[grid[r][i]];
        const double rate = network().device(grid[r][i]).compute.value();
        const double flops = workload().forward_flops(0, workload().units.size()) * (schedule_.recompute ? 2 : 1) +
                             workload().backward_flops(0, workload().units.size());
        used.compute +=
            Seconds((sequences * flops / static_cast<double>(degree) + Workload::kUpdateFlops * parameters) / rate);
        used.memory_peak = Bytes(std::llround(memory_of(workload(), degree, schedule_)));
      }
    }
    // Each shard's gradients over the replicas; then the update.
    double exchange_s = 0, update_s = 0;
    for (std::size_t shard = 0; shard < degree; ++shard) {
      std::vector<std::size_t> members;
      for (const std::vector<std::size_t>& replica : working) members.push_back(replica[shard]);
      const CollectiveCost exchange =
          ring_all_reduce(network(), members, parameters * static_cast<double>(workload().element));
      exchange_s = std::max(exchange_s, exchange.time_s);
      charge(exchange, members, cost.usage);
      for (const std::size_t member : members) {
        update_s = std::max(update_s, Workload::kUpdateFlops * parameters / network().device(member).compute.value());
      }
    }
    cost.time_s = computed_s + exchange_s + update_s;
    return cost;
  }

  TensorSchedule schedule_;
};

class TensorParallel final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "tensor-parallel"; }
  [[nodiscard]] std::string summary() const override {
    return "Megatron's split of every layer, data parallelism over the groups";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    Choice best = choose(study, workload);
    if (best.grid.empty()) {
      report.why = best.why;
      return {};
    }
    std::string layout =
        fmt::format("{} replicas of {} shards, micro-batches of {}{}", best.grid.size(), best.grid.front().size(),
                    best.schedule.micro_batch, best.schedule.recompute ? ", layers computed again" : "");
    return one_layout(std::move(layout),
                      std::make_unique<TensorGrid>(study, workload, std::move(best.grid), best.schedule));
  }

  struct Choice {
    Grid grid;
    TensorSchedule schedule;
    double step_s = std::numeric_limits<double>::infinity();
    std::string why;
  };

  // Every degree that divides the heads, numbers of replicas falling by a fifth from the most, micro-batches in powers
  // of two.
  static Choice choose(const StudyInput& study, const Workload& workload) {
    Choice best;
    const std::vector<std::size_t> order = by_link(study);
    double least = std::numeric_limits<double>::infinity();
    std::size_t least_degree = 1, able_at_least = 0;
    for (std::size_t degree = 1; degree <= order.size(); ++degree) {
      if (study.model.n_head % static_cast<std::int64_t>(degree) != 0) continue;
      const double need = memory_of(workload, degree, {1, true});
      const std::vector<std::size_t> able = with_room(study, order, need);
      if (need < least) {
        least = need;
        least_degree = degree;
        able_at_least = able.size();
      }
      const std::size_t most = std::min(able.size() / degree, static_cast<std::size_t>(workload.batch));
      for (std::size_t replicas = most; replicas > 0; replicas = fewer(replicas)) {
        Grid grid(replicas);
        for (std::size_t i = 0; i < replicas * degree; ++i) grid[i / degree].push_back(able[i]);
        for (const Grid& tried : worth_trying(study, std::move(grid))) try_schedules(study, workload, tried, best);
      }
    }
    best.why = fmt::format(
        "a shard with its gradients and moments takes {} at degree {}, the largest that divides {} "
        "heads; {} of {} devices have that (the largest {})",
        show_bytes(least), least_degree, study.model.n_head, able_at_least, order.size(),
        show_bytes(memory_of_fleet(study).largest));
    return best;
  }

  static void try_schedules(const StudyInput& study, const Workload& workload, const Grid& grid, Choice& best) {
    double have = std::numeric_limits<double>::infinity();
    for (const std::vector<std::size_t>& replica : grid) {
      for (const std::size_t d : replica) have = std::min(have, static_cast<double>(study.devices[d].memory.value()));
    }
    for (const bool recompute : {false, true}) {
      for (std::int64_t micro_batch = 1; micro_batch <= workload.batch; micro_batch *= 2) {
        const TensorSchedule schedule{micro_batch, recompute};
        if (memory_of(workload, grid.front().size(), schedule) > have) break;
        const double step_s = TensorGrid(study, workload, grid, schedule).step().time_s;
        if (step_s < best.step_s) {
          best.grid = grid;
          best.schedule = schedule;
          best.step_s = step_s;
        }
      }
    }
  }
};

}  // namespace

std::unique_ptr<System> make_tensor_parallel() { return std::make_unique<TensorParallel>(); }

}  // namespace cleave::rivals
