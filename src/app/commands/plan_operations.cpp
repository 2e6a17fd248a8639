// cleave plan: who computes which part of every operation, with predicted times beside lower bounds.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/stage_bound.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/quorum_fleet.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "cleave/telemetry/progress.hpp"
#include "cli/result_file.hpp"
#include "commands/commands.hpp"
#include "input/input.hpp"
#include "input/run_setup.hpp"
#include "output/fleet_status.hpp"
#include "output/plan_stages.hpp"

namespace cleave::app {

namespace {

using nlohmann::ordered_json;

// Operations of one type and shape, planned once.
struct Planned {
  std::string name;
  plan::Work work;
  std::int64_t count = 0;
  plan::OperationPlan plan;
};

const char* kind_of(plan::WorkKind kind) { return kind == plan::WorkKind::gemm ? "gemm" : "attention"; }

std::vector<Planned> plan_all(const model::StepGraph& graph, const std::vector<plan::DeviceState>& devices,
                              const Input& input, telemetry::Progress& progress) {
  plan::PlanOptions alone = input.step.plan;
  alone.objective = plan::Objective::alone;
  std::vector<Planned> list;
  std::size_t seen = 0;
  for (const model::Operation& op : graph.operations) {
    ++seen;
    if (!model::runs_on_devices(op.kind)) continue;
    const plan::Work work = plan::work_of(op, input.step.wire);
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const Planned& p) { return p.name == op.type && p.work == work; });
    if (found != list.end()) {
      ++found->count;
      continue;
    }
    progress.update(static_cast<std::int64_t>(seen),
                    fmt::format("planning {} over {} devices, operation {} of {}", op.type, devices.size(), seen,
                                graph.operations.size()));
    list.push_back({op.type, work, 1, plan::plan_operation(work, devices, alone)});
  }
  return list;
}

ordered_json json_of(const Planned& p) {
  ordered_json op{{"name", p.name}, {"kind", kind_of(p.work.kind)}};
  const bool gemm = p.work.kind == plan::WorkKind::gemm;
  if (gemm) {
    op["m"] = p.work.gemm.m;
    op["n"] = p.work.gemm.n;
    op["k"] = p.work.gemm.k;
  } else {
    op["pairs"] = p.work.attention.pairs();
  }
  op["count"] = p.count;
  op["time_s"] = p.plan.time.value();
  op["busy_s"] = p.plan.busy.value();
  op["lower_bound_s"] = p.plan.lower_bound.value();
  op["bottleneck"] = plan::name_of(p.plan.bottleneck);
  op["tasklets"] = ordered_json::array();
  for (const plan::TaskletPlan& t : p.plan.tasklets) {
    ordered_json piece{{"device", t.device.value}};
    if (gemm) {
      piece.update(
          {{"m0", t.box.m0}, {"m1", t.box.m1}, {"n0", t.box.n0}, {"n1", t.box.n1}, {"k0", t.box.k0}, {"k1", t.box.k1}});
    } else {
      piece.update({{"pair0", t.pairs.pair0}, {"pair1", t.pairs.pair1}});
    }
    piece.update({{"bytes_down", t.bytes_down.value()},
                  {"bytes_up", t.bytes_up.value()},
                  {"resident_bytes", t.resident.value()},
                  {"time_s", t.time.value()}});
    op["tasklets"].push_back(std::move(piece));
  }
  return op;
}

void print_table(const std::vector<Planned>& list) {
  std::printf("%-34s %5s %26s %11s %11s %11s %7s %-10s %8s %11s %11s\n", "operation", "count", "m x n x k | pairs",
              "time", "busy", "bound", "busy/bd", "bound by", "devices", "down", "up");
  for (const Planned& p : list) {
    const std::string shape = p.work.kind == plan::WorkKind::gemm
                                  ? fmt::format("{} x {} x {}", p.work.gemm.m, p.work.gemm.n, p.work.gemm.k)
                                  : fmt::format("{}", p.work.attention.pairs());
    std::printf("%-34s %5lld %26s %11s %11s %11s %7.3f %-10s %8lld %11s %11s\n", p.name.c_str(),
                static_cast<long long>(p.count), shape.c_str(), show(p.plan.time).c_str(), show(p.plan.busy).c_str(),
                show(p.plan.lower_bound).c_str(), p.plan.busy / p.plan.lower_bound, plan::name_of(p.plan.bottleneck),
                static_cast<long long>(p.plan.devices_used), show(p.plan.bytes_down).c_str(),
                show(p.plan.bytes_up).c_str());
  }
}

}  // namespace

int plan_operations(const CommandLine& line) {
  Input input = read_input(only_input(line), line.overrides, Needs::no_data);
  refuse_result_over(input, line.json);
  need_folder_of_result(line.json);
  // What train takes.
  const bool emulated = input.fleet.clock != server::ClockMode::off;
  const sched::StepSpec& spec = input.step;
  const std::vector<plan::DeviceState> devices = sched::idle_devices(spec.devices);
  const model::StepGraph whole = model::build_step(spec.model, sched::graph_options(spec, 1));
  const plan::StageWork work = plan::stage_work_of(whole, spec.wire);
  const sched::LayoutChoice choice = emulated ? sched::choose_layout(spec) : sched::layout_without_emulation(spec);
  // Without data there is nothing to check.
  const std::string checks = input.data.kind == DataKind::none ? "" : settle_verification(input, choice.layout);
  const model::StepGraph graph = model::build_step(spec.model, sched::graph_options(spec, choice.row_groups));
  const plan::ServerShare share = plan::server_share(whole, spec.server());
  const Seconds floor = sched::step_floor(spec, devices);
  SteadyClock clock;
  telemetry::Progress progress(stderr, clock, progress_of_short_work(line.quiet));
  std::vector<Planned> list;
  if (!choice.stages || !line.json.empty()) list = plan_all(graph, devices, input, progress);
  sched::SimulatedFleet fleet(spec.devices, spec.server(), spec.wire, {}, spec.seed);
  FleetStatus status(spec.devices, nullptr);
  status.on_operation([&](std::size_t begun, std::size_t all) {
    progress.update(static_cast<std::int64_t>(begun), fmt::format("a step: operation {} of {}", begun, all));
  });
  Seconds step, bound;
  if (choice.stages) {
    step = sched::StageScheduler(fleet, whole, *choice.stages, sched::stage_scheduler_options(spec)).run().time;
    bound = plan::stage_lower_bound(work, *choice.stages, spec.devices, spec.server(), share);
  } else {
    fleet.set_observer(&status);
    std::optional<sched::QuorumFleet> quorum;
    if (spec.paired_in_tiles() > 0) quorum.emplace(fleet, sched::quorum_options(spec));
    sched::Fleet& asked = quorum ? static_cast<sched::Fleet&>(*quorum) : fleet;
    step = sched::Scheduler(asked, sched::scheduler_options(spec)).run(graph).time;
    bound = sched::step_lower_bound(graph, devices, sched::scheduler_options(spec));
  }
  bound = std::max(bound, floor);  // which holds for any layout

  progress.drop();
  const bool json_alone = is_standard_output(line.json);
  if (line.dry_run) std::fputs(input.effective.c_str(), json_alone ? stderr : stdout);
  if (!json_alone) {
    if (choice.stages) {
      std::printf("%s", stage_table(work, *choice.stages, spec.devices).c_str());
      std::printf("forecast %s, %s down, %s up, chunks of %lld tokens\n", show(choice.stages->forecast).c_str(),
                  show(choice.stages->bytes_down).c_str(), show(choice.stages->bytes_up).c_str(),
                  static_cast<long long>(choice.stages->chunk));
    } else {
      print_table(list);
    }
    if (!input.tiles_since.empty()) std::printf("%s\n", say_layout(input, choice.layout).c_str());
    if (!checks.empty()) std::printf("%s\n", checks.c_str());
    std::printf("layout %s, step %s, lower bound %s, floor of any layout %s, %zu devices\n",
                sched::name_of(choice.layout), show(step).c_str(), show(bound).c_str(),
                floor.value() > 0 ? show(floor).c_str() : "-", devices.size());
  }
  if (line.json.empty()) return 0;
  ordered_json out{{"version", 1},
                   {"model", input.model.preset.empty() ? spec.model.family : input.model.preset},
                   {"step_s", step.value()},
                   {"lower_bound_s", bound.value()},
                   {"floor_s", floor.value()},
                   {"layout", sched::name_of(choice.layout)}};
  if (choice.stages) out["forecast_s"] = choice.stages->forecast.value();
  out["devices"] = ordered_json::array();
  for (const fleet::DeviceProfile& d : spec.devices) {
    out["devices"].push_back({{"id", d.id.value},
                              {"name", d.name},
                              {"compute", d.compute.value()},
                              {"memory", d.memory.value()},
                              {"downlink", d.downlink.value()},
                              {"uplink", d.uplink.value()},
                              {"latency", d.latency.value()}});
  }
  out["server"] = {{"nic_out", spec.server().nic_out.value()}, {"nic_in", spec.server().nic_in.value()}};
  if (choice.stages) add_stages(out, whole, work, *choice.stages);
  out["operations"] = ordered_json::array();
  for (const Planned& p : list) out["operations"].push_back(json_of(p));
  write_result(line.json, out.dump(1) + "\n");
  return 0;
}

}  // namespace cleave::app
