// How long it takes to choose the number of row groups of a step in tiles, and how good the choice is.
//
//   row_group_choice [--preset opt-13b] [--devices 256] [--memory 0.256] [--seeds 42,43]
//                    [--nic GB_PER_S] [--full yes]
//
// A row per fleet: processor time of sched::choose_layout(), the number chosen, and with `--full yes` the simulated
// step, and the processor time to simulate it, in 1, 2, 4 and 8 row groups. Devices are drawn as
// inputs/sim/small-memory.yaml draws them, with so many GB each; batches are 128 sequences of 1024 tokens, fp16.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <map>

#include "cleave/model/family.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "plan_cases.hpp"

using namespace cleave;
using namespace cleave::plan_cases;

namespace {

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> given = given_options(argc, argv,
                                                           {{"preset", "opt-13b"},
                                                            {"devices", "256"},
                                                            {"memory", "0.256"},
                                                            {"seeds", "42"},
                                                            {"nic", "inf"},
                                                            {"full", "no"}});
  sched::StepSpec spec;
  spec.model = model::find_preset(given["preset"]).value();
  spec.model.seq_len = 1024;
  spec.batch = 128;
  spec.wire = DType::f16;
  spec.layout.layout = sched::Layout::tiles;
  spec.plan.server.nic_out = spec.plan.server.nic_in = BytesPerSecond(std::stod(given["nic"]) * 1e9);
  spec.plan.server.compute = FlopsPerSecond(1e13);
  spec.plan.server.memory_bandwidth = BytesPerSecond(4e11);
  const double memory = std::stod(given["memory"]) * 1e9;
  const fleet::DeviceGroup edge =
      group("edge", std::stoll(given["devices"]), {5, 7}, {10, 100}, {5, 10}, {memory, memory});
  fmt::print("{} on {} devices of {} GB\n", given["preset"], given["devices"], given["memory"]);
  for (const std::string& seed : split(given["seeds"])) {
    spec.devices = fleet::draw_devices({edge}, std::stoull(seed));
    for (std::size_t i = 0; i < spec.devices.size(); ++i) spec.devices[i].id = DeviceId(static_cast<std::int32_t>(i));
    const double before = processor_seconds();
    const sched::LayoutChoice choice = sched::choose_layout(spec);
    fmt::print("seed {}: {} row groups, chosen in {:.2f} s", seed, choice.row_groups, processor_seconds() - before);
    std::fflush(stdout);
    if (given["full"] == "yes") {
      for (const std::int64_t groups : {1, 2, 4, 8}) {
        const double began = processor_seconds();
        const model::StepGraph graph = model::build_step(spec.model, sched::graph_options(spec, groups));
        sched::SimulatedFleet fleet(spec.devices, spec.server(), spec.wire);
        const Seconds time = sched::Scheduler(fleet, sched::scheduler_options(spec)).run(graph).time;
        fmt::print("; {}: {:.6f} s ({:.2f} s)", groups, time.value(), processor_seconds() - began);
        std::fflush(stdout);
      }
    }
    fmt::print("\n");
  }
  return 0;
}
