// What each stage of the search for tiles is worth: the table of docs/measurements/search_stages.md.
//
//   search_stages [--stages refine,...] [--steps 64,small-memory,256,1024] [--devices 8,64,256] [--models opt-1.3b,...]
//
// Prints markdown: a row per stage that is left out, beside one with all of them. Plans alone: busy/bound over the
// operations of the models on the fleets `moderate` and `symmetric` of plan_table, median and worst, how many of the
// plans take another time, longer or shorter. Steps: the simulated step time of
// inputs/sim/cleave-256.yaml on 64, 256 and 1024 devices and of inputs/sim/small-memory.yaml.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "cleave/model/family.hpp"
#include "cleave/plan/plan.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"

using namespace cleave;

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

fleet::DeviceGroup group(std::int64_t count, fleet::Range compute, fleet::Range down, fleet::Range up,
                         fleet::Range memory) {
  return {.name = "edge",
          .count = count,
          .compute_flops = compute,
          .memory_bytes = memory,
          .downlink_bytes = down,
          .uplink_bytes = up,
          .latency_s = {0, 0}};
}

// As inputs/sim/cleave-256.yaml has them.
fleet::DeviceGroup edge(std::int64_t count, fleet::Range memory = {1e9, 3e9}) {
  return group(count, {5e12, 7e12}, {10e6, 100e6}, {5e6, 10e6}, memory);
}

std::vector<plan::DeviceState> states_of(const fleet::DeviceGroup& devices) {
  std::vector<plan::DeviceState> states;
  for (const fleet::DeviceProfile& profile : fleet::draw_devices({devices}, 42))
    states.push_back({profile, {}, {}, {}});
  return states;
}

model::StepGraph graph_of(const std::string& preset, std::int64_t row_groups) {
  model::ModelConfig config = model::find_preset(preset).value();
  config.seq_len = 1024;
  model::StepOptions step;
  step.batch = 128;
  step.row_groups = row_groups;
  return model::build_step(config, step);
}

// Of the same operations in the same order.
struct Plans {
  std::vector<double> busy, ratio;  ///< seconds, and times the lower bound
};

Plans plan_all(const std::vector<std::string>& models, const std::vector<std::string>& sizes, plan::StageSet stages) {
  plan::PlanOptions options;
  options.objective = plan::Objective::alone;
  options.stages = stages;
  Plans plans;
  for (const std::string& size : sizes) {
    const std::int64_t count = std::stoll(size);
    const fleet::DeviceGroup moderate = group(count, {2e12, 10e12}, {5e6, 200e6}, {2e6, 20e6}, {1e9, 3e9});
    const fleet::DeviceGroup symmetric = group(count, {5e12, 7e12}, {10e6, 100e6}, {10e6, 100e6}, {1e9, 3e9});
    for (const fleet::DeviceGroup& fleet_group : {moderate, symmetric}) {
      const std::vector<plan::DeviceState> devices = states_of(fleet_group);
      for (const std::string& model : models) {
        std::vector<plan::Work> seen;
        for (const model::Operation& op : graph_of(model, 1).operations) {
          if (op.kind != model::OpKind::gemm) continue;
          const plan::Work work = plan::work_of(op, DType::f16);
          if (std::find(seen.begin(), seen.end(), work) != seen.end()) continue;
          seen.push_back(work);
          const plan::OperationPlan plan = plan::plan_operation(work, devices, options);
          plans.busy.push_back(plan.busy.value());
          plans.ratio.push_back(plan.busy / plan.lower_bound);
        }
      }
    }
  }
  return plans;
}

Seconds step_time(const std::string& name, plan::StageSet stages) {
  const bool small = name == "small-memory";
  const fleet::DeviceGroup devices = small ? edge(256, {256e6, 256e6}) : edge(std::stoll(name));
  fleet::ServerProfile server;
  server.compute = FlopsPerSecond(10e12);
  server.memory_bandwidth = BytesPerSecond(400e9);
  server.nic_out = server.nic_in = fleet::kUnlimitedRate;
  sched::SimulatedFleet fleet(fleet::draw_devices({devices}, 42), server, DType::f16, {}, 42);
  sched::SchedulerOptions options;
  options.plan.server = server;
  options.plan.stages = stages;
  options.wire = DType::f16;
  return sched::Scheduler(fleet, options).run(graph_of("opt-13b", small ? 2 : 8)).time;
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> wanted, steps{"64", "small-memory", "256"}, sizes{"8", "64", "256"};
  std::vector<std::string> models{"opt-1.3b", "opt-13b"};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    std::vector<std::string>* list = flag == "--stages"    ? &wanted
                                     : flag == "--steps"   ? &steps
                                     : flag == "--devices" ? &sizes
                                     : flag == "--models"  ? &models
                                                           : nullptr;
    if (list == nullptr) {
      fmt::print(stderr, "unknown option {}\n", flag);
      return 2;
    }
    *list = split(argv[i + 1]);
  }
  std::string header = "| left out | busy/bound median | worst | other plans | longer | shorter |";
  std::string rule = "|---|---:|---:|---:|---:|---:|";
  for (const std::string& step : steps) {
    header += fmt::format(" step {} s |", step);
    rule += "---:|";
  }
  fmt::print("{}\n{}\n", header, rule);
  Plans usual;
  for (int i = -1; i < plan::kSearchStages; ++i) {
    plan::StageSet stages;
    std::string name = "nothing";
    if (i >= 0) {
      const auto stage = static_cast<plan::SearchStage>(i);
      stages = stages.without(stage);
      name = plan::name_of(stage);
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    }
    const Plans plans = plan_all(models, sizes, stages);
    if (i < 0) usual = plans;
    std::size_t longer = 0, shorter = 0;
    for (std::size_t p = 0; p < plans.busy.size(); ++p) {
      longer += plans.busy[p] > usual.busy[p] ? 1 : 0;
      shorter += plans.busy[p] < usual.busy[p] ? 1 : 0;
    }
    fmt::print("| {} | {:.4f} | {:.3f} | {} of {} | {} | {} |", name, percentile(plans.ratio, 0.5),
               percentile(plans.ratio, 1), longer + shorter, plans.busy.size(), longer, shorter);
    for (const std::string& step : steps) fmt::print(" {:.1f} |", step_time(step, stages).value());
    fmt::print("\n");
    std::fflush(stdout);
  }
}
