// Forecasts first, rehearsals where forecasts do not settle it. A rehearsal ends as soon as it cannot be the quickest.
#include "cleave/sched/layout_choice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/plan/stage_cost.hpp"
#include "cleave/sched/observer.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "stages/stage_planner.hpp"

namespace cleave::sched {

namespace {

constexpr double kTrustedMargin =
    1.25;                         // stages are trusted without a rehearsal if this x their forecast is below the tiles'
constexpr double kOverlap = 0.6;  // share of the time of a chain of operations that is left, since some overlap
constexpr std::int64_t kRowGroups[] = {1, 2, 4, 8};  // numbers of row groups that are tried

// A lower bound of the end of a step in tiles while it is rehearsed. The results of operations that have not begun are
// still to be sent, however they are cut into blocks, and all uplinks together carry no more than the sum of their
// rates.
class Outlook final : public Observer {
 public:
  Outlook(const model::StepGraph& graph, const StepSpec& spec, std::span<const fleet::DeviceProfile> devices)
      : begun_(graph.operations.size(), false) {
    for (const fleet::DeviceProfile& device : devices) uplinks_ += device.uplink.value();
    uplinks_ = std::min(uplinks_, spec.server().nic_in.value());
    for (const model::Operation& op : graph.operations) {
      Bytes results{0};
      if (model::runs_on_devices(op.kind)) results = plan::volume_of(plan::work_of(op, spec.wire)).up;
      results_.push_back(results);
      to_come_ += results;
    }
  }
  [[nodiscard]] Seconds earliest_end(Seconds now) const {
    return uplinks_ > 0 ? now + Seconds(static_cast<double>(to_come_.value()) / uplinks_) : now;
  }

  void begin(const model::StepGraph& /*graph*/, Seconds /*at*/) override {}
  [[nodiscard]] bool wants_spans() const override { return false; }
  void span(const Span& /*span*/) override {}
  void submitted(const Tasklet& tasklet) override {
    const auto op = static_cast<std::size_t>(tasklet.op.value);
    if (begun_[op] || tasklet.stays_on_device()) return;
    begun_[op] = true;
    to_come_ -= results_[op];
  }
  void settled(TaskletId /*tasklet*/, Seconds /*at*/, bool /*lost*/) override {}
  void changed(DeviceId /*device*/, DeviceChange /*change*/, Seconds /*at*/, double /*factor*/) override {}

 private:
  double uplinks_ = 0;
  std::vector<Bytes> results_;  // of each operation
  std::vector<bool> begun_;
  Bytes to_come_;
};

class Chooser {
 public:
  explicit Chooser(const StepSpec& spec) : spec_(spec), devices_(spec.devices) {
    for (fleet::DeviceProfile& device : devices_) device = fleet::without_jitter(device);
  }

  LayoutChoice choose() {
    const LayoutRequest& request = spec_.layout;
    const std::vector<std::int64_t> groups = row_groups();
    LayoutChoice stages{Layout::stages, 1, {}};
    // Pieces are looked for only where stages are in question: not every graph can be cut into pieces.
    std::optional<model::StepGraph> step;
    std::optional<stages::StagePlanner> planner;
    std::optional<stages::StagePlanner::Found> quickest;
    if (request.layout == Layout::stages || (request.layout != Layout::tiles && plain())) {
      step.emplace(graph(1));
      planner.emplace(*step, stage_scheduler_options(spec_));
      quickest = planner->quickest(devices_, {});
    }
    if (quickest) stages.stages = quickest->plan;
    if (request.layout == Layout::stages) {
      if (!quickest)  // says why there are none
        stages.stages =
            plan::plan_stages(plan::stage_work_of(*step, spec_.wire), devices_, stage_scheduler_options(spec_).stages);
      return stages;
    }
    if (stages.stages && stages.stages->forecast * kTrustedMargin < tile_estimate(*step)) return stages;
    LayoutChoice best{Layout::tiles, groups.front(), {}};
    if (groups.size() == 1 && !stages.stages) return best;
    Seconds least(std::numeric_limits<double>::infinity());
    if (stages.stages) {
      least = quickest->time ? *quickest->time : *planner->rehearse(*stages.stages, devices_, least);
      best = stages;
    }
    return quickest_tiles(least).value_or(best);
  }

  std::optional<LayoutChoice> quickest_tiles(Seconds limit) const {
    std::optional<LayoutChoice> best;
    // Many groups first: they are the quickest as a rule, and the others then need not be rehearsed to their ends.
    for (const std::int64_t count : row_groups() | std::views::reverse) {
      const std::optional<Seconds> time = rehearse_tiles(count, limit);
      if (!time) continue;
      limit = *time;
      best = {Layout::tiles, count, {}};
    }
    return best;
  }

  [[nodiscard]] Seconds estimate() const { return tile_estimate(graph(1)); }

 private:
  std::vector<std::int64_t> row_groups() const {
    if (spec_.layout.row_groups != 0) return {spec_.layout.row_groups};
    std::vector<std::int64_t> groups;
    for (const std::int64_t count : kRowGroups) {
      if (count <= spec_.batch) groups.push_back(count);
    }
    return groups;
  }
  // Whether no baseline (square blocks, synchronous, ...) is asked for: baselines are in tiles and stay so.
  bool plain() const {
    return spec_.plan.partition == plan::Partition::automatic && spec_.asynchronous &&
           spec_.plan.keep_columns != plan::KeepColumns::always;
  }
  model::StepGraph graph(std::int64_t row_groups) const {
    return model::build_step(spec_.model, graph_options(spec_, row_groups));
  }
  // The time of a step in tiles, roughly: operations one after another, each over the whole fleet in square blocks, on
  // links of the mean rate, times kOverlap; at least the time of all results over all uplinks. As a rule it is below
  // simulated steps, so it may serve to skip the rehearsal of tiles.
  Seconds tile_estimate(const model::StepGraph& step) const {
    double up = 0, down = 0, flops = 0, results_s = 0, chain_s = 0;
    for (const fleet::DeviceProfile& device : devices_) {
      up += device.uplink.value();
      down += device.downlink.value();
      flops += device.compute.value();
    }
    const double count = static_cast<double>(devices_.size()), size = static_cast<double>(size_of(spec_.wire));
    for (const model::Operation& op : step.operations) {
      if (op.kind != model::OpKind::gemm) continue;
      const double area = static_cast<double>(op.gemm.m) * static_cast<double>(op.gemm.n);
      const double strips = 2 * std::sqrt(area * count) * static_cast<double>(op.gemm.k) * size;
      const double results = area * size / up;
      results_s += results;
      chain_s += std::max({strips / down, results, model::flops_of(op).value() / flops});
    }
    return Seconds(std::max(results_s, kOverlap * chain_s));
  }
  // None where it takes longer than `limit`.
  std::optional<Seconds> rehearse_tiles(std::int64_t row_groups, Seconds limit) const {
    const model::StepGraph step = graph(row_groups);
    Outlook outlook(step, spec_, devices_);  // outlives the fleet that it observes
    SimulatedFleet fleet(devices_, spec_.server(), spec_.wire);
    fleet.set_observer(&outlook);
    std::optional<QuorumFleet> quorum;
    if (spec_.paired_in_tiles() > 0) quorum.emplace(fleet, quorum_options(spec_));
    try {
      const Seconds time = Scheduler(quorum ? static_cast<Fleet&>(*quorum) : fleet, scheduler_options(spec_))
                               .run(step, [&] { return outlook.earliest_end(fleet.now()) <= limit; })
                               .time;
      return time <= limit ? std::optional(time) : std::nullopt;
    } catch (const Interrupted&) { return std::nullopt; }
  }
  const StepSpec& spec_;
  std::vector<fleet::DeviceProfile> devices_;  // messages are late by the mean of their jitter
};

}  // namespace

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::automatic: return "auto";
    case Layout::tiles: return "tiles";
    case Layout::stages: return "stages";
  }
  return "?";
}

LayoutChoice choose_layout(const StepSpec& spec) { return Chooser(spec).choose(); }

std::optional<LayoutChoice> tiles_within(const StepSpec& spec, Seconds limit) {
  return Chooser(spec).quickest_tiles(limit);
}

Seconds tile_estimate(const StepSpec& spec) { return Chooser(spec).estimate(); }

LayoutChoice layout_without_emulation(const StepSpec& spec) {
  const auto tiles = [&] {
    StepSpec in_tiles = spec;
    in_tiles.layout.layout = Layout::tiles;
    return choose_layout(in_tiles);
  };
  if (spec.layout.layout == Layout::tiles) return tiles();
  const plan::StageWork work = plan::stage_work_of(model::build_step(spec.model, graph_options(spec, 1)), spec.wire);
  plan::StageOptions options = stage_scheduler_options(spec).stages;
  options.leave_out = false;  // without emulation, the declared rates say nothing about the devices
  if (spec.layout.layout == Layout::stages) {
    return {Layout::stages, 1, plan::plan_stages(work, spec.devices, options)};
  }
  const auto devices = std::ssize(spec.devices);
  if (devices == 0 || spec.batch < 2 * devices) return tiles();
  std::optional<plan::StagePlan> plan = plan::find_stages(work, spec.devices, options);
  if (!plan || plan->head_parts > 1) return tiles();
  const std::int64_t share = (spec.batch + devices - 1) / devices;
  for (const plan::Stage& stage : plan->stages) {
    const bool backward = plan::StageCost(work, stage.first, stage.end, plan->chunk).backward();
    if (std::ssize(stage.replicas) < devices || (backward && stage.kept_slots() < share)) return tiles();
  }
  return {Layout::stages, 1, std::move(plan)};
}

StageSchedulerOptions stage_scheduler_options(const StepSpec& spec) {
  StageSchedulerOptions options{.stages = {}, .wire = spec.wire, .tiles = scheduler_options(spec), .rehearse = true};
  if (spec.paired > 0) {
    options.quorum = quorum_options(spec);
    options.stages.tiles = false;  // pairs of tasklets in tiles are drawn by a fleet of their own
  }
  options.stages.server = spec.server();
  options.stages.chunk = spec.layout.chunk_tokens;
  options.stages.owners = spec.layout.owners;
  options.stages.preload = spec.layout.preload;
  options.stages.rounds = spec.layout.rounds;
  options.server_sums = spec.layout.server_sums ? ServerSums::if_sooner : ServerSums::never;
  return options;
}

}  // namespace cleave::sched
