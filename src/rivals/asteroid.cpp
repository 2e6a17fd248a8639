// asteroid: hybrid pipeline parallelism on collaborating edge devices (Ye, Zeng, Chu, Xing and Chen 2024).
//
// Its planner is run for every micro-batch size that is a power of two, with and without recomputation. Of the plans
// with the best round latencies, the one whose step is shortest under our accounting is used; its own round latency is
// reported beside that.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "asteroid_placement.hpp"
#include "cleave/rivals/system.hpp"
#include "pipeline.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

/// Larger micro-batches pay fewer latencies and longer ramps: once a step is this much longer than the shortest, it
/// only gets worse.
constexpr double kHopeless = 1.5;
/// Plans of the planner that are costed as steps.
constexpr std::size_t kCosted = 16;

/// As published, or with what it would be granted today.
struct Variant {
  Granularity granularity = Granularity::layers;
  bool sharded = false;  ///< moments and master weights in shards over a group
};

class Asteroid final : public System {
 public:
  Asteroid(std::string name, std::string summary, Variant variant)
      : name_(std::move(name)), summary_(std::move(summary)), variant_(variant) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string summary() const override { return summary_; }

 private:
  void carry_out(const StudyInput& study, const std::function<Seconds()>& elapsed,
                 SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire, variant_.granularity);
    const Network network(study.devices, study.links);
    AsteroidProblem problem{.workload = workload,
                            .network = network,
                            .devices = by_memory(study),
                            .micro_batch = 1,
                            .micro_batches = 1,
                            .recompute = false,
                            .sharded = variant_.sharded,
                            .copies = !study.churn.empty() || study.loss.devices > 0};
    AsteroidPlan best;
    std::int64_t best_micro_batch = 1;
    bool best_recompute = false;
    double shortest_s = std::numeric_limits<double>::infinity();
    for (const bool recompute : {false, true}) {
      double shortest_here_s = std::numeric_limits<double>::infinity();
      for (std::int64_t micro_batch = 1; micro_batch <= study.batch; micro_batch *= 2) {
        problem.micro_batch = micro_batch;
        problem.micro_batches = static_cast<std::int64_t>(split_batch(study.batch, micro_batch).size());
        problem.recompute = recompute;
        std::vector<AsteroidPlan> plans = propose_plans(problem, planner_blocks(problem.devices.size()));
        if (study.progress) {
          study.progress(fmt::format(
              "asteroid: micro-batches of {}{}: {}", micro_batch, recompute ? ", recomputed" : "",
              plans.empty() ? std::string("nothing fits")
                            : fmt::format("{} stages, round {:.4g} s", plans[0].stages.size(), plans[0].round_s)));
        }
        if (plans.size() > kCosted) plans.resize(kCosted);
        double here_s = std::numeric_limits<double>::infinity();  // with this micro-batch
        for (AsteroidPlan& plan : plans) {
          const double step_s = AsteroidPlacement(study, workload, problem, plan).step().time_s;
          here_s = std::min(here_s, step_s);
          if (step_s >= shortest_s) continue;
          shortest_s = step_s;
          best = std::move(plan);
          best_micro_batch = micro_batch;
          best_recompute = recompute;
        }
        if (here_s > kHopeless * shortest_here_s) break;
        shortest_here_s = std::min(shortest_here_s, here_s);
      }
    }
    report.planning = elapsed();
    if (!best.found()) {
      report.feasible = false;
      report.why = why_not(study, workload);
      return;
    }
    report.layout = fmt::format("{} stages, micro-batches of {}{}", best.stages.size(), best_micro_batch,
                                best_recompute ? ", layers computed again" : "");
    report.figures = {{"objective_s", best.round_s}};
    problem.micro_batch = best_micro_batch;
    problem.micro_batches = static_cast<std::int64_t>(split_batch(study.batch, best_micro_batch).size());
    problem.recompute = best_recompute;
    AsteroidPlacement placement(study, workload, problem, std::move(best));
    run_study(study, placement, report);
  }

  static std::vector<std::size_t> by_memory(const StudyInput& study) {
    std::vector<std::size_t> order(study.devices.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return study.devices[a].memory > study.devices[b].memory; });
    return order;
  }

  static std::string why_not(const StudyInput& study, const Workload& workload) {
    double largest_unit = 0;
    for (std::size_t u = 0; u < workload.units.size(); ++u) {
      largest_unit = std::max(largest_unit, stage_memory(workload, u, u + 1, 1, true).with(1));
    }
    double together = 0, most = 0;
    for (const fleet::DeviceProfile& device : study.devices) {
      together += static_cast<double>(device.memory.value());
      most = std::max(most, static_cast<double>(device.memory.value()));
    }
    return fmt::format(
        "a stage of one layer with its gradients and moments takes up to {:.2f} GB, the model {:.1f} GB; the "
        "largest device has {:.2f} GB, all together {:.1f} GB",
        largest_unit / 1e9, static_cast<double>(workload.total_parameters() * Workload::kStateBytes) / 1e9, most / 1e9,
        together / 1e9);
  }

  std::string name_, summary_;
  Variant variant_;
};

}  // namespace

std::unique_ptr<System> make_asteroid() {
  return std::make_unique<Asteroid>(
      "asteroid", "pipelines of device groups by Asteroid's planner, with pipeline replay", Variant{});
}

std::unique_ptr<System> make_asteroid_plus() {
  return std::make_unique<Asteroid>("asteroid-plus", "asteroid with half-layer stages and moments in shards",
                                    Variant{Granularity::halves, true});
}

}  // namespace cleave::rivals
