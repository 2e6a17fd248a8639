// cleave simulate: a training step in virtual time, without numbers, by the scheduler that `train` runs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "commands.hpp"
#include "input.hpp"
#include "run_setup.hpp"

namespace cleave::app {

namespace {

using nlohmann::ordered_json;

ordered_json simulate_system(const std::string& system, const Input& input, const server::TrainerOptions& options,
                             const model::StepGraph& graph) {
  const auto begun = std::chrono::steady_clock::now();
  ordered_json out{{"system", system}, {"feasible", true}, {"why", ""}, {"devices", options.devices.size()}};
  sched::SchedulerOptions scheduling{.plan = input.plan, .wire = input.wire};
  if (system == "cleave-paper") scheduling.plan.partition = plan::Partition::paper;
  sched::SimulatedFleet fleet(options.devices, input.server.profile, input.wire, options.fleet.churn, input.fleet.seed);
  try {
    const sched::StepReport report = sched::Scheduler(fleet, scheduling).run(graph);
    Bytes down_max{0}, memory_max{0};
    Seconds compute{0};
    for (const sched::Usage& used : fleet.usage()) {
      down_max = std::max(down_max, used.bytes_down);
      memory_max = std::max(memory_max, used.memory_peak);
      compute = std::max(compute, used.compute);
    }
    out["devices_used"] = report.devices;
    out["step_s"] = report.time.value();
    out["lower_bound_s"] = sched::step_lower_bound(graph, idle_devices(options.devices), scheduling).value();
    out["compute_s"] = compute.value();
    out["bytes_down"] = report.bytes_down.value();
    out["bytes_up"] = report.bytes_up.value();
    out["server_out_s"] = (report.bytes_down / input.server.profile.nic_out).value();
    out["server_in_s"] = (report.bytes_up / input.server.profile.nic_in).value();
    out["device_bytes_down_max"] = down_max.value();
    out["device_memory_max"] = memory_max.value();
    out["recovery_s"] = report.recovery.value();
    out["energy_J"] = report.energy.value();
    out["planning_s"] = report.planning.value();
  } catch (const InputError& error) {
    out["feasible"] = false;
    out["why"] = error.what();
  }
  out["wall_s"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return out;
}

void print_row(const ordered_json& r) {
  if (!r["feasible"].get<bool>()) {
    std::printf("%-16s not feasible: %s\n", r["system"].get<std::string>().c_str(),
                r["why"].get<std::string>().c_str());
    return;
  }
  const auto seconds = [&](const char* key) { return show(Seconds(r[key].get<double>())); };
  const auto bytes = [&](const char* key) { return show(Bytes(r[key].get<std::int64_t>())); };
  std::printf("%-16s %8lld %14s %14s %12s %12s %14s %14s %10.3g kJ\n", r["system"].get<std::string>().c_str(),
              static_cast<long long>(r["devices_used"].get<std::int64_t>()), seconds("step_s").c_str(),
              seconds("lower_bound_s").c_str(), bytes("bytes_down").c_str(), bytes("bytes_up").c_str(),
              bytes("device_bytes_down_max").c_str(), bytes("device_memory_max").c_str(),
              r["energy_J"].get<double>() / 1e3);
}

}  // namespace

int simulate(const CommandLine& line) {
  if (line.files.size() != 1)
    throw InputError("simulate takes one input file", "cleave simulate INPUT.yaml [key=value ...]");
  const Input input = read_input(line.files.front(), line.overrides, Needs::no_data);
  std::vector<std::string> systems = line.systems.empty() ? std::vector<std::string>{"cleave"} : line.systems;
  for (const std::string& system : systems) {
    if (system != "cleave" && system != "cleave-paper")
      throw InputError(fmt::format("there is no system '{}'", system), "cleave or cleave-paper");
  }
  if (line.dry_run) {
    std::printf("%s", input.effective.c_str());
    return 0;
  }
  const server::TrainerOptions options = trainer_options(input);
  const model::StepGraph graph = model::build_step(input.model.config, {.kind = model::StepKind::train,
                                                                        .batch = input.train.batch,
                                                                        .clip = input.train.grad_clip > 0,
                                                                        .freeze = input.train.freeze,
                                                                        .loss_rows = 0});
  ordered_json out = ordered_json::array();
  if (line.json != "-")
    std::printf("%-16s %8s %14s %14s %12s %12s %14s %14s %13s\n", "system", "devices", "step", "bound", "down", "up",
                "device down", "device memory", "energy");
  for (const std::string& system : systems) {
    out.push_back(simulate_system(system, input, options, graph));
    if (line.json != "-") print_row(out.back());
  }
  if (line.json == "-") {
    std::puts(out.dump(1).c_str());
  } else if (!line.json.empty()) {
    replace_file(line.json, out.dump(1) + "\n");
  }
  return 0;
}

}  // namespace cleave::app
