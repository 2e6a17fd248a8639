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
  const std::vector<Usage> before(self.fleet.usage().begin(), self.fleet.usage().end());
  self.run(keep_going);
  for (const auto& [load, device] : self.loads) {
    if (self.book(device).present) self.fleet.release(load, DeviceId(device));
  }
  self.report.time = self.fleet.now() - start;
  self.progress.weigh_losses();
  self.report.devices = std::ranges::count(self.device, true, &DeviceBook::contributed);
  const std::span<const Usage> after = self.fleet.usage();
  for (const plan::DeviceState& state : self.fleet.devices()) {
    const auto i = static_cast<std::size_t>(state.profile.id.value);
    Usage used = after[i];
    used.down -= before[i].down;
    used.compute -= before[i].compute;
    used.up -= before[i].up;
    self.report.energy += energy_of(state.profile, used, self.report.time);
  }
  return self.report;
}

StepReport StageScheduler::abandon() {
  StageRun& self = *impl_;
  self.give_up();
  self.report.time = self.fleet.now() - self.began;
  return self.report;
}

}  // namespace cleave::sched
