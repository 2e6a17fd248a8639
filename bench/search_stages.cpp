// What each stage of the search for tiles is worth: the table of docs/measurements/search_stages.md.
//
//   search_stages [--stages refine,...] [--steps 64,small-memory,256,1024|none] [--devices 8,64,...] [--fleets
//   mild,...]
//   [--models opt-1.3b,...]
//
// Prints markdown: a row per stage that is left out, beside one with all of them. Plans alone are those of plan_table,
// behind its server: geometric mean and worst of busy/bound and of time/bound, how many of the plans take longer or
// shorter, and the processor time of making them. Steps: the simulated step time of inputs/sim/cleave-256.yaml on 64,
// 256 and 1024 devices and of inputs/sim/small-memory.yaml, in tiles.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "plan_cases.hpp"

using namespace cleave;
using namespace cleave::plan_cases;

namespace {

// As inputs/sim/cleave-256.yaml has them.
fleet::DeviceGroup edge(std::int64_t count, fleet::Range memory_gb = {1, 3}) {
  return group("edge", count, {5, 7}, {10, 100}, {5, 10}, {memory_gb.low * 1e9, memory_gb.high * 1e9});
}

model::StepGraph graph_of(const std::string& preset, std::int64_t row_groups) {
  model::ModelConfig config = model::find_preset(preset).value();
  config.seq_len = 1024;
  model::StepOptions step;
  step.batch = 128;
  step.row_groups = row_groups;
  return model::build_step(config, step);
}

// Of the same operations in the same order, times their lower bounds; and of making them.
struct Plans {
  std::vector<double> busy, time;
  double processor_s = 0;
};

struct Wanted {
  std::vector<std::string> models = kModels, fleets = kFleets, sizes{"8", "64", "256"};
};

Plans plan_all(const Wanted& wanted, plan::SearchStageSet stages) {
  plan::PlanOptions options;
  options.objective = plan::Objective::alone;
  options.search_stages = stages;
  std::vector<Case> cases;
  for (const std::string& name : wanted.models) {
    for (Case& c : cases_of(name)) cases.push_back(std::move(c));
  }
  Plans plans;
  const std::clock_t start = std::clock();
  for (const std::string& fleet_name : wanted.fleets) {
    for (const std::string& size : wanted.sizes) {
      const std::vector<plan::DeviceState> devices = fleet_of(fleet_name, std::stoll(size), 42);
      for (const Case& c : cases) {
        const plan::OperationPlan plan = plan::plan_operation(c.work, devices, options);
        plans.busy.push_back(plan.busy / plan.lower_bound);
        plans.time.push_back(plan.time / plan.lower_bound);
      }
    }
  }
  plans.processor_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return plans;
}

Seconds step_time(const std::string& name, plan::SearchStageSet stages) {
  const bool small = name == "small-memory";
  const fleet::DeviceGroup devices = small ? edge(256, {0.256, 0.256}) : edge(std::stoll(name));
  fleet::ServerProfile server;
  server.compute = FlopsPerSecond(10e12);
  server.memory_bandwidth = BytesPerSecond(400e9);
  server.nic_out = server.nic_in = fleet::kUnlimitedRate;
  sched::SimulatedFleet fleet(fleet::draw_devices({devices}, 42), server, DType::f16, {}, 42);
  sched::SchedulerOptions options;
  options.plan.server = server;
  options.plan.search_stages = stages;
  options.wire = DType::f16;
  return sched::Scheduler(fleet, options).run(graph_of("opt-13b", small ? 2 : 8)).time;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> wanted_stages, steps{"64", "small-memory", "256"};
  Wanted wanted;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    std::vector<std::string>* list = flag == "--stages"    ? &wanted_stages
                                     : flag == "--steps"   ? &steps
                                     : flag == "--devices" ? &wanted.sizes
                                     : flag == "--fleets"  ? &wanted.fleets
                                     : flag == "--models"  ? &wanted.models
                                                           : nullptr;
    if (list == nullptr) {
      fmt::print(stderr, "unknown option {}\n", flag);
      return 2;
    }
    *list = split(argv[i + 1]);
  }
  std::erase(steps, "none");
  std::string header = "| left out | busy/bound mean | worst | time/bound mean | worst | longer | shorter | plans s |";
  std::string rule = "|---|---:|---:|---:|---:|---:|---:|---:|";
  for (const std::string& step : steps) {
    header += fmt::format(" step {} s |", step);
    rule += "---:|";
  }
  fmt::print("{}\n{}\n", header, rule);
  Plans usual;
  for (int i = -1; i < plan::kSearchStages; ++i) {
    plan::SearchStageSet stages;
    std::string name = "nothing";
    if (i >= 0) {
      const auto stage = static_cast<plan::SearchStage>(i);
      stages = stages.without(stage);
      name = plan::name_of(stage);
      if (!wanted_stages.empty() && std::ranges::find(wanted_stages, name) == wanted_stages.end()) continue;
    }
    const Plans plans = plan_all(wanted, stages);
    if (i < 0) usual = plans;
    std::size_t longer = 0, shorter = 0;
    for (std::size_t p = 0; p < plans.time.size(); ++p) {
      longer += plans.time[p] > usual.time[p] ? 1 : 0;
      shorter += plans.time[p] < usual.time[p] ? 1 : 0;
    }
    fmt::print("| {} | {:.5f} | {:.3f} | {:.5f} | {:.3f} | {} | {} | {:.1f} |", name, geometric_mean(plans.busy),
               percentile(plans.busy, 1), geometric_mean(plans.time), percentile(plans.time, 1), longer, shorter,
               plans.processor_s);
    for (const std::string& step : steps) fmt::print(" {:.1f} |", step_time(step, stages).value());
    fmt::print("\n");
    std::fflush(stdout);
  }
}
