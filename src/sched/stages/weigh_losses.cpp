// The step as it would be if nothing were lost: the same plan is run once more, on a SimulatedFleet of the devices that
// were there when the step began. While the step runs it says when sequences will have passed; afterwards, what losses
// cost. Stages overlap, so the step's own time is compared, not the sum of what its stages ended later.
#include <algorithm>
#include <vector>

#include "cleave/sched/simulated_fleet.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

constexpr std::int64_t kMarks = 512;  // of a step's chunks

// Devices by id up to the last of `there`, gaps filled with ones that are to be taken out.
std::vector<fleet::DeviceProfile> without_gaps(std::span<const fleet::DeviceProfile> there) {
  std::vector<fleet::DeviceProfile> all;
  for (const fleet::DeviceProfile& device : there) {
    while (std::ssize(all) < device.id.value) {
      all.push_back(device);
      all.back().id = DeviceId(std::ssize(all) - 1);
    }
    all.push_back(device);
  }
  return all;
}

}  // namespace

void StageRun::rehearse() {
  if (calm) return;
  const std::vector<fleet::DeviceProfile>& there = outgrown ? planned_with : at_begin;
  const std::vector<fleet::DeviceProfile> all = without_gaps(there);
  SimulatedFleet same(all, options.stages.server, options.wire);
  for (const fleet::DeviceProfile& one : all) {
    if (!std::ranges::binary_search(there, one.id, {}, &fleet::DeviceProfile::id)) same.remove_device(one.id);
  }
  StageSchedulerOptions how = options;
  how.rehearsal = true;
  StageRun undisturbed(same, graph, plan, how);
  undisturbed.run({});
  calm = std::make_unique<Course>(std::move(undisturbed.course));
  calm->end = same.now() - undisturbed.began;
}

void StageRun::note_chunk() {
  ++course.chunks;
  const std::int64_t back = passed_twice(top()) ? top() + 1 - lowest : top() - lowest;  // stages with a way back
  const std::int64_t all = (top() + 1 + back) * batch * chunks;
  while (std::ssize(course.pace) * all <= kMarks * course.chunks) course.pace.push_back(fleet.now() - began);
}

Seconds StageRun::calm_time() const {
  const std::size_t mark = std::min(course.pace.size(), calm->pace.size()) - 1;
  const Seconds since = fleet.now() - began - course.pace[mark], then = calm->pace[mark] + since;
  return mark + 1 < calm->pace.size() ? std::min(then, calm->pace[mark + 1]) : std::min(then, calm->end);
}

Seconds StageRun::passes_in(std::int32_t s) { return passes_in(s, time_left(s)); }

Seconds StageRun::passes_in(std::int32_t s, Seconds at_rates) {
  const std::int32_t above = std::min(s + 1, top());
  if (at(above).backward_left == 0 || above < lowest) return Seconds(0);
  return calm ? std::max(at_rates, calm->passed[static_cast<std::size_t>(above)] - calm_time()) : at_rates;
}

Seconds StageRun::opens_in(std::int32_t s) {
  if (!calm || course.opened[static_cast<std::size_t>(s)].value() > 0) return Seconds(0);
  return std::max(Seconds(0), calm->opened[static_cast<std::size_t>(s)] - calm_time());
}

Seconds StageRun::ends_in() {
  const Seconds planned = calm ? calm->end - calm_time() : plan.forecast - (fleet.now() - began);
  return std::max(planned, time_left(0));
}

void StageRun::weigh_losses() {
  if (losses.records().all().empty()) return;
  rehearse();
  report.recovery = std::max(Seconds(0), report.time - calm->end);
  for (std::size_t i = 0; i < losses.records().all().size(); ++i) {
    const auto s = static_cast<std::size_t>(losses.stage_of(i));
    losses.records().weigh(i, calm->last_work[s] - std::max(Seconds(0), calm->first_work[s]),
                           std::max(Seconds(0), course.last_work[s] - calm->last_work[s]));
  }
  const std::vector<Loss>& all = losses.records().all();
  report.losses.insert(report.losses.end(), all.begin(), all.end());
}

}  // namespace cleave::sched::stages
