// Stages that run in tiles: what the scheduler of tiles is told, and what other stages are told when it is done.
#include "stages/run_tiles.hpp"

#include <functional>
#include <utility>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

OperationSet StagesInTiles::operations(std::int32_t s, bool back) const {
  const plan::Stage& of = run_.plan.stages[static_cast<std::size_t>(s)];
  OperationSet part(run_.graph, false);
  for (const model::Operation* const operation : plan::operations_in_tiles(run_.work, of.first, of.end, back))
    part.add(operation->id);
  return part;
}

void StagesInTiles::begin() {
  stage_ = run_.lowest_open();
  part_ = operations(stage_, run_.goes_back());
  if (!scheduler_) scheduler_.emplace(run_.fleet, run_.options.tiles);
  for (const DeviceId liar : run_.distrusted) scheduler_->distrust(liar);
  run_.fleet.begin_tiles(stage_, run_.goes_back());
  scheduler_->begin_part(run_.graph, part_);
  run_.progress.work_sent(stage_);
}

// Both schedulers number tasklets from one sequence of numbers.
void StagesInTiles::with_scheduler(const std::function<void(Scheduler&)>& act) {
  scheduler_->number_from(TaskletId(run_.next_id));
  act(*scheduler_);
  run_.next_id = scheduler_->next_tasklet().value;
}

void StagesInTiles::advance() {
  if (!under_way()) return;
  if (!run_.recovery.is_pending()) with_scheduler([](Scheduler& scheduler) { scheduler.advance_part(); });
  if (scheduler_->part_is_complete()) done();
}

bool StagesInTiles::take(const Event& event) {
  if (!under_way()) return false;
  switch (event.kind) {
    case EventKind::kernel_done:
      if (!part_.contains(event.op)) return false;
      break;
    case EventKind::timeout:
      if (event.at < scheduler_->part_deadline()) return false;
      break;
    case EventKind::left: scheduler_->take(event); return false;
    case EventKind::joined: return false;
    case EventKind::done:
    case EventKind::late:
    case EventKind::lost:
    case EventKind::rejected:
      if (!scheduler_->waits_for(event.tasklet)) return false;
      break;
  }
  with_scheduler([&](Scheduler& scheduler) { scheduler.take(event); });
  if (event.kind == EventKind::done && event.device != kServerDevice)
    run_.book(static_cast<std::int32_t>(event.device.value)).contributed = true;
  if (event.kind == EventKind::rejected) {
    run_.asks_to_go_on = true;
    run_.recovery.give_up_on(static_cast<std::int32_t>(event.device.value), StageRecovery::Then::is_excluded);
  }
  return true;
}

// All sequences have passed the stage at once: its boundaries are there whole.
void StagesInTiles::done() {
  const std::int32_t s = std::exchange(stage_, kNobody);
  add_part(run_.report, scheduler_->end_part());
  run_.progress.work_done(s);
  run_.fleet.end_tiles(s, run_.goes_back());
  const auto all = static_cast<std::int32_t>(run_.chunks);
  const auto index = static_cast<std::size_t>(s);
  (run_.goes_back() ? run_.tally.backward : run_.tally.forward)[index] = run_.batch * run_.chunks;
  if (run_.goes_back())
    run_.tally.summed[index] = run_.at(s).cost.gradient_elements() * static_cast<double>(run_.batch);
  for (std::int64_t q = 0; q < run_.batch; ++q)
    run_.visit(run_.goes_back() ? run_.backward : run_.forward, s, q).done = all;
  if (!run_.goes_back()) {
    run_.through = run_.batch;
    for (std::int32_t next = s + 1; next <= (s + 1 < run_.head ? s + 1 : run_.top()); ++next) {
      for (std::int64_t q = 0; q < run_.batch; ++q) run_.visit(run_.forward, next, q).arrived = all;
    }
    return;
  }
  run_.at(s).backward_left = 0;
  run_.norms_done(s);
  run_.gradient_in(s);
  if (s == run_.lowest) return run_.bottom_done();
  for (std::int64_t q = 0; q < run_.batch; ++q) run_.visit(run_.backward, s - 1, q).arrived = all;
}

std::int64_t StagesInTiles::give_up() {
  if (!under_way()) return 0;
  stage_ = kNobody;
  const std::int64_t kernels = scheduler_->abandon_part();
  add_part(run_.report, scheduler_->end_part());
  return kernels;
}

}  // namespace cleave::sched::stages
