// A server's interface that is slow for its fleet: devices that it cannot serve are left out, so more devices never
// make a step slower by more than what rehearsals differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "cleave/base/sanitizer.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "fibre_group.hpp"
#include "stage_case.hpp"
#include "stages/stage_planner.hpp"

namespace cleave::sched {
namespace {

// Of so small steps, on as few devices as 6, rehearsals of other fleets differ by so much. (With two layers, which are
// cut into hardly more than two stages, by 7 %.)
constexpr double kMore = 1.05;

StepSpec spec_of(std::int64_t layers, std::int64_t batch, double interface) {
  StepSpec spec = small_spec("opt", layers, 256, batch);
  spec.layout.layout = Layout::stages;
  spec.plan.server.nic_out = spec.plan.server.nic_in = BytesPerSecond(interface);
  return spec;
}

StepSpec preset_spec(const char* preset, std::int64_t tokens, std::int64_t batch) {
  StepSpec spec;
  spec.model = *model::find_preset(preset);
  spec.model.seq_len = tokens;
  spec.batch = batch;
  spec.wire = DType::bf16;
  return spec;
}

// Of the published rates, and memory in proportion to the model.
std::vector<fleet::DeviceProfile> edge_devices(std::int64_t count) { return published_devices(7, count, 1e7); }

std::set<std::int64_t> used(const plan::StagePlan& plan) {
  std::set<std::int64_t> devices;
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StageReplica& replica : stage.replicas) devices.insert(replica.device.value);
  for (const plan::GradientOwner& owner : plan.owners) devices.insert(owner.device.value);
  return devices;
}

Seconds rehearsed(const StepSpec& spec, const plan::StagePlan& plan) {
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  const stages::StagePlanner planner(graph, stage_scheduler_options(spec));
  return planner.rehearse(plan, spec.devices, Seconds(std::numeric_limits<double>::infinity())).value();
}

#ifdef CLEAVE_ADDRESS_SANITIZER
constexpr std::int64_t kBatches[] = {8};  // several times as slow, and for memory alone
constexpr double kInterfaces[] = {1.25e9};
#else
constexpr std::int64_t kBatches[] = {8, 64};
constexpr double kInterfaces[] = {1.25e8, 1.25e9, 1.25e10};
#endif

TEST(FewerDevices, MoreDevicesNeverMakeAStepSlower) {
  const std::vector<fleet::DeviceProfile> all = edge_devices(1100);
  for (const std::int64_t batch : kBatches) {
    for (const double interface : kInterfaces) {
      double least = std::numeric_limits<double>::infinity();
      for (const std::ptrdiff_t count : {64, 200, 1100}) {
        StepSpec spec = spec_of(4, batch, interface);
        spec.devices.assign(all.begin(), all.begin() + count);
        const double time = rehearsed(spec, *choose_layout(spec).stages).value();
        EXPECT_LE(time, kMore * least) << "batch " << batch << ", " << interface << " B/s, " << count << " devices";
        least = std::min(least, time);
      }
    }
  }
}

// The same fleet with a part for every device that is of use takes several times as long.
TEST(FewerDevices, AreSentFewerWeights) {
  StepSpec spec = spec_of(6, 64, 1.25e8);
  spec.devices = edge_devices(600);
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  const plan::StageWork work = plan::stage_work_of(graph, spec.wire);
  plan::StageOptions options = stage_scheduler_options(spec).stages;
  const auto few = plan::find_stages(work, spec.devices, options);
  options.leave_out = false;
  const auto many = plan::find_stages(work, spec.devices, options);
  ASSERT_TRUE(few && many);
  EXPECT_LT(used(*few).size(), 60U);
  EXPECT_GT(used(*many).size(), 200U);
  EXPECT_LT(2 * rehearsed(spec, *few).value(), rehearsed(spec, *many).value());
  EXPECT_LT(few->bytes_down.value() * 2, many->bytes_down.value());
}

// The plan for all of these has a forecast that is far too low, 1.52 times less than that of the next smaller fleet.
TEST(FewerDevices, OneForecastThatIsOffDoesNotEndTheSearch) {
  StepSpec spec = preset_spec("llama2-13b", 256, 256);
  spec.plan.server.nic_out = spec.plan.server.nic_in = BytesPerSecond(1.25e9);
  const auto devices =
      fleet::draw_devices({fibre_group(620, {4.962e12, 11.58e12}, {9132e6, 21310e6}, {11.62e6, 27.11e6}, 0.005)}, 633);
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  const std::vector<plan::StageFleet> fleets =
      plan::stage_fleets(plan::stage_work_of(graph, spec.wire), devices, stage_scheduler_options(spec).stages);
  ASSERT_FALSE(fleets.empty());
  EXPECT_LE(fleets.front().devices.size(), 256U);
}

// Phones among GPUs and laptops, which with half as much memory again have room for a piece in a round. Each round then
// had parts for them, and waited for their links: 624 s, where it had taken 436 s.
TEST(FewerDevices, MoreMemoryOnSlowDevicesMakesNoStepInRoundsSlower) {
  StepSpec spec = preset_spec("llama2-70b", 1024, 8);
  spec.plan.server = kWide;
  const plan::StageWork work = plan::stage_work_of(model::build_step(spec.model, graph_options(spec, 1)), spec.wire);
  const auto step_with = [&](double memory) {
    const auto group = [&](std::int64_t count, double compute, double megabytes, double down, double up,
                           double latency) {
      const double bytes = memory * megabytes * 1e6;
      fleet::DeviceGroup of = fibre_group(count, {compute, compute}, {bytes, bytes}, {down, down}, latency);
      of.uplink_bytes = {up, up};
      return of;
    };
    const auto devices = fleet::draw_devices(
        {group(131, 0.99e12, 1926, 2.867e6, 3.907e6, 0.001), group(36, 3.48e12, 2430, 103.6e6, 19e6, 0.05),
         group(18, 18.8e12, 6930, 39.34e6, 55.48e6, 0.2)},
        1);
    spec.devices = devices;
    return rehearsed(spec, *plan::find_stages(work, devices, stage_scheduler_options(spec).stages)).value();
  };
  EXPECT_LE(step_with(1.5), 1.05 * step_with(1));
}

// A weak device has a stage of its own beside a strong one, or is left out. Which of them was tried had hung on the
// last digit of a search, and so on the unit of time: some of these steps took nine times as long as others.
TEST(FewerDevices, AWeakOneHoldsUpNoStrongOneWhateverTheUnitOfTime) {
  for (const double rate : {0.25, 1.0, 2.0, 4.0, 64.0}) {
    StepSpec spec = small_spec("llama", 3, 192, 16);
    spec.layout.layout = Layout::stages;
    spec.wire = DType::f32;
    spec.plan.server.compute = FlopsPerSecond(1e11 * rate);
    const auto device = [&](std::int64_t id, double compute, double downlink, double uplink, double latency) {
      fleet::DeviceProfile of;
      of.id = DeviceId(id);
      of.memory = Bytes(8'000'000'000);
      of.compute = FlopsPerSecond(compute * rate);
      of.downlink = BytesPerSecond(downlink * rate);
      of.uplink = BytesPerSecond(uplink * rate);
      of.latency = Seconds(latency / rate);
      return of;
    };
    const auto time = [&](std::vector<fleet::DeviceProfile> devices) {
      spec.devices = std::move(devices);
      return rehearsed(spec, *choose_layout(spec).stages);
    };
    const fleet::DeviceProfile weak = device(0, 3e11, 1.6e5, 1e5, 0.002), strong = device(1, 3e13, 5e7, 5e8, 0.3);
    fleet::DeviceProfile alone = strong;
    alone.id = DeviceId(0);
    EXPECT_LE(time({weak, strong}), time({alone}) * kMore) << rate;
  }
}

// What is taken is no slower than what would be taken without rehearsals.
TEST(FewerDevices, RehearsalsMakeNoStepSlower) {
  for (const auto& [interface, count] : {std::pair(1.25e8, std::int64_t{60}), std::pair(1.25e9, std::int64_t{200})}) {
    StepSpec spec = spec_of(2, 8, interface);
    spec.devices = edge_devices(count);
    const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
    const plan::StageWork work = plan::stage_work_of(graph, spec.wire);
    const auto by_forecast = plan::find_stages(work, spec.devices, stage_scheduler_options(spec).stages);
    ASSERT_TRUE(by_forecast);
    EXPECT_LE(rehearsed(spec, *choose_layout(spec).stages), rehearsed(spec, *by_forecast))
        << interface << " B/s, " << count << " devices";
  }
}

// Not only plans that use all of a smaller fleet are rehearsed: between devices on fibre others are quicker.
TEST(FewerDevices, AreGivenTheQuickestOfSeveralLayouts) {
  StepSpec spec = preset_spec("opt-125m", 512, 128);
  spec.plan.server.nic_out = spec.plan.server.nic_in = BytesPerSecond(12.5e9);
  spec.devices = fleet::draw_devices({fibre_group(256, {5e12, 7e12}, {1e9, 3e9}, {5e7, 1e8}, 0)}, 42);
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  const plan::StageWork work = plan::stage_work_of(graph, spec.wire);
  Seconds least(std::numeric_limits<double>::infinity());
  for (const plan::StageFleet& fleet : plan::stage_fleets(work, spec.devices, stage_scheduler_options(spec).stages)) {
    if (fleet.devices.size() > 128) least = std::min(least, rehearsed(spec, fleet.plan));
  }
  const stages::StagePlanner planner(graph, stage_scheduler_options(spec));
  const auto found = planner.quickest(spec.devices, {});
  ASSERT_TRUE(found && found->time);
  EXPECT_LT(*found->time, least * 0.95);
  EXPECT_DOUBLE_EQ(rehearsed(spec, found->plan).value(), found->time->value());
}

// An interface that takes no time leaves nothing to be saved: no other fleet is looked at.
TEST(FewerDevices, AllOfThemBehindAQuickInterface) {
  StepSpec spec = spec_of(6, 64, 1e15);
  spec.devices = edge_devices(100);
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
  const plan::StageWork work = plan::stage_work_of(graph, spec.wire);
  const auto fleets = plan::stage_fleets(work, spec.devices, stage_scheduler_options(spec).stages);
  ASSERT_EQ(fleets.size(), 1U);
  EXPECT_EQ(fleets.front().devices.size(), 100U);
}

}  // namespace
}  // namespace cleave::sched
