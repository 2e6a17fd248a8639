// What plan.layout and plan.row_groups leave open: the quickest of all candidates is taken, though most of them are not
// rehearsed to their ends.
#include "cleave/sched/layout_choice.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "stage_case.hpp"

namespace cleave::sched {
namespace {

StepSpec spec_of(const std::string& family, std::int64_t batch, std::vector<fleet::DeviceProfile> devices) {
  StepSpec spec;
  spec.model.family = family;
  spec.model.n_layer = 2;
  spec.model.n_head = spec.model.n_kv_head = 8;
  spec.model.d_model = 128;
  spec.model.d_ff = 512;
  spec.model.vocab_size = 640;
  spec.model.seq_len = spec.model.max_pos = 128;
  spec.batch = batch;
  spec.wire = DType::f16;
  spec.plan.server = kWide;
  spec.devices = std::move(devices);
  return spec;
}

// Rehearses every number of groups to its end.
std::pair<std::int64_t, Seconds> quickest_tiles(const StepSpec& spec) {
  std::pair<std::int64_t, Seconds> best{0, Seconds(std::numeric_limits<double>::infinity())};
  for (const std::int64_t groups : {1, 2, 4, 8}) {
    if (groups > spec.batch) continue;
    const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, groups));
    SimulatedFleet fleet(spec.devices, spec.server(), spec.wire);
    const Seconds time = Scheduler(fleet, scheduler_options(spec)).run(graph).time;
    if (time < best.second) best = {groups, time};
  }
  return best;
}

TEST(LayoutChoice, TakesTheQuickestNumberOfRowGroups) {
  std::set<std::int64_t> chosen;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    auto devices = devices_of(4 + 4 * static_cast<std::int64_t>(seed % 5), seed, seed % 2 == 0 ? 1e7 : 4e5);
    StepSpec spec = spec_of(seed % 3 == 0 ? "gpt2" : "opt", 8, std::move(devices));
    if (seed % 4 == 3) spec.plan.server.nic_in = spec.plan.server.nic_out = BytesPerSecond(5e6);
    spec.layout.layout = Layout::tiles;
    const LayoutChoice choice = choose_layout(spec);
    EXPECT_EQ(choice.layout, Layout::tiles);
    EXPECT_EQ(choice.row_groups, quickest_tiles(spec).first) << seed;
    chosen.insert(choice.row_groups);
  }
  EXPECT_GE(chosen.size(), 2U) << "one number was the best everywhere: the test shows nothing";
}

// Slow uplinks favour stages, which send less; devices that hold next to nothing leave tiles alone.
TEST(LayoutChoice, TakesTheQuickerLayout) {
  std::int64_t staged = 0, tiled = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    auto devices = devices_of(6 + 3 * static_cast<std::int64_t>(seed % 4), seed, 2e6);
    for (fleet::DeviceProfile& device : devices) {
      if (seed % 2 == 0) device.uplink = device.downlink = BytesPerSecond(1e9);
      device.latency = Seconds(seed % 2 == 0 ? 0.02 : 0);
    }
    const StepSpec spec = spec_of("opt", 2, std::move(devices));
    const LayoutChoice choice = choose_layout(spec);
    StepSpec forced = spec;
    forced.layout.layout = Layout::stages;
    std::optional<Seconds> stages;
    const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
    try {
      SimulatedFleet fleet(spec.devices, spec.server(), spec.wire);
      stages = StageScheduler(fleet, graph, *choose_layout(forced).stages, stage_scheduler_options(spec)).run().time;
    } catch (const InputError&) {}
    const auto [groups, tiles] = quickest_tiles(spec);
    const bool stages_win = stages && *stages < tiles;
    EXPECT_EQ(choice.layout == Layout::stages, stages_win)
        << seed << ": " << (stages ? stages->value() : -1) << " s in stages, " << tiles.value() << " s in tiles";
    (choice.layout == Layout::stages ? staged : tiled) += 1;
    if (choice.layout == Layout::tiles) { EXPECT_EQ(choice.row_groups, groups) << seed; }
  }
  EXPECT_GT(staged, 0);
  EXPECT_GT(tiled, 0);
}

}  // namespace
}  // namespace cleave::sched
