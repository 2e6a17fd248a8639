// Forecasts of candidate layouts in stages beside the time that each takes when it is simulated.
//
//   stage_forecasts [--preset opt-13b] [--devices 256] [--memory 1,3] [--down 10,100] [--up 5,10] [--compute 5,7]
//                   [--nic GB_PER_S] [--boundary wire|mxint8] [--seeds 42,43] [--most 40]
//
// A row per candidate of plan::stage_candidates(), the one that find_stages() takes first: what it looks like, for how
// long its chain is forecast to run, its forecast, its step. Ranges are drawn as inputs/sim/cleave-256.yaml draws them,
// batches are 128 sequences of 1024 tokens, fp16.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>

#include "cleave/sched/simulated_fleet.hpp"
#include "plan_cases.hpp"
#include "stages/stage_planner.hpp"

using namespace cleave;
using namespace cleave::plan_cases;

namespace {

fleet::Range range_of(const std::string& text) {
  const std::vector<std::string> ends = split(text);
  return {std::stod(ends.front()), std::stod(ends.back())};
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> given = given_options(argc, argv,
                                                           {{"preset", "opt-13b"},
                                                            {"devices", "256"},
                                                            {"memory", "1,3"},
                                                            {"down", "10,100"},
                                                            {"up", "5,10"},
                                                            {"compute", "5,7"},
                                                            {"nic", "inf"},
                                                            {"boundary", "wire"},
                                                            {"seeds", "42"},
                                                            {"most", "40"}});
  model::ModelConfig config = model::find_preset(given["preset"]).value();
  config.seq_len = 1024;
  model::StepOptions step;
  step.batch = 128;
  step.row_groups = 1;
  if (given["boundary"] == name_of(DType::mxint8)) step.boundary = DType::mxint8;
  const model::StepGraph graph = model::build_step(config, step);
  const fleet::Range memory = range_of(given["memory"]);
  const fleet::DeviceGroup edge =
      group("edge", std::stoll(given["devices"]), range_of(given["compute"]), range_of(given["down"]),
            range_of(given["up"]), {memory.low * 1e9, memory.high * 1e9});
  sched::StageSchedulerOptions options;
  options.wire = DType::f16;
  options.stages.server = {.nic_out = BytesPerSecond(std::stod(given["nic"]) * 1e9),
                           .nic_in = BytesPerSecond(std::stod(given["nic"]) * 1e9),
                           .compute = FlopsPerSecond(1e13),
                           .memory_bandwidth = BytesPerSecond(4e11)};
  const plan::StageWork work = plan::stage_work_of(graph, options.wire);
  const sched::stages::StagePlanner planner(graph, options);
  fmt::print("seed  rounds stages replicas owners groups  chain forecast   step  forecast/step\n");
  for (const std::string& seed : split(given["seeds"])) {
    std::vector<fleet::DeviceProfile> devices = fleet::draw_devices({edge}, std::stoull(seed));
    for (std::size_t i = 0; i < devices.size(); ++i) devices[i].id = DeviceId(static_cast<std::int32_t>(i));
    for (const plan::StagePlan& plan :
         plan::stage_candidates(work, devices, options.stages, std::stoul(given["most"]))) {
      std::size_t replicas = 0;
      for (const plan::Stage& stage : plan.stages) replicas += stage.replicas.size();
      std::int64_t groups = 0;
      for (const std::int64_t of_stage : plan.groups) groups = std::max(groups, of_stage);
      const auto time = planner.rehearse(plan, devices, Seconds(std::numeric_limits<double>::infinity()));
      fmt::print("{:6} {:6} {:6} {:8} {:6} {:6} {:6.1f} {:8.1f} {:6.1f} {:6.2f}{}\n", seed, plan.rounds(),
                 plan.stages.size(), replicas, plan.owners.size(), groups, plan.chain.value(), plan.forecast.value(),
                 time->value(), plan.forecast.value() / time->value(),
                 plan.stages.front().kept_slots() > 0 ? " kept" : "");
      std::fflush(stdout);
    }
  }
  return 0;
}
