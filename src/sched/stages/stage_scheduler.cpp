// The interface of stages/stage_run.hpp: a step is begun, run to its end and reported.
#include "cleave/sched/stage_scheduler.hpp"

#include <algorithm>
#include <utility>

#include "stages/stage_run.hpp"

namespace cleave::sched {

using namespace stages;

struct StageScheduler::Impl final : StageRun {
  using StageRun::StageRun;
};

StageScheduler::StageScheduler(Fleet& fleet, const model::StepGraph& graph, StageSchedulerOptions options)
    : StageScheduler(fleet, graph,
                     plan::plan_stages(plan::stage_work_of(graph, options.wire), profiles_of(fleet), options.stages),
                     options) {}
StageScheduler::StageScheduler(Fleet& fleet, const model::StepGraph& graph, plan::StagePlan plan,
                               StageSchedulerOptions options)
    : impl_(std::make_unique<Impl>(fleet, graph, std::move(plan), std::move(options))) {}
StageScheduler::~StageScheduler() = default;

const plan::StagePlan& StageScheduler::plan() const { return impl_->plan; }
const StageTally& StageScheduler::tally() const { return impl_->tally; }
void StageScheduler::plan_anew() { impl_->planned_all_trusted = false; }
std::vector<DeviceId> StageScheduler::distrusted() const {
  return {impl_->distrusted.begin(), impl_->distrusted.end()};
}
void StageScheduler::distrust(DeviceId device) {
  if (impl_->distrusted.insert(device).second) impl_->planned_all_trusted = false;
}
TaskletId StageScheduler::next_tasklet() const { return TaskletId(impl_->next_id); }
void StageScheduler::number_from(TaskletId next) { impl_->next_id = next.value; }

StepReport StageScheduler::run(const KeepGoing& keep_going) {
  StageRun& self = *impl_;
  const Seconds start = self.fleet.now();
  self.run(keep_going);
  for (const auto& [load, device] : self.loads) {
    if (self.book(device).present) self.fleet.release(load, DeviceId(device));
  }
  self.report.time = self.fleet.now() - start;
  self.progress.weigh_losses();
  self.report.devices = std::ranges::count(self.device, true, &DeviceBook::contributed);
  self.report.energy += energy_since(self.fleet, self.used_before, self.report.time);
  return self.report;
}

StepReport StageScheduler::abandon() {
  StageRun& self = *impl_;
  self.give_up();
  self.report.time = self.fleet.now() - self.began;
  self.report.energy += energy_since(self.fleet, self.used_before, self.report.time);
  return self.report;
}

}  // namespace cleave::sched
