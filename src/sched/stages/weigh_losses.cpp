// What losses cost a step in stages: the same plan is run once more on a SimulatedFleet of the devices that were there
// when the step began, and nothing is lost there. Stages overlap, so the step's own time is compared, not the sum of
// what its stages ended later.
#include <algorithm>
#include <vector>

#include "cleave/sched/simulated_fleet.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

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

void StageRun::weigh_losses() {
  if (losses.records().all().empty()) return;
  const std::vector<fleet::DeviceProfile> all = without_gaps(at_begin);
  SimulatedFleet calm(all, options.stages.server, options.wire);
  for (const fleet::DeviceProfile& one : all) {
    if (!std::ranges::binary_search(at_begin, one.id, {}, &fleet::DeviceProfile::id)) calm.remove_device(one.id);
  }
  StageRun undisturbed(calm, graph, plan, options);
  undisturbed.run({});
  report.recovery = std::max(Seconds(0), report.time - (calm.now() - undisturbed.began));
  for (std::size_t i = 0; i < losses.records().all().size(); ++i) {
    const auto s = static_cast<std::size_t>(losses.stage_of(i));
    losses.records().weigh(i, undisturbed.last_work[s] - std::max(Seconds(0), undisturbed.first_work[s]),
                           std::max(Seconds(0), last_work[s] - undisturbed.last_work[s]));
  }
  report.losses = losses.records().all();
}

}  // namespace cleave::sched::stages
