// What graph builders, schedulers and planners take of a step.
#include "cleave/sched/step_spec.hpp"

#include <algorithm>

#include "cleave/model/family.hpp"

namespace cleave::sched {

model::StepOptions graph_options(const StepSpec& spec, std::int64_t row_groups) {
  return {.kind = model::StepKind::train,
          .batch = spec.batch,
          .clip = spec.clip,
          .freeze = spec.freeze,
          .loss_rows = 0,
          .row_groups = row_groups};
}

model::StepGraph training_graph(const StepSpec& spec) {
  return model::build_step(spec.model, graph_options(spec, std::max<std::int64_t>(1, spec.layout.row_groups)));
}

SchedulerOptions scheduler_options(const StepSpec& spec) {
  return {.plan = spec.plan, .wire = spec.wire, .asynchronous = spec.asynchronous};
}

std::vector<plan::DeviceState> idle_devices(const std::vector<fleet::DeviceProfile>& devices) {
  std::vector<plan::DeviceState> states;
  states.reserve(devices.size());
  for (const fleet::DeviceProfile& device : devices) states.push_back({device, {}, {}, {}});
  return states;
}

}  // namespace cleave::sched
