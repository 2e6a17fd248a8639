// What graph builders, schedulers and planners take of a step.
#include "cleave/sched/step_spec.hpp"

#include <algorithm>

#include "cleave/model/family.hpp"
#include "cleave/plan/stage_bound.hpp"

namespace cleave::sched {

model::StepOptions graph_options(const StepSpec& spec, std::int64_t row_groups) {
  return {.kind = model::StepKind::train,
          .batch = spec.batch,
          .clip = spec.clip,
          .freeze = spec.freeze,
          .loss_rows = 0,
          .row_groups = row_groups,
          .wire = spec.wire,
          .boundary = spec.boundary};
}

model::StepGraph training_graph(const StepSpec& spec) {
  return model::build_step(spec.model, graph_options(spec, std::max<std::int64_t>(1, spec.layout.row_groups)));
}

SchedulerOptions scheduler_options(const StepSpec& spec) {
  return {.plan = spec.plan, .wire = spec.wire, .asynchronous = spec.asynchronous};
}

Seconds step_floor(const StepSpec& spec, std::span<const plan::DeviceState> devices) {
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  std::vector<fleet::DeviceProfile> profiles;
  for (const plan::DeviceState& device : devices) profiles.push_back(device.profile);
  return plan::floor_of(plan::stage_work_of(graph, spec.wire), profiles, spec.server(),
                        plan::server_share(graph, spec.server()));
}

std::vector<plan::DeviceState> idle_devices(const std::vector<fleet::DeviceProfile>& devices) {
  std::vector<plan::DeviceState> states;
  states.reserve(devices.size());
  for (const fleet::DeviceProfile& device : devices) states.push_back({device, {}, {}, {}});
  return states;
}

}  // namespace cleave::sched
