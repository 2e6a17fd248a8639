// Forecasts first, rehearsals where forecasts do not settle it.
#include "cleave/sched/layout_choice.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"

namespace cleave::sched {

namespace {

constexpr double kMargin = 1.25;                     // of a forecast, before it is trusted without a rehearsal
constexpr double kOverlap = 0.6;                     // of operations that run beside others
constexpr std::int64_t kRowGroups[] = {1, 2, 4, 8};  // that are tried

class Chooser {
 public:
  explicit Chooser(const StepSpec& spec) : spec_(spec), devices_(spec.devices) {
    for (fleet::DeviceProfile& device : devices_) device.jitter = Seconds(0);
  }

  LayoutChoice choose() {
    const LayoutRequest& request = spec_.layout;
    std::vector<std::int64_t> groups{request.row_groups};
    if (request.row_groups == 0) {
      groups.clear();
      for (const std::int64_t count : kRowGroups) {
        if (count <= spec_.batch) groups.push_back(count);
      }
    }
    LayoutChoice stages{Layout::stages, 1, {}};
    const bool may_stage = request.layout != Layout::tiles && plain();
    if (request.layout == Layout::stages || may_stage) {
      try {
        stages.stages = plan::plan_stages(work(), devices_, stage_scheduler_options(spec_).stages);
      } catch (const InputError&) {
        if (request.layout == Layout::stages) throw;
      }
    }
    if (request.layout == Layout::stages) return stages;
    if (stages.stages && stages.stages->forecast * kMargin < tile_estimate()) return stages;
    LayoutChoice best{Layout::tiles, groups.front(), {}};
    if (groups.size() == 1 && !stages.stages) return best;
    Seconds least = rehearse_tiles(groups.front());
    for (std::size_t i = 1; i < groups.size(); ++i) {
      const Seconds time = rehearse_tiles(groups[i]);
      if (time < least) {
        least = time;
        best.row_groups = groups[i];
      }
    }
    return stages.stages && rehearse_stages(*stages.stages) < least ? stages : best;
  }

 private:
  // Baseline ways of cutting are asked for by name, and are not replaced.
  bool plain() const {
    return spec_.plan.partition == plan::Partition::automatic && spec_.asynchronous &&
           spec_.plan.keep_columns != plan::KeepColumns::always;
  }
  model::StepGraph graph(std::int64_t row_groups) const {
    return model::build_step(spec_.model, graph_options(spec_, row_groups));
  }
  plan::StageWork work() const { return plan::stage_work_of(graph(1), spec_.wire); }
  // Operations one after another over the whole fleet in square blocks, on links of the mean rate, of which the
  // scheduler overlaps some; at least every result over all uplinks. Lower than simulated steps as a rule, so it is no
  // more than a reason not to rehearse tiles.
  Seconds tile_estimate() const {
    double up = 0, down = 0, flops = 0, results_s = 0, chain_s = 0;
    for (const fleet::DeviceProfile& device : devices_) {
      up += device.uplink.value();
      down += device.downlink.value();
      flops += device.compute.value();
    }
    const double count = static_cast<double>(devices_.size()), size = static_cast<double>(size_of(spec_.wire));
    for (const model::Operation& op : graph(1).operations) {
      if (op.kind != model::OpKind::gemm) continue;
      const double area = static_cast<double>(op.gemm.m) * static_cast<double>(op.gemm.n);
      const double strips = 2 * std::sqrt(area * count) * static_cast<double>(op.gemm.k) * size;
      const double results = area * size / up;
      results_s += results;
      chain_s += std::max({strips / down, results, model::flops_of(op).value() / flops});
    }
    return Seconds(std::max(results_s, kOverlap * chain_s));
  }
  Seconds rehearse_tiles(std::int64_t row_groups) const {
    const model::StepGraph step = graph(row_groups);
    SimulatedFleet fleet(devices_, spec_.server(), spec_.wire);
    return Scheduler(fleet, scheduler_options(spec_)).run(step).time;
  }
  Seconds rehearse_stages(const plan::StagePlan& plan) const {
    const model::StepGraph step = graph(1);
    SimulatedFleet fleet(devices_, spec_.server(), spec_.wire);
    return StageScheduler(fleet, step, plan, stage_scheduler_options(spec_)).run().time;
  }

  const StepSpec& spec_;
  std::vector<fleet::DeviceProfile> devices_;  // without jitter
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

StageSchedulerOptions stage_scheduler_options(const StepSpec& spec) {
  StageSchedulerOptions options{.stages = {}, .wire = spec.wire};
  options.stages.server = spec.server();
  return options;
}

}  // namespace cleave::sched
