// Times that can be worked out by hand, to the nanosecond; bytes that must add up; the same run twice.
#include <algorithm>

#include "cleave/plan/cost.hpp"
#include "graphs.hpp"

namespace cleave::sched {
namespace {

constexpr double kNanosecond = 1e-9;
constexpr double kHeader = static_cast<double>(plan::kMessageHeader.value());

Tasklet whole_block(std::int64_t id, std::int64_t device, GemmBox box, OpId op = OpId(0)) {
  Tasklet tasklet;
  tasklet.id = TaskletId(id);
  tasklet.op = op;
  tasklet.piece.device = DeviceId(device);
  tasklet.piece.box = box;
  return tasklet;
}

// In, computed, out: T = (m+n) k b / downlink + 2 m n k / compute + m n b / uplink, a header and a latency each way.
TEST(ClosedForms, OneDevice) {
  const model::StepGraph graph = graph_of({gemm(0, {100, 60, 500})});
  SimulatedFleet fleet({device(0, 1e9, 2e6, 5e5, 0.01)}, wide_server(), DType::f16);
  fleet.begin_step(graph);
  fleet.submit(whole_block(0, 0, {0, 100, 0, 60, 0, 500}));
  const Event event = fleet.next_event(Seconds(1e9));
  const double down = (160.0 * 500 * 2 + kHeader) / 2e6, compute = 2.0 * 100 * 60 * 500 / 1e9,
               up = (100.0 * 60 * 2 + kHeader) / 5e5;
  EXPECT_EQ(event.kind, EventKind::done);
  EXPECT_NEAR(event.at.value(), down + 0.01 + compute + up + 0.01, kNanosecond);
  EXPECT_NEAR(fleet.usage()[0].down.value(), down, kNanosecond);
  EXPECT_NEAR(fleet.usage()[0].compute.value(), compute, kNanosecond);
  EXPECT_NEAR(fleet.usage()[0].up.value(), up, kNanosecond);
}

// With many equal tasklets the slowest resource never pauses: T = first in + N of the slowest + last out.
TEST(ClosedForms, TaskletsOverlapOnOneDevice) {
  constexpr std::int64_t kCount = 10;
  const model::StepGraph graph = graph_of({gemm(0, {10 * kCount, 50, 400})});
  SimulatedFleet fleet({device(0, 1e9, 1e6, 1e5)}, wide_server(), DType::f32);
  fleet.begin_step(graph);
  for (std::int64_t i = 0; i < kCount; ++i) fleet.submit(whole_block(i, 0, {10 * i, 10 * i + 10, 0, 50, 0, 400}));
  Event last;
  for (std::int64_t i = 0; i < kCount; ++i) last = fleet.next_event(Seconds(1e9));
  const double down = (60.0 * 400 * 4 + kHeader) / 1e6, compute = 2.0 * 10 * 50 * 400 / 1e9,
               up = (10.0 * 50 * 4 + kHeader) / 1e5;
  ASSERT_GT(down, std::max(compute, up));
  EXPECT_NEAR(last.at.value(), kCount * down + compute + up, kNanosecond);
}

TEST(ClosedForms, TwoUnlikeDevices) {
  const model::StepGraph graph = graph_of({gemm(0, {300, 80, 200})});
  SimulatedFleet fleet({device(0, 4e9, 8e6, 1e6, 0.002), device(1, 1e9, 1e6, 4e5, 0.05)}, wide_server(), DType::f32);
  fleet.begin_step(graph);
  fleet.submit(whole_block(0, 0, {0, 250, 0, 80, 0, 200}));
  fleet.submit(whole_block(1, 1, {250, 300, 0, 80, 0, 200}));
  const double first =
      (330.0 * 200 * 4 + kHeader) / 8e6 + 2.0 * 250 * 80 * 200 / 4e9 + (250.0 * 80 * 4 + kHeader) / 1e6 + 2 * 0.002;
  const double second =
      (130.0 * 200 * 4 + kHeader) / 1e6 + 2.0 * 50 * 80 * 200 / 1e9 + (50.0 * 80 * 4 + kHeader) / 4e5 + 2 * 0.05;
  const Event a = fleet.next_event(Seconds(1e9)), b = fleet.next_event(Seconds(1e9));
  EXPECT_EQ(a.device, DeviceId(0));
  EXPECT_NEAR(a.at.value(), first, kNanosecond);
  EXPECT_EQ(b.device, DeviceId(1));
  EXPECT_NEAR(b.at.value(), second, kNanosecond);
}

// The interface serves one after another; each link then only adds what it is slower by.
TEST(ClosedForms, SaturatedServerLink) {
  constexpr std::int64_t kDevices = 8;
  const model::StepGraph graph = graph_of({gemm(0, {20 * kDevices, 30, 300})});
  fleet::ServerProfile server = wide_server();
  server.nic_out = BytesPerSecond(1e6);
  server.nic_in = BytesPerSecond(1e5);
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t i = 0; i < kDevices; ++i) devices.push_back(device(i, 1e12, 5e6, 4e6));
  SimulatedFleet fleet(devices, server, DType::f32);
  fleet.begin_step(graph);
  for (std::int64_t i = 0; i < kDevices; ++i) fleet.submit(whole_block(i, i, {20 * i, 20 * i + 20, 0, 30, 0, 300}));
  const double out = (50.0 * 300 * 4 + kHeader) / 1e6, in = (20.0 * 30 * 4 + kHeader) / 1e5,
               compute = 2.0 * 20 * 30 * 300 / 1e12;
  ASSERT_GT(out, in);
  for (std::int64_t i = 0; i < kDevices; ++i) {
    const Event event = fleet.next_event(Seconds(1e9));
    EXPECT_EQ(event.device, DeviceId(i));
    EXPECT_NEAR(event.at.value(), static_cast<double>(i + 1) * out + compute + in, kNanosecond);
  }
}

// Of those that wait for the interface the most urgent is next, then the one whose device takes longest afterwards.
TEST(ClosedForms, TheInterfaceServesTheLongestTailFirst) {
  const model::StepGraph graph = graph_of({gemm(0, {80, 30, 300})});
  fleet::ServerProfile server = wide_server();
  server.nic_out = BytesPerSecond(1e6);
  const std::vector<double> uplinks{4e6, 4e6, 1e4, 2e6};
  std::vector<fleet::DeviceProfile> devices;
  for (std::size_t i = 0; i < uplinks.size(); ++i) {
    devices.push_back(device(static_cast<std::int64_t>(i), 1e12, 5e6, uplinks[i]));
  }
  SimulatedFleet fleet(devices, server, DType::f32);
  fleet.begin_step(graph);
  for (std::int64_t i = 0; i < 4; ++i) {
    Tasklet tasklet = whole_block(i, i, {20 * i, 20 * i + 20, 0, 30, 0, 300});
    tasklet.urgency = i == 3 ? 0 : 1;
    fleet.submit(tasklet);
  }
  // The first is served at once; then the urgent one, then that with the slow uplink.
  const double out = (50.0 * 300 * 4 + kHeader) / 1e6, in = 20.0 * 30 * 4 + kHeader,
               compute = 2.0 * 20 * 30 * 300 / 1e12;
  const std::vector<double> turn{1, 4, 3, 2};
  std::vector<double> ends(uplinks.size());
  for (std::size_t i = 0; i < uplinks.size(); ++i) {
    const Event event = fleet.next_event(Seconds(1e9));
    ends[static_cast<std::size_t>(event.device.value)] = event.at.value();
  }
  for (std::size_t i = 0; i < uplinks.size(); ++i) {
    EXPECT_NEAR(ends[i], turn[i] * out + compute + in / uplinks[i], kNanosecond) << i;
  }
}

// A device that leaves while it waits for the interface delays nobody.
TEST(ClosedForms, WhoLeavesWaitsNoLonger) {
  const model::StepGraph graph = graph_of({gemm(0, {60, 30, 300})});
  fleet::ServerProfile server = wide_server();
  server.nic_out = BytesPerSecond(1e6);
  SimulatedFleet fleet({device(0, 1e12, 5e6, 4e6), device(1, 1e12, 5e6, 1e6), device(2, 1e12, 5e6, 4e6)}, server,
                       DType::f32);
  fleet.begin_step(graph);
  for (std::int64_t i = 0; i < 3; ++i) fleet.submit(whole_block(i, i, {20 * i, 20 * i + 20, 0, 30, 0, 300}));
  fleet.remove_device(DeviceId(1));
  Event last;
  for (int i = 0; i < 3; ++i) last = fleet.next_event(Seconds(1e9));
  EXPECT_EQ(last.device, DeviceId(2));
  EXPECT_NEAR(last.at.value(),
              2 * (50.0 * 300 * 4 + kHeader) / 1e6 + 2.0 * 20 * 30 * 300 / 1e12 + (20.0 * 30 * 4 + kHeader) / 4e6,
              kNanosecond);
}

// Kernels run one after another, each for its traffic at the memory bandwidth.
TEST(ClosedForms, KernelsAreSerial) {
  const model::StepGraph graph = graph_of({kernel(0, 1000, 500), kernel(1, 1000, 500)});
  SimulatedFleet fleet({device(0, 1e9, 1e6, 1e6)}, wide_server(), DType::f32);
  const StepReport report = Scheduler(fleet, {.plan = {.server = wide_server()}}).run(graph);
  EXPECT_NEAR(report.time.value(), 2 * 1000.0 * 500 * 8 / 100e9, kNanosecond);
}

// One operation on one device, through planner and scheduler: as long as the planner says.
TEST(ClosedForms, ScheduledOperationTakesItsPlannedTime) {
  const model::StepGraph graph = graph_of({gemm(0, {100, 60, 500})});
  const SchedulerOptions options{.plan = {.server = wide_server()}, .wire = DType::f16};
  SimulatedFleet fleet({device(0, 1e9, 2e6, 5e5, 0.01)}, wide_server(), DType::f16);
  const StepReport report = Scheduler(fleet, options).run(graph);
  ASSERT_EQ(report.operations.size(), 1U);
  EXPECT_NEAR(report.time.value(), report.operations[0].planned.value(), kNanosecond);
}

// Each resource takes its power while it is busy, and the device its own all the time.
TEST(ClosedForms, Energy) {
  fleet::DeviceProfile profile = device(0, 1e9, 1e6, 1e6);
  profile.power_compute = Watts(7);
  profile.power_radio = Watts(3);
  profile.power_idle = Watts(2);
  Usage usage;
  usage.down = Seconds(5);
  usage.compute = Seconds(11);
  usage.up = Seconds(13);
  EXPECT_DOUBLE_EQ(energy_of(profile, usage, Seconds(20)).value(), 7 * 11 + 3 * (5 + 13) + 2 * 20);
}

// Of a step that is like the one before, energy is as much again: what was used before is not counted twice.
TEST(ClosedForms, EachStepHasItsOwnEnergy) {
  const model::StepGraph graph = graph_of({gemm(0, {100, 60, 500})});
  for (const bool radio : {false, true}) {
    fleet::DeviceProfile profile = device(0, 1e9, 2e6, 5e5);
    (radio ? profile.power_radio : profile.power_compute) = Watts(3);
    SimulatedFleet fleet({profile}, wide_server(), DType::f32);
    Scheduler scheduler(fleet, options_of());
    const Joules first = scheduler.run(graph).energy, second = scheduler.run(graph).energy;
    EXPECT_GT(first.value(), 0);
    EXPECT_NEAR(second.value(), first.value(), 1e-9 * first.value());
  }
}

// What a device did before it left, and its idling, count as much as if it had stayed.
TEST(ClosedForms, EnergyOfDevicesThatLeftCounts) {
  const model::StepGraph graph = graph_of({gemm(0, {100, 60, 500})});
  std::vector<fleet::DeviceProfile> profiles = {device(0, 1e9, 2e6, 5e5), device(1, 1e9, 2e6, 5e5)};
  for (fleet::DeviceProfile& profile : profiles) profile.power_compute = profile.power_radio = Watts(3);
  SimulatedFleet calm(profiles, wide_server(), DType::f32);
  const Seconds step = Scheduler(calm, options_of()).run(graph).time;
  SimulatedFleet fleet(profiles, wide_server(), DType::f32, {{step * 0.5, DeviceId(1), fleet::ChurnKind::leave, 1.0}});
  const StepReport report = Scheduler(fleet, options_of()).run(graph);
  ASSERT_EQ(fleet.devices().size(), 1);
  ASSERT_GT(fleet.usage()[1].down.value(), 0);
  double expected = 0;
  for (std::size_t i = 0; i < 2; ++i) expected += energy_of(profiles[i], fleet.usage()[i], report.time).value();
  EXPECT_NEAR(report.energy.value(), expected, 1e-9 * expected);
}

TEST(Conservation, BytesAndBusyTimes) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const model::StepGraph graph = random_graph(30, seed);
    fleet::ServerProfile server = wide_server();
    server.nic_out = server.nic_in = BytesPerSecond(5e7);
    SimulatedFleet fleet(mixed_devices(9, seed), server, DType::f32);
    const StepReport report = Scheduler(fleet, {.plan = {.server = server}}).run(graph);
    Bytes down, up;
    std::int64_t tasklets = 0;
    for (const Usage& used : fleet.usage()) {
      down += used.bytes_down;
      up += used.bytes_up;
      tasklets += used.streams;
      for (const Seconds busy : {used.down, used.compute, used.up}) {
        EXPECT_LE(busy.value(), report.time.value() * (1 + 1e-12));
      }
    }
    EXPECT_EQ(down, report.bytes_down);
    EXPECT_EQ(up, report.bytes_up);
    EXPECT_EQ(tasklets, report.tasklets);
    EXPECT_LE((report.bytes_down / server.nic_out).value(), report.time.value());
    EXPECT_LE((report.bytes_up / server.nic_in).value(), report.time.value());
  }
}

TEST(Conservation, MemoryIsNeverExceeded) {
  const model::StepGraph graph = random_graph(40, 7);
  const std::vector<fleet::DeviceProfile> devices = mixed_devices(6, 7);
  SimulatedFleet fleet(devices, wide_server(), DType::f32);
  (void)Scheduler(fleet, {.plan = {.server = wide_server()}}).run(graph);
  for (std::size_t i = 0; i < devices.size(); ++i) EXPECT_LE(fleet.usage()[i].memory_peak, devices[i].memory);
}

TEST(Determinism, TwoRunsGiveTheSameTimes) {
  const model::StepGraph graph = random_graph(40, 11);
  const fleet::ChurnTrace churn{{Seconds(0.02), DeviceId(1), fleet::ChurnKind::leave, 1},
                                {Seconds(0.05), DeviceId(2), fleet::ChurnKind::slow, 0.2},
                                {Seconds(0.2), DeviceId(1), fleet::ChurnKind::join, 1}};
  std::vector<OperationTiming> first;
  for (int run = 0; run < 2; ++run) {
    SimulatedFleet fleet(mixed_devices(7, 3), wide_server(), DType::f32, churn, 5);
    const StepReport report = Scheduler(fleet, {.plan = {.server = wide_server()}}).run(graph);
    if (run == 0) {
      first = report.operations;
      continue;
    }
    ASSERT_EQ(first.size(), report.operations.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(first[i].op, report.operations[i].op);
      EXPECT_EQ(first[i].start, report.operations[i].start);
      EXPECT_EQ(first[i].end, report.operations[i].end);
    }
  }
}

}  // namespace
}  // namespace cleave::sched
