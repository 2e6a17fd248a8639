// asteroid: hybrid pipeline parallelism on collaborating edge devices (Ye, Zeng, Chu, Xing and Chen 2024).
//
// Its planner is run for every micro-batch size that is a power of two, with and without recomputation. Of the plans
// with the best round latencies, the one whose step is shortest under our accounting is used; its own round latency is
// reported beside that. asteroid-plus plans in whole layers first, then in halves of layers, and takes the better.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "asteroid_placement.hpp"
#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "pipeline.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

/// Larger micro-batches pay fewer latencies and longer ramps: once a step is this much longer than the shortest, it
/// only gets worse.
constexpr double kHopelessCut = 1.5;
/// Plans of the planner that are costed as steps.
constexpr std::size_t kCosted = 16;
class Asteroid final : public PlacedSystem {
 public:
  /// `plus`: half-layer stages, and moments and master weights in shards over a group.
  Asteroid(std::string name, std::string summary, bool plus)
      : name_(std::move(name)), summary_(std::move(summary)), plus_(plus) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string summary() const override { return summary_; }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload layers = describe_workload(study.model, study.batch, study.wire, Granularity::layers);
    const Workload halves = describe_workload(study.model, study.batch, study.wire, Granularity::halves);
    const Network network(study.devices, study.links);
    Choice best;
    choose(study, layers, network, best);
    if (plus_) choose(study, halves, network, best);
    if (!best.plan.found()) {
      report.why = why_not(study, plus_ ? halves : layers);
      return {};
    }
    std::string layout = fmt::format("{} stages, micro-batches of {}{}", best.plan.stages.size(), best.micro_batch,
                                     best.recompute ? ", layers computed again" : "");
    report.figures = {{"objective_s", best.plan.round_s}};
    const AsteroidProblem problem = problem_of(study, *best.workload, network, best.micro_batch, best.recompute);
    return one_layout(std::move(layout),
                      std::make_unique<AsteroidPlacement>(study, *best.workload, problem, std::move(best.plan)));
  }

  struct Choice {
    AsteroidPlan plan;
    const Workload* workload = nullptr;
    std::int64_t micro_batch = 1;
    bool recompute = false;
    double step_s = std::numeric_limits<double>::infinity();
  };

  [[nodiscard]] AsteroidProblem problem_of(const StudyInput& study, const Workload& workload, const Network& network,
                                           std::int64_t micro_batch, bool recompute) const {
    return {.workload = workload,
            .network = network,
            .devices = by_memory(study),
            .micro_batch = micro_batch,
            .micro_batches = static_cast<std::int64_t>(split_batch(study.batch, micro_batch).size()),
            .recompute = recompute,
            .sharded = plus_,
            .copies = !study.churn.empty() || study.loss.devices > 0};
  }

  /// Sets `best` to the plan with the shortest step, where one is shorter than what it holds.
  void choose(const StudyInput& study, const Workload& workload, const Network& network, Choice& best) const {
    const std::size_t blocks = planner_blocks(study.devices.size(), workload.units.size());
    for (const bool recompute : {false, true}) {
      double shortest_here_s = std::numeric_limits<double>::infinity();
      for (std::int64_t micro_batch = 1; micro_batch <= study.batch; micro_batch *= 2) {
        const AsteroidProblem problem = problem_of(study, workload, network, micro_batch, recompute);
        std::vector<AsteroidPlan> plans = propose_plans(problem, blocks);
        if (study.progress) {
          study.progress(fmt::format(
              "{}: micro-batches of {}{}: {}", name_, micro_batch, recompute ? ", recomputed" : "",
              plans.empty() ? std::string("nothing fits")
                            : fmt::format("{} stages, round {:.4g} s", plans[0].stages.size(), plans[0].round_s)));
        }
        if (plans.size() > kCosted) plans.resize(kCosted);
        double here_s = std::numeric_limits<double>::infinity();  // with this micro-batch
        for (AsteroidPlan& plan : plans) {
          const double step_s = AsteroidPlacement(study, workload, problem, plan).step().time_s;
          here_s = std::min(here_s, step_s);
          if (step_s < best.step_s) best = {std::move(plan), &workload, micro_batch, recompute, step_s};
        }
        if (here_s > kHopelessCut * shortest_here_s) break;
        shortest_here_s = std::min(shortest_here_s, here_s);
      }
    }
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
    const FleetMemory memory = memory_of_fleet(study);
    return fmt::format(
        "a stage of one layer with its gradients and moments takes up to {}, the model {}; the "
        "largest device has {}, all together {}",
        show_bytes(largest_unit), show_bytes(workload.state_bytes()), show_bytes(memory.largest),
        show_bytes(memory.together));
  }

  std::string name_, summary_;
  bool plus_;
};

}  // namespace

std::unique_ptr<System> make_asteroid() {
  return std::make_unique<Asteroid>("asteroid",
                                    "pipelines of device groups by Asteroid's planner, with pipeline replay", false);
}

std::unique_ptr<System> make_asteroid_plus() {
  return std::make_unique<Asteroid>("asteroid-plus", "asteroid with half-layer stages and moments in shards", true);
}

}  // namespace cleave::rivals
