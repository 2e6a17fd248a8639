// cleave and cleave-paper: the product itself, through the scheduler and the simulated fleet that `train` uses too.
//
// cleave-paper is the same system with the published decomposition of a step (published_graph.hpp) and the published
// scheme of cutting (plan::Partition::paper).
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/stage_bound.hpp"
#include "cleave/rivals/system.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/quorum_fleet.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "placement.hpp"
#include "published_graph.hpp"

namespace cleave::rivals {

namespace {

struct Outcome {
  sched::StepReport first;           ///< of the first step
  Seconds time, recovery, planning;  ///< of all steps
  Joules energy;
  Seconds kernels;  ///< of the server's processor, in all steps
  std::vector<sched::Usage> usage;
  std::vector<StepFigures> steps;
  std::vector<std::pair<std::string, sched::Loss>> losses;
};

class Cleave final : public System {
 public:
  Cleave(std::string name, std::string summary, bool published)
      : name_(std::move(name)), summary_(std::move(summary)), published_(published) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string summary() const override { return summary_; }
  [[nodiscard]] bool uses_peer_links() const override { return false; }

 private:
  void carry_out(const StudyInput& study, const std::function<Seconds()>& elapsed,
                 SystemReport& report) const override {
    try {
      const sched::LayoutChoice choice = choose(study);
      report.planning = elapsed();
      const model::StepGraph graph = graph_of(study, choice.row_groups);
      const Outcome outcome = run(study, graph, choice, study.churn, study.steps, true);
      fill(study, graph, choice, outcome, report);
      if (study.churn.empty() && study.loss.devices > 0) {
        const Outcome disturbed = run(study, graph, choice, loss_trace(study, outcome), 1, false);
        report.recovery = std::max(disturbed.time - outcome.first.time, Seconds(0));
        if (choice.stages) report.figures.emplace_back("server_sums", static_cast<double>(disturbed.first.server_sums));
        report.losses = choice.stages ? disturbed.losses : compared(disturbed.losses, outcome.first, disturbed.first);
      }
    } catch (const InputError& error) {
      report.feasible = false;
      report.why = error.what();
    }
  }

  [[nodiscard]] sched::LayoutChoice choose(const StudyInput& study) const {
    if (published_) return {};
    // Stages do not check answers here.
    const bool honest = std::ranges::none_of(
        study.churn, [](const fleet::ChurnEvent& event) { return event.kind == fleet::ChurnKind::faulty; });
    if (!honest && study.layout.layout == sched::Layout::stages)
      throw InputError("a step in stages does not outlive faulty devices", "plan.layout: tiles");
    sched::StepSpec tiles = study;
    tiles.layout.layout = sched::Layout::tiles;
    if (!honest) return sched::choose_layout(tiles);
    sched::LayoutChoice choice = sched::choose_layout(study);
    if (study.layout.layout != sched::Layout::automatic || study.layout.as_trained || !choice.stages ||
        (study.churn.empty() && study.loss.devices == 0))
      return choice;
    // Losses and slow devices cost stages and tiles different times, so both are run with them. A step in stages may
    // not end at all, where weights find no room. Tiles are run only if they may be quicker: their estimate is below
    // any step of theirs, disturbed or not.
    const std::optional<Seconds> time = disturbed_time(study, choice);
    if (time && (study.churn.empty() || *time < sched::tile_estimate(study))) return choice;
    if (!time) return sched::choose_layout(tiles);
    const std::optional<sched::LayoutChoice> other = sched::tiles_within(study, *time);
    const std::optional<Seconds> in_tiles = other ? disturbed_time(study, *other) : std::nullopt;
    return in_tiles && *in_tiles < *time ? *other : choice;
  }

  // Of a step in the mean, under the study's churn or losses; none where they leave no room to go on.
  [[nodiscard]] std::optional<Seconds> disturbed_time(const StudyInput& study,
                                                      const sched::LayoutChoice& choice) const {
    const model::StepGraph graph = graph_of(study, choice.row_groups);
    try {
      const Outcome outcome = run(study, graph, choice, study.churn, study.steps, false);
      if (!study.churn.empty()) return outcome.time / static_cast<double>(study.steps);
      return run(study, graph, choice, loss_trace(study, outcome), 1, false).time;
    } catch (const InputError&) { return std::nullopt; }
  }

  [[nodiscard]] model::StepGraph graph_of(const StudyInput& study, std::int64_t row_groups) const {
    model::StepGraph graph = model::build_step(study.model, sched::graph_options(study, row_groups));
    return published_ ? publish(graph) : graph;
  }

  [[nodiscard]] sched::SchedulerOptions scheduling(const StudyInput& study) const {
    sched::SchedulerOptions options = sched::scheduler_options(study);
    if (published_) options.plan.partition = plan::Partition::paper;
    return options;
  }

  [[nodiscard]] Outcome run(const StudyInput& study, const model::StepGraph& graph, const sched::LayoutChoice& choice,
                            const fleet::ChurnTrace& churn, std::int64_t steps, bool watched) const {
    sched::SimulatedFleet fleet(study.devices, study.server(), study.wire, churn, study.seed);
    if (watched) fleet.set_observer(study.observer);
    std::function<sched::StepReport()> run_step;
    std::optional<sched::QuorumFleet> quorum;
    std::unique_ptr<sched::Scheduler> tiles;
    std::unique_ptr<sched::StageScheduler> stages;
    if (choice.stages) {
      stages =
          std::make_unique<sched::StageScheduler>(fleet, graph, *choice.stages, sched::stage_scheduler_options(study));
      run_step = [&] { return stages->run(); };
    } else {
      if (study.paired_in_tiles() > 0 && !published_) quorum.emplace(fleet, sched::quorum_options(study));
      tiles =
          std::make_unique<sched::Scheduler>(quorum ? static_cast<sched::Fleet&>(*quorum) : fleet, scheduling(study));
      run_step = [&] {
        const sched::QuorumTotals before = quorum ? quorum->totals() : sched::QuorumTotals{};
        sched::StepReport report = tiles->run(graph);
        if (quorum) add(report, difference(quorum->totals(), before));
        return report;
      };
    }
    Outcome outcome;
    for (std::int64_t step = 0; step < steps; ++step) {
      if (watched && study.step_begins) study.step_begins(step);
      sched::StepReport report = run_step();
      if (watched && study.step_done) study.step_done(report, fleet.usage());
      outcome.time += report.time;
      outcome.recovery += report.recovery;
      outcome.planning += report.planning;
      outcome.energy += report.energy;
      outcome.steps.push_back({.time = report.time,
                               .recovery = report.recovery,
                               .planning = report.planning,
                               .present = std::ssize(fleet.devices()),
                               .devices = report.devices,
                               .tasklets = report.tasklets,
                               .lost = report.lost,
                               .redone = report.redone,
                               .copies = report.copies,
                               .late = report.late,
                               .server_sums = report.server_sums,
                               .witnesses = report.witnesses});
      for (const sched::Loss& loss : report.losses)
        outcome.losses.emplace_back(choice.stages ? loss.name : graph.operation(loss.op).type, loss);
      if (watched && study.progress) study.progress(fmt::format("step {} of {}", step + 1, steps));
      if (step == 0) {
        outcome.first = std::move(report);
        outcome.usage.assign(fleet.usage().begin(), fleet.usage().end());
      }
    }
    outcome.kernels = fleet.server_usage();
    return outcome;
  }

  // What losses added to their operations, by the same operations in the undisturbed step.
  static std::vector<std::pair<std::string, sched::Loss>> compared(
      std::vector<std::pair<std::string, sched::Loss>> losses, const sched::StepReport& undisturbed,
      const sched::StepReport& disturbed) {
    const auto timing_of = [](const sched::StepReport& report, OpId op) {
      return *std::ranges::find(report.operations, op, &sched::OperationTiming::op);
    };
    for (auto& [type, loss] : losses) {
      const sched::OperationTiming before = timing_of(undisturbed, loss.op), after = timing_of(disturbed, loss.op);
      loss.operation = before.end - before.start;
      loss.added = std::max(Seconds(0), after.end - before.end);
    }
    return losses;
  }

  // The victims fall silent at once and are missed after the time of detection.
  static fleet::ChurnTrace loss_trace(const StudyInput& study, const Outcome& undisturbed) {
    std::vector<bool> used;
    for (const sched::Usage& usage : undisturbed.usage) used.push_back(usage.streams > 0);
    const Seconds at = undisturbed.first.time * study.loss.progress;
    fleet::ChurnTrace trace;
    for (const fleet::ChurnKind kind : {fleet::ChurnKind::hang, fleet::ChurnKind::leave}) {
      for (const std::size_t victim : choose_victims(study, used)) {
        const bool missed = kind == fleet::ChurnKind::leave;
        trace.push_back({missed ? at + study.detection : at, study.devices[victim].id, kind, 1.0});
      }
    }
    return trace;
  }

  static std::string describe(const plan::StagePlan& plan) {
    std::int64_t replicas = 0;
    for (const plan::Stage& stage : plan.stages) replicas += std::ssize(stage.replicas);
    const auto tiles = std::ranges::count(plan.stages, true, &plan::Stage::tiles);
    return fmt::format("{} stages{}{}, {} replicas, {} owners of gradients, chunks of {} tokens", plan.stages.size(),
                       plan.rounds() > 1 ? fmt::format(" in {} rounds", plan.rounds()) : "",
                       tiles > 0 ? fmt::format(", {} of them in tiles", tiles) : "", replicas, plan.owners.size(),
                       plan.chunk);
  }

  void fill(const StudyInput& study, const model::StepGraph& graph, const sched::LayoutChoice& choice,
            const Outcome& outcome, SystemReport& report) const {
    const auto steps = static_cast<double>(study.steps);
    report.devices_used = outcome.first.devices;
    report.step = outcome.time / steps;
    const std::vector<plan::DeviceState> idle = sched::idle_devices(study.devices);
    report.floor = sched::step_floor(study, idle);
    if (!published_) {
      if (choice.stages) {
        report.lower_bound =
            plan::stage_lower_bound(plan::stage_work_of(graph, study.wire), *choice.stages, study.devices,
                                    study.server(), plan::server_share(graph, study.server()));
        report.layout = describe(*choice.stages);
        report.stages = choice.stages;
        report.figures = {{"forecast_s", choice.stages->forecast.value()}};
      } else {
        report.layout = fmt::format("tiles, {} row group{}", choice.row_groups, choice.row_groups == 1 ? "" : "s");
      }
    }
    if (!choice.stages) report.lower_bound = sched::step_lower_bound(graph, idle, scheduling(study));
    if (!published_) report.lower_bound = std::max(report.lower_bound, report.floor);  // it holds for any layout
    for (const sched::Usage& used : outcome.usage) {
      report.compute = std::max(report.compute, used.compute);
      report.device_bytes_down_max = std::max(report.device_bytes_down_max, used.bytes_down);
      report.device_memory_max = std::max(report.device_memory_max, used.memory_peak);
    }
    if (published_) {
      const PublishedSums sums = sum_operations(graph, idle, scheduling(study));
      report.figures = {{"operations_s", sums.cut.value()}, {"whole_instances_s", sums.whole.value()}};
    }
    report.bytes_down = outcome.first.bytes_down;
    report.bytes_up = outcome.first.bytes_up;
    report.server_out = report.bytes_down / study.server().nic_out;
    report.server_in = report.bytes_up / study.server().nic_in;
    report.recovery = outcome.recovery / steps;
    report.energy = outcome.energy / steps;
    report.server_kernels = outcome.kernels / steps;
    report.planning += outcome.planning;
    report.losses = outcome.losses;
    if (study.steps > 1) report.steps = outcome.steps;
  }

  std::string name_, summary_;
  bool published_;
};

}  // namespace

std::unique_ptr<System> make_cleave() {
  return std::make_unique<Cleave>("cleave", "tasklets of every operation over all devices, state on the server", false);
}

std::unique_ptr<System> make_cleave_paper() {
  return std::make_unique<Cleave>("cleave-paper", "the published decomposition and scheme of cutting, same engine",
                                  true);
}

}  // namespace cleave::rivals
