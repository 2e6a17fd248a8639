// Stages that run in tiles (plan::Stage::tiles): the scheduler of tiles runs their operations, all sequences at once,
// forward and back in rounds of their own. What passes between them and the others are the boundaries at the server.
#include <functional>
#include <utility>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

OperationSet StageRun::operations_in_tiles(std::int32_t s, bool back) const {
  const plan::Stage& of = plan.stages[static_cast<std::size_t>(s)];
  OperationSet part(graph, false);
  for (const model::Operation* const operation : plan::operations_in_tiles(work, of.first, of.end, back))
    part.add(operation->id);
  return part;
}

void StageRun::begin_tiles() {
  tiled = lowest_open();
  tiled_part = operations_in_tiles(tiled, goes_back());
  if (!tiles) tiles.emplace(fleet, options.tiles);
  for (const DeviceId liar : distrusted) tiles->distrust(liar);
  fleet.begin_tiles(tiled, goes_back());
  tiles->begin_part(graph, tiled_part);
  Seconds& first = course.first_work[static_cast<std::size_t>(tiled)];
  if (first.value() < 0) first = fleet.now() - began;
}

// Numbers of tasklets go on from each other.
void StageRun::with_tiles(const std::function<void(Scheduler&)>& act) {
  tiles->number_from(TaskletId(next_id));
  act(*tiles);
  next_id = tiles->next_tasklet().value;
}

void StageRun::advance_tiles() {
  if (tiled < 0) return;
  if (missing.empty()) with_tiles([](Scheduler& scheduler) { scheduler.advance_part(); });
  if (tiles->part_is_complete()) tiles_done();
}

bool StageRun::take_in_tiles(const Event& event) {
  if (tiled < 0) return false;
  switch (event.kind) {
    case EventKind::kernel_done:
      if (!tiled_part.contains(event.op)) return false;
      break;
    case EventKind::timeout:
      if (event.at < tiles->part_deadline()) return false;
      break;
    case EventKind::left: tiles->take(event); return false;
    case EventKind::joined: return false;
    case EventKind::done:
    case EventKind::late:
    case EventKind::lost:
    case EventKind::rejected:
      if (!tiles->waits_for(event.tasklet)) return false;
      break;
  }
  with_tiles([&](Scheduler& scheduler) { scheduler.take(event); });
  if (event.kind == EventKind::done && event.device != kServerDevice)
    book(static_cast<std::int32_t>(event.device.value)).contributed = true;
  if (event.kind == EventKind::rejected) {
    asks_to_go_on = true;
    give_up_on(static_cast<std::int32_t>(event.device.value), Then::is_excluded);
  }
  return true;
}

// All sequences have passed the stage at once: its boundaries are there whole.
void StageRun::tiles_done() {
  const std::int32_t s = std::exchange(tiled, kNobody);
  add_part(report, tiles->end_part());
  course.last_work[static_cast<std::size_t>(s)] = fleet.now() - began;
  fleet.end_tiles(s, goes_back());
  const auto all = static_cast<std::int32_t>(chunks);
  const auto index = static_cast<std::size_t>(s);
  (goes_back() ? tally.backward : tally.forward)[index] = batch * chunks;
  if (goes_back()) tally.summed[index] = at(s).cost.gradient_elements() * static_cast<double>(batch);
  for (std::int64_t q = 0; q < batch; ++q) visit(goes_back() ? backward : forward, s, q).done = all;
  if (!goes_back()) {
    through = batch;
    for (std::int32_t next = s + 1; next <= (s + 1 < head ? s + 1 : top()); ++next) {
      for (std::int64_t q = 0; q < batch; ++q) visit(forward, next, q).arrived = all;
    }
    return;
  }
  at(s).backward_left = 0;
  norms_done(s);
  gradient_in(s);
  if (s == lowest) return bottom_done();
  for (std::int64_t q = 0; q < batch; ++q) visit(backward, s - 1, q).arrived = all;
}

std::int64_t StageRun::give_up_tiles() {
  if (tiled < 0) return 0;
  tiled = kNobody;
  const std::int64_t kernels = tiles->abandon_part();
  add_part(report, tiles->end_part());
  return kernels;
}

}  // namespace cleave::sched::stages
