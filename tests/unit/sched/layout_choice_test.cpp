// What plan.layout and plan.row_groups leave open: the quickest of all candidates is taken, though most of them are not
// rehearsed to their ends.
#include "cleave/sched/layout_choice.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "stage_case.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

StepSpec spec_of(const std::string& family, std::int64_t batch, std::vector<fleet::DeviceProfile> devices) {
  StepSpec spec = small_spec(family, 2, 128, batch);
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
  for (std::uint64_t seed = 0; seed < all_or_few(12U, 4U); ++seed) {
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
  for (std::uint64_t seed = 0; seed < all_or_few(12U, 6U); ++seed) {
    auto devices = devices_of(6 + 3 * static_cast<std::int64_t>(seed % 4), seed, seed % 3 == 2 ? 4e5 : 2e6);
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

Seconds time_of(const StepSpec& spec, const plan::StagePlan& plan) {
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  SimulatedFleet fleet(spec.devices, spec.server(), spec.wire);
  return StageScheduler(fleet, graph, plan, stage_scheduler_options(spec)).run().time;
}

// A step as published, in stages.
StepSpec published_spec(const std::string& preset) {
  StepSpec spec;
  spec.model = model::find_preset(preset).value();
  spec.model.seq_len = 1024;
  spec.batch = 128;
  spec.wire = DType::f16;
  spec.plan.server = kWide;
  spec.layout.layout = Layout::stages;
  return spec;
}

constexpr std::uint64_t kFleets = all_or_few(4, 1), kSmallFleets = all_or_few(16, 4);

// Devices that hold more can do all that they could before; and a large stage keeps processors busy with others'
// sequences, which forecasts must know.
TEST(LayoutChoice, MoreMemoryMakesNoSlowerStep) {
  StepSpec spec = published_spec("opt-13b");
  for (std::uint64_t seed = 42; seed < 42 + kFleets; ++seed) {
    spec.devices = published_devices(seed);
    const plan::StagePlan before = *choose_layout(spec).stages;
    for (fleet::DeviceProfile& device : spec.devices) device.memory = Bytes(16'000'000'000);
    const plan::StagePlan after = *choose_layout(spec).stages;
    const Seconds time = time_of(spec, after);
    EXPECT_LE(time.value(), 1.05 * time_of(spec, before).value()) << seed;
    EXPECT_NEAR(after.forecast / time, 1, 0.1) << seed;
  }
}

// The first sequence then waits at one stage after another, and owners with it.
TEST(LayoutChoice, ForecastsKnowOfWeightsThatComeOnDemand) {
  for (const char* preset : {"opt-13b", "opt-1.3b"}) {
    StepSpec spec = published_spec(preset);
    spec.layout.preload = false;
    const plan::StageWork work = plan::stage_work_of(model::build_step(spec.model, graph_options(spec, 1)), spec.wire);
    for (std::uint64_t seed = 42; seed < 42 + kFleets; ++seed) {
      spec.devices = published_devices(seed);
      const auto plan = plan::find_stages(work, spec.devices, stage_scheduler_options(spec).stages);
      ASSERT_TRUE(plan) << preset << ' ' << seed;
      EXPECT_NEAR(plan->forecast / time_of(spec, *plan), 1, 0.1) << preset << ' ' << seed;
    }
  }
}

// Small fleets rehearse the best candidates: what is taken is never slower than the best forecast, and the same again.
TEST(LayoutChoice, RehearsesStagesInSmallFleets) {
  std::int64_t quicker = 0;
  for (std::uint64_t seed = 0; seed < kSmallFleets; ++seed) {
    auto devices = devices_of(8 + 7 * static_cast<std::int64_t>(seed % 6), seed, seed % 3 == 0 ? 4e6 : 1e7);
    for (fleet::DeviceProfile& device : devices) {
      device.latency = Seconds(0);
      if (seed % 2 == 0) device.uplink = device.downlink;        // fibre
      if (seed % 4 < 2) device.compute = device.compute * 0.05;  // slow processors
    }
    StepSpec spec = spec_of(seed % 3 == 1 ? "gpt2" : "opt", 8, std::move(devices));
    spec.model.n_layer = 6;
    spec.model.seq_len = spec.model.max_pos = 384;
    spec.layout.layout = Layout::stages;
    const plan::StageWork work = plan::stage_work_of(model::build_step(spec.model, graph_options(spec, 1)), spec.wire);
    const auto forecast = plan::find_stages(work, spec.devices, stage_scheduler_options(spec).stages);
    ASSERT_TRUE(forecast) << seed;
    const LayoutChoice choice = choose_layout(spec), again = choose_layout(spec);
    ASSERT_TRUE(choice.stages && again.stages) << seed;
    EXPECT_EQ(choice.stages->forecast.value(), again.stages->forecast.value()) << seed;
    const Seconds taken = time_of(spec, *choice.stages), best_forecast = time_of(spec, *forecast);
    EXPECT_LE(taken.value(), best_forecast.value()) << seed;
    EXPECT_EQ(taken.value(), time_of(spec, *again.stages).value()) << seed;
    quicker += taken < best_forecast ? 1 : 0;
  }
  EXPECT_GE(4 * quicker, static_cast<std::int64_t>(kSmallFleets))
      << "rehearsals settle nothing: the test shows nothing";
}

// After devices have left, the next step is planned with rehearsals as the first one is: never slower than by
// forecasts. Devices are numbered with gaps then.
TEST(LayoutChoice, RehearsesAgainForThoseThatAreLeft) {
  std::int64_t quicker = 0;
  for (std::uint64_t seed = 0; seed < all_or_few(12U, 4U); ++seed) {
    auto devices = devices_of(10 + 3 * static_cast<std::int64_t>(seed % 5), seed, 1e7);
    for (fleet::DeviceProfile& device : devices) {
      // Slow enough for a twentieth of a step to be time for many rehearsals.
      device.uplink = device.uplink * 1e-4;
      device.downlink = seed % 2 == 0 ? device.uplink : device.downlink * 1e-4;
      device.latency = device.jitter = Seconds(0);
      device.compute = device.compute * 1e-4;
    }
    StepSpec spec = spec_of("opt", 8, devices);
    spec.model.n_layer = 6;
    spec.model.seq_len = spec.model.max_pos = 384;
    spec.layout.layout = Layout::stages;
    const plan::StagePlan first = *choose_layout(spec).stages;
    const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
    const auto second_step = [&](bool rehearse) {
      fleet::ChurnTrace churn;
      for (const std::int64_t leaver : {0, 4}) {
        churn.push_back({first.forecast * 0.01, DeviceId(leaver), fleet::ChurnKind::leave, 1.0});
      }
      SimulatedFleet fleet(devices, spec.server(), spec.wire, churn);
      StageSchedulerOptions options = stage_scheduler_options(spec);
      options.rehearse = rehearse;
      options.learn = false;  // the same devices are believed in both
      StageScheduler scheduler(fleet, graph, first, options);
      (void)scheduler.run();
      const Seconds time = scheduler.run().time;
      EXPECT_EQ(std::ssize(fleet.devices()), std::ssize(devices) - 2) << seed;
      return time;
    };
    const Seconds with = second_step(true), without = second_step(false);
    EXPECT_LE(with.value(), without.value()) << seed;
    EXPECT_EQ(with.value(), second_step(true).value()) << seed;
    quicker += with < without ? 1 : 0;
  }
  EXPECT_GE(4 * quicker, static_cast<std::int64_t>(kSmallFleets))
      << "rehearsals settle nothing: the test shows nothing";
}

// A large fleet goes by the forecast, where the chain of sequences takes most of the step: a rehearsal would cost more
// than its plan. Where the interface does, it rehearses, and is the quicker for it.
TEST(LayoutChoice, GoesByForecastsOfStagesInLargeFleets) {
  StepSpec spec = spec_of("opt", 8, devices_of(130, 3));
  spec.layout.layout = Layout::stages;
  spec.batch = 128;
  const plan::StageWork work = plan::stage_work_of(model::build_step(spec.model, graph_options(spec, 1)), spec.wire);
  std::vector<fleet::DeviceProfile> calm = spec.devices;
  for (fleet::DeviceProfile& device : calm) device.jitter = Seconds(0);
  const auto found = plan::find_stages(work, calm, stage_scheduler_options(spec).stages);
  ASSERT_TRUE(found);
  ASSERT_GT(found->chain.value(), 0.75 * found->forecast.value());
  const LayoutChoice choice = choose_layout(spec);
  EXPECT_EQ(choice.stages->forecast.value(), found->forecast.value());
  EXPECT_EQ(choice.stages->bytes_down.value(), found->bytes_down.value());

  spec.plan.server.nic_out = spec.plan.server.nic_in = BytesPerSecond(1e8);
  for (fleet::DeviceProfile& device : spec.devices) device.uplink = device.downlink = BytesPerSecond(1e8);
  const auto by_forecast = plan::find_stages(work, spec.devices, stage_scheduler_options(spec).stages);
  ASSERT_TRUE(by_forecast);
  EXPECT_LT(time_of(spec, *choose_layout(spec).stages).value(), time_of(spec, *by_forecast).value());
}

// Forecasts know least of what waits for slow processors, so a large fleet is rehearsed where its processors are
// unlike.
TEST(LayoutChoice, RehearsesLargeFleetsOfUnlikeProcessors) {
  StepSpec spec = spec_of("opt", 8, devices_of(130, 3));
  spec.layout.layout = Layout::stages;
  spec.batch = 128;
  std::size_t k = 0;
  for (fleet::DeviceProfile& device : spec.devices) {
    device.jitter = Seconds(0);
    device.compute = FlopsPerSecond(1e9 * static_cast<double>(1 + ++k % 10));
  }
  const plan::StageWork work = plan::stage_work_of(model::build_step(spec.model, graph_options(spec, 1)), spec.wire);
  const auto by_forecast = plan::find_stages(work, spec.devices, stage_scheduler_options(spec).stages);
  ASSERT_TRUE(by_forecast);
  const LayoutChoice choice = choose_layout(spec);
  const Seconds time = time_of(spec, *choice.stages);
  EXPECT_DOUBLE_EQ(choice.stages->forecast.value(), time.value()) << "not rehearsed";
  EXPECT_LT(time.value(), 0.97 * time_of(spec, *by_forecast).value());
}

}  // namespace
}  // namespace cleave::sched
