// What `simulate` hands to a system, and how it shows what comes back.
#include "output/study.hpp"

#include <fmt/format.h>

#include <cmath>

#include "input/run_setup.hpp"
#include "output/loss_json.hpp"

namespace cleave::app {

rivals::StudyInput study_of(const Input& input) {
  rivals::StudyInput study;
  static_cast<sched::StepSpec&>(study) = input.step;
  study.links = link_matrix(input.fleet.links, input.fleet.groups, study.devices);
  study.peer_links = input.fleet.peer_links;
  study.steps = input.simulate.steps;
  study.loss = input.simulate.loss;
  study.detection = input.simulate.detection;
  study.dtfm = input.simulate.dtfm;
  study.local_steps = input.simulate.local_steps;
  study.swarm = input.simulate.swarm;
  study.gpu = input.simulate.gpu;
  return study;
}

nlohmann::ordered_json to_json(const rivals::SystemReport& r) {
  // JSON has no infinity: a loss that the method does not survive has no recovery time.
  const nlohmann::ordered_json recovery =
      std::isfinite(r.recovery.value()) ? nlohmann::ordered_json(r.recovery.value()) : nlohmann::ordered_json(nullptr);
  nlohmann::ordered_json out{{"system", r.system}, {"feasible", r.feasible}, {"why", r.why}, {"devices", r.devices}};
  if (r.feasible) {
    out.update({{"devices_used", r.devices_used},
                {"step_s", r.step.value()},
                {"lower_bound_s", r.lower_bound.value()},
                {"floor_s", r.floor.value()},
                {"compute_s", r.compute.value()},
                {"bytes_down", r.bytes_down.value()},
                {"bytes_up", r.bytes_up.value()},
                {"server_out_s", r.server_out.value()},
                {"server_in_s", r.server_in.value()},
                {"device_bytes_down_max", r.device_bytes_down_max.value()},
                {"device_memory_max", r.device_memory_max.value()},
                {"recovery_s", recovery},
                {"energy_J", r.energy.value()},
                {"server_energy_J", r.server_energy.value()},
                {"layout", r.layout}});
    for (const auto& [name, value] : r.figures) out["figures"][name] = value;
    for (const rivals::StepFigures& step : r.steps) {
      out["steps"].push_back({{"step_s", step.time.value()},
                              {"devices_present", step.present},
                              {"devices_used", step.devices},
                              {"tasklets", step.tasklets},
                              {"lost", step.lost},
                              {"redone", step.redone},
                              {"copies", step.copies},
                              {"late", step.late},
                              {"server_sums", step.server_sums},
                              {"witnesses", step.witnesses},
                              {"recovery_s", step.recovery.value()},
                              {"planning_s", step.planning.value()}});
    }
    for (const auto& [operation, loss] : r.losses) { out["losses"].push_back(to_json(loss, operation)); }
  }
  out["planning_s"] = r.planning.value();
  out["wall_s"] = r.wall.value();
  return out;
}

std::string table_head() {
  return fmt::format("{:<16} {:>8} {:>14} {:>14} {:>14} {:>12} {:>12} {:>12} {:>14} {:>13} {:>13} {:>14}  {}", "system",
                     "devices", "step", "bound", "floor", "down", "up", "device down", "device memory", "energy",
                     "of server", "recovery", "layout");
}

std::string table_row(const rivals::SystemReport& r) {
  if (!r.feasible) return fmt::format("{:<16} not feasible: {}", r.system, r.why);
  const std::string recovery = std::isfinite(r.recovery.value()) ? show(r.recovery) : "lost";
  std::string row = fmt::format(
      "{:<16} {:>8} {:>14} {:>14} {:>14} {:>12} {:>12} {:>12} {:>14} {:>10.3g} kJ {:>10.3g} kJ {:>14}  {}", r.system,
      r.devices_used, show(r.step), show(r.lower_bound), r.floor.value() > 0 ? show(r.floor) : "-", show(r.bytes_down),
      show(r.bytes_up), show(r.device_bytes_down_max), show(r.device_memory_max), r.energy.value() / 1e3,
      r.server_energy.value() / 1e3, recovery, r.layout);
  while (row.ends_with(' ')) row.pop_back();
  if (!r.why.empty()) row += fmt::format("\n{:<16} {}", "", r.why);
  return row;
}

}  // namespace cleave::app
