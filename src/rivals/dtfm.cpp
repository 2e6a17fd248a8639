// dtfm: decentralised training of foundation models in heterogeneous environments (Yuan et al. 2022).
//
// Its scheduler places devices in a grid of stages x pipelines; the grid then runs as pipelines with data parallelism
// under our accounting. The paper fixes the number of stages by its task; here every number is tried with a quick
// layout, and its scheduler lays out the two best. docs/rivals.md says what else was assumed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "dtfm_search.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

/// Shapes of the grid that get its full scheduler.
constexpr std::size_t kShapesSearched = 4;
/// Shapes that cannot come this close to the shortest step are not costed.
constexpr double kHopelessGrid = 1.1;

// stages x pipelines over the best-connected devices that can hold any stage.
struct Shape {
  std::size_t stages = 1, pipelines = 1;
  std::vector<std::size_t> members;  // positions in the study, best link first
};

struct Candidate {
  Shape shape;
  Grid grid;  // [pipeline][stage]
  PipelineSchedule schedule;
  double step_s = std::numeric_limits<double>::infinity();
  double objective_s = 0;  ///< of the partition that it was made from; 0: a quick layout
};

// Memory that every device of a grid with these stages must have: one sequence in flight, layers computed again.
double least_memory(const Workload& workload, const std::vector<std::size_t>& cuts, std::int64_t sharing) {
  double most = 0;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    most = std::max(most, stage_memory(workload, cuts[s], cuts[s + 1], 1, true, sharing).with(1));
  }
  return most;
}

/// As published, or with what it would be granted today.
struct Variant {
  Granularity granularity = Granularity::layers;
  bool sharded = false;  ///< moments and master weights in shards over the devices of a stage
};

class DtfmSearch {
 public:
  DtfmSearch(const StudyInput& study, const Workload& workload, Variant variant)
      : study_(study),
        workload_(workload),
        variant_(variant),
        network_(study.devices, study.links),
        by_link_(by_link(study)) {}

  /// Every shape that fits, the shortest step of a quick layout first.
  std::vector<Candidate> rank_shapes() {
    std::vector<Candidate> ranked;
    double shortest_s = std::numeric_limits<double>::infinity();
    const std::size_t units = workload_.units.size();
    const auto wanted = static_cast<std::size_t>(study_.dtfm.stages);
    for (std::size_t stages = wanted ? wanted : 1; stages <= (wanted ? wanted : units); ++stages) {
      if (stages > units) break;
      const std::vector<std::size_t> cuts = cut_evenly(workload_, stages);
      const std::size_t mates = std::min(by_link_.size() / stages, static_cast<std::size_t>(workload_.batch));
      for (std::size_t pipelines = mates; pipelines > 0; pipelines = wanted ? 0 : fewer(pipelines)) {
        // With shards, fewer pipelines need more memory; without, any number needs the same.
        const std::int64_t sharing = sharing_for(pipelines);
        const double need = least_memory(workload_, cuts, sharing);
        if (need < least_need_) {
          least_need_ = need;
          least_stages_ = stages;
        }
        const std::vector<std::size_t> able = with_room(study_, by_link_, need);
        const std::size_t most = std::min(able.size() / stages, pipelines);
        if (most < pipelines) {
          if (variant_.sharded) continue;
          if (most == 0) break;
          pipelines = most;
        }
        Candidate candidate;
        candidate.shape = {
            stages, pipelines, {able.begin(), able.begin() + static_cast<std::ptrdiff_t>(stages * pipelines)}};
        candidate.schedule.cuts = cuts;
        candidate.schedule.sharing = sharing;
        Candidate best;
        for (Grid& grid : worth_trying(study_, quick_layout(candidate.shape))) {
          Candidate tried = candidate;
          tried.grid = std::move(grid);
          if (stages * pipelines == 1) tried.shape.members = tried.grid.front();
          if (PipelineGrid(study_, workload_, tried.grid, tried.schedule).least_s() > kHopelessGrid * shortest_s)
            continue;
          choose_schedule(tried);
          if (tried.step_s < best.step_s) best = std::move(tried);
        }
        shortest_s = std::min(shortest_s, best.step_s);
        if (std::isfinite(best.step_s)) ranked.push_back(std::move(best));
      }
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Candidate& a, const Candidate& b) { return a.step_s < b.step_s; });
    return ranked;
  }

  /// Lays the shape out by the scheduler; in `score` the best objective that it found.
  Candidate lay_out(const Candidate& quick, DtfmScore& score) {
    DtfmObjective objective = objective_of(quick.shape);
    DtfmSearchOptions options;
    options.population = study_.dtfm.population;
    options.trials = affordable_trials(objective.devices(), objective.stages(), study_.dtfm.trials);
    options.seed = study_.dtfm.seed;
    options.polish = study_.dtfm.polish && network_.measured();  // a star has no clusters to find
    if (study_.progress) {
      options.progress = [&](std::int64_t done, std::int64_t all, double best_s) {
        study_.progress(fmt::format("dtfm: {} stages x {} pipelines, trial {} of {}, objective {:.4g} s",
                                    quick.shape.stages, quick.shape.pipelines, done, all, best_s));
      };
    }
    const DtfmResult result = search_partition(objective, options);
    // The objective does not see our step, and the path has no direction: the best of all polished partitions in both
    // directions, and of the quick layout.
    Candidate best = quick;
    score = result.score;
    std::vector<Groups> partitions = result.others;
    partitions.insert(partitions.begin(), result.groups);
    for (const Groups& partition : partitions) {
      Grid grid = grid_of(objective.pipelines_of(partition), quick.shape);
      for (int direction = 0; direction < 2; ++direction) {
        Candidate candidate = quick;
        candidate.grid = grid;
        choose_schedule(candidate);
        if (candidate.step_s < best.step_s) {
          best = std::move(candidate);
          best.objective_s = objective.score(partition).total_s();
        }
        for (std::vector<std::size_t>& pipeline : grid) std::reverse(pipeline.begin(), pipeline.end());
      }
    }
    return best;
  }

  [[nodiscard]] std::string why_not() const {
    if (std::isinf(least_need_)) {
      return fmt::format("{} stages need as many devices and layers or halves of them; there are {} devices and {}",
                         study_.dtfm.stages, study_.devices.size(), workload_.units.size());
    }
    const auto able = std::count_if(study_.devices.begin(), study_.devices.end(), [&](const auto& device) {
      return static_cast<double>(device.memory.value()) >= least_need_;
    });
    return fmt::format(
        "a stage of at least one layer with its gradients and moments takes {} at {} stages; {} of "
        "{} devices have that (the largest {})",
        show_bytes(least_need_), least_stages_, able, study_.devices.size(),
        show_bytes(memory_of_fleet(study_).largest));
  }

 private:
  static Grid grid_of(const Groups& stages, const Shape& shape) {
    Grid grid(shape.pipelines);
    for (const std::vector<std::size_t>& stage : stages) {
      for (std::size_t r = 0; r < shape.pipelines; ++r) grid[r].push_back(shape.members[stage[r]]);
    }
    return grid;
  }

  DtfmObjective objective_of(const Shape& shape) const {
    const std::vector<std::size_t> cuts = cut_evenly(workload_, shape.stages);
    std::int64_t parameters = 0;
    for (std::size_t s = 0; s < shape.stages; ++s) {
      parameters = std::max(parameters, workload_.parameters(cuts[s], cuts[s + 1]));
    }
    const auto from_model = static_cast<double>(parameters * workload_.element);
    const double per_pipeline = static_cast<double>(workload_.batch) / static_cast<double>(shape.pipelines);
    const auto given = [](Bytes bytes, double otherwise) {
      return bytes.value() > 0 ? static_cast<double>(bytes.value()) : otherwise;
    };
    return {network_, shape.members, shape.stages, given(study_.dtfm.gradient, from_model),
            given(study_.dtfm.activation, per_pipeline * workload_.units.front().output_bytes)};
  }

  // Neighbours in the order of links share a stage; with measured pairs, a short search.
  Grid quick_layout(const Shape& shape) const {
    if (!study_.links.empty()) {
      DtfmObjective objective = objective_of(shape);
      const DtfmResult result =
          search_partition(objective, {.population = 20, .trials = 20, .seed = 0, .polish = false, .progress = {}});
      return grid_of(objective.pipelines_of(result.groups), shape);
    }
    Groups stages(shape.stages);
    for (std::size_t i = 0; i < shape.members.size(); ++i) stages[i / shape.pipelines].push_back(i);
    return grid_of(stages, shape);
  }

  // The micro-batch (powers of two) and whether to recompute that make the step shortest.
  void choose_schedule(Candidate& candidate) const {
    candidate.step_s = std::numeric_limits<double>::infinity();
    PipelineSchedule best = candidate.schedule;
    const std::int64_t share = (workload_.batch + static_cast<std::int64_t>(candidate.shape.pipelines) - 1) /
                               static_cast<std::int64_t>(candidate.shape.pipelines);
    for (const bool recompute : {false, true}) {
      double shortest = std::numeric_limits<double>::infinity();
      for (std::int64_t micro_batch = 1; micro_batch <= share; micro_batch *= 2) {
        PipelineSchedule schedule{candidate.schedule.cuts, micro_batch, recompute, candidate.schedule.sharing};
        const PipelineGrid grid(study_, workload_, candidate.grid, schedule);
        if (!grid.fits()) break;
        const double step_s = grid.step().time_s;
        if (step_s < candidate.step_s) {
          candidate.step_s = step_s;
          best = schedule;
        }
        if (step_s > 1.02 * shortest) break;  // larger ones only lengthen the ramps
        shortest = std::min(shortest, step_s);
      }
    }
    candidate.schedule = best;
  }

  [[nodiscard]] std::int64_t sharing_for(std::size_t pipelines) const {
    return variant_.sharded ? sharing_of(study_, pipelines) : 1;
  }

  const StudyInput& study_;
  const Workload& workload_;
  Variant variant_;
  Network network_;
  std::vector<std::size_t> by_link_;
  double least_need_ = std::numeric_limits<double>::infinity();
  std::size_t least_stages_ = 1;
};

class Dtfm final : public PlacedSystem {
 public:
  Dtfm(std::string name, std::string summary, Variant variant)
      : name_(std::move(name)), summary_(std::move(summary)), variant_(variant) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string summary() const override { return summary_; }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire, variant_.granularity);
    DtfmSearch planner(study, workload, variant_);
    const std::vector<Candidate> ranked = planner.rank_shapes();
    if (ranked.empty()) {
      report.why = planner.why_not();
      return {};
    }
    Candidate best;
    DtfmScore best_score;
    for (std::size_t i = 0; i < std::min(kShapesSearched, ranked.size()); ++i) {
      DtfmScore score;
      Candidate candidate = planner.lay_out(ranked[i], score);
      if (candidate.step_s >= best.step_s) continue;
      best = std::move(candidate);
      best_score = score;
    }
    std::string layout =
        fmt::format("{} stages x {} pipelines, micro-batches of {}{}", best.shape.stages, best.shape.pipelines,
                    best.schedule.micro_batch, best.schedule.recompute ? ", layers computed again" : "");
    report.figures = {{"objective_s", best_score.total_s()},
                      {"objective_data_parallel_s", best_score.data_parallel_s},
                      {"objective_pipeline_s", 2 * best_score.pipeline_s}};
    if (best.objective_s > 0) report.figures.emplace_back("layout_objective_s", best.objective_s);
    return one_layout(std::move(layout),
                      std::make_unique<PipelineGrid>(study, workload, std::move(best.grid), best.schedule));
  }

  std::string name_, summary_;
  Variant variant_;
};

}  // namespace

std::unique_ptr<System> make_dtfm() {
  return std::make_unique<Dtfm>("dtfm", "pipelines with data parallelism, placed by DTFM's evolutionary scheduler",
                                Variant{});
}

std::unique_ptr<System> make_dtfm_plus() {
  return std::make_unique<Dtfm>("dtfm-plus", "dtfm with half-layer stages and moments in shards",
                                Variant{Granularity::halves, true});
}

}  // namespace cleave::rivals
