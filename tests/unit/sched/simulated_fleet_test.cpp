// The simulated fleet at its interface: what churn, forgetting and deadlines do to tasklets that are under way, and in
// which order things happen at one time.
#include <gmock/gmock.h>

#include <map>
#include <utility>

#include "cleave/plan/cost.hpp"
#include "graphs.hpp"
#include "quiet_observer.hpp"

namespace cleave::sched {
namespace {

using fleet::ChurnKind;
using ::testing::ElementsAre;

constexpr Seconds kLong{1e6};
const GemmBox kBlock{0, 100, 0, 60, 0, 500};

class SimulatedFleetTest : public ::testing::Test {
 protected:
  // Devices alike, of which each has its block within half a second to a second.
  static SimulatedFleet fleet_of(std::int64_t count, fleet::ChurnTrace churn = {}) {
    std::vector<fleet::DeviceProfile> devices;
    for (std::int64_t i = 0; i < count; ++i) devices.push_back(device(i, 1e8, 1e6, 1e5));
    return {std::move(devices), wide_server(), DType::f32, std::move(churn)};
  }
  static Tasklet block(std::int64_t id, DeviceId device) {
    Tasklet tasklet;
    tasklet.id = TaskletId(id);
    tasklet.op = OpId(0);
    tasklet.piece.device = device;
    tasklet.piece.box = kBlock;
    tasklet.piece.bytes_down = Bytes((100 + 60) * 500 * 4) + plan::kMessageHeader;
    tasklet.piece.bytes_up = Bytes(100 * 60 * 4) + plan::kMessageHeader;
    return tasklet;
  }
  static std::vector<EventKind> kinds_of(SimulatedFleet& fleet) {
    std::vector<EventKind> kinds;
    for (Event event = fleet.next_event(kLong); event.kind != EventKind::timeout; event = fleet.next_event(kLong))
      kinds.push_back(event.kind);
    return kinds;
  }
  // What one block takes on a device that has nothing else to do.
  [[nodiscard]] Seconds time_alone() const {
    SimulatedFleet fleet = fleet_of(1);
    fleet.begin_step(graph_);
    fleet.submit(block(0, DeviceId(0)));
    return fleet.next_event(kLong).at;
  }

  const model::StepGraph graph_ = graph_of({gemm(0, {100, 60, 500}), kernel(1, 1000, 500)});
};

TEST_F(SimulatedFleetTest, WhoLeavesTakesAlongWhatItHeldAndReturnsEmptyHanded) {
  const Seconds leaves = time_alone() / 2, returns = time_alone() * 3;
  SimulatedFleet fleet =
      fleet_of(2, {{leaves, DeviceId(0), ChurnKind::leave, 1}, {returns, DeviceId(0), ChurnKind::join, 1}});
  fleet.begin_step(graph_);
  fleet.submit(block(0, DeviceId(0)));
  fleet.submit(block(1, DeviceId(0)));
  fleet.submit(block(2, DeviceId(1)));
  const std::uint64_t before = fleet.roster();

  const Event left = fleet.next_event(kLong);
  EXPECT_EQ(left.kind, EventKind::left);
  EXPECT_EQ(left.at, leaves);
  EXPECT_EQ(left.device, DeviceId(0));
  EXPECT_EQ(left.unnoticed, Seconds(0));
  EXPECT_NE(fleet.roster(), before);
  ASSERT_EQ(fleet.devices().size(), 1U);
  EXPECT_EQ(fleet.devices()[0].profile.id, DeviceId(1));

  const Event done = fleet.next_event(kLong);
  EXPECT_EQ(done.kind, EventKind::done);
  EXPECT_EQ(done.tasklet, TaskletId(2));
  EXPECT_EQ(done.at, time_alone());

  const std::uint64_t alone = fleet.roster();
  EXPECT_EQ(fleet.next_event(kLong).kind, EventKind::joined);
  EXPECT_NE(fleet.roster(), alone);
  EXPECT_EQ(fleet.devices().size(), 2U);
  fleet.submit(block(3, DeviceId(0)));
  const Event again = fleet.next_event(kLong);
  EXPECT_EQ(again.tasklet, TaskletId(3));
  EXPECT_NEAR((again.at - returns).value(), time_alone().value(), 1e-9);
  EXPECT_EQ(fleet.usage()[0].streams, 1);  // tasklets 0 and 1 were never answered
}

TEST_F(SimulatedFleetTest, AHangIsNoticedByTheMissingHeartbeat) {
  const Seconds hangs = time_alone() / 2;
  SimulatedFleet fleet = fleet_of(1, {{hangs, DeviceId(0), ChurnKind::hang, 1}});
  fleet.begin_step(graph_);
  fleet.submit(block(0, DeviceId(0)));
  EXPECT_EQ(fleet.next_event(hangs + Seconds(0.5)).kind, EventKind::timeout);
  EXPECT_EQ(fleet.devices().size(), 1U);  // nobody knows yet
  const Event left = fleet.next_event(kLong);
  EXPECT_EQ(left.kind, EventKind::left);
  EXPECT_NEAR((left.at - hangs).value(), 1.0, 1e-9);
  EXPECT_NEAR(left.unnoticed.value(), 1.0, 1e-9);
  EXPECT_TRUE(fleet.devices().empty());
}

// It is back before it was missed, so what it held is lost then; and when it hangs again, that is missed after a whole
// second.
TEST_F(SimulatedFleetTest, WhoHangsAndComesBackHasLostWhatItHeld) {
  const Seconds hangs = time_alone() / 2, returns = hangs + Seconds(0.5), again = hangs + Seconds(0.75);
  SimulatedFleet fleet = fleet_of(1, {{hangs, DeviceId(0), ChurnKind::hang, 1},
                                      {returns, DeviceId(0), ChurnKind::join, 1},
                                      {again, DeviceId(0), ChurnKind::hang, 1}});
  fleet.begin_step(graph_);
  fleet.submit(block(0, DeviceId(0)));
  const Event lost = fleet.next_event(kLong), back = fleet.next_event(kLong), missed = fleet.next_event(kLong);
  EXPECT_EQ(lost.kind, EventKind::left);
  EXPECT_EQ(lost.at, returns);
  EXPECT_NEAR(lost.unnoticed.value(), 0.5, 1e-9);
  EXPECT_EQ(back.kind, EventKind::joined);
  EXPECT_EQ(back.at, returns);
  EXPECT_EQ(missed.kind, EventKind::left);
  EXPECT_NEAR((missed.at - again).value(), 1.0, 1e-9);
  EXPECT_NEAR(missed.unnoticed.value(), 1.0, 1e-9);
}

TEST_F(SimulatedFleetTest, ASlowDeviceTakesLongerThanItDeclares) {
  SimulatedFleet fleet = fleet_of(1, {{Seconds(0), DeviceId(0), ChurnKind::slow, 0.25}});
  fleet.begin_step(graph_);
  EXPECT_EQ(fleet.next_event(Seconds(0.001)).kind, EventKind::timeout);  // nobody is told
  fleet.submit(block(0, DeviceId(0)));
  EXPECT_NEAR((fleet.next_event(kLong).at - Seconds(0.001)).value(), 4 * time_alone().value(), 1e-9);
  EXPECT_EQ(fleet.devices()[0].profile.compute, FlopsPerSecond(1e8));
}

TEST_F(SimulatedFleetTest, WhatIsForgottenBeforeItBeganIsNotSent) {
  SimulatedFleet fleet = fleet_of(1);
  fleet.begin_step(graph_);
  fleet.submit(block(0, DeviceId(0)));
  fleet.submit(block(1, DeviceId(0)));
  fleet.forget(TaskletId(1));
  EXPECT_EQ(fleet.next_event(kLong).at, time_alone());
  EXPECT_EQ(fleet.next_event(kLong).kind, EventKind::timeout);
  EXPECT_EQ(fleet.usage()[0].streams, 1);
}

TEST_F(SimulatedFleetTest, WhatIsForgottenOnTheWayIsAnsweredLate) {
  SimulatedFleet fleet = fleet_of(1);
  fleet.begin_step(graph_);
  fleet.submit(block(0, DeviceId(0)));
  ASSERT_EQ(fleet.next_event(time_alone() / 2).kind, EventKind::timeout);
  fleet.forget(TaskletId(0));
  fleet.begin_step(graph_);  // of another graph, for all the fleet knows
  const Event late = fleet.next_event(kLong);
  EXPECT_EQ(late.kind, EventKind::late);
  EXPECT_EQ(late.tasklet, TaskletId(0));
  EXPECT_EQ(late.at, time_alone());
  EXPECT_FALSE(late.op.valid());
  EXPECT_NEAR((late.measured.down + late.measured.compute + late.measured.up).value(), time_alone().value(), 1e-9);
  EXPECT_THAT(kinds_of(fleet), ElementsAre());
}

// What stays on a device is given up while it comes, and when it is there; whoever looks on is told of the end of both,
// once, and of no loss when the device leaves.
TEST_F(SimulatedFleetTest, WhatIsReleasedIsSettledOnce) {
  struct Settled final : QuietObserver {
    std::map<TaskletId, std::pair<Seconds, bool>> at;
    void settled(TaskletId tasklet, Seconds when, bool lost) override {
      EXPECT_TRUE(at.try_emplace(tasklet, when, lost).second) << tasklet.value;
    }
  };
  for (const double released : {0.5, 3.0}) {
    SimulatedFleet fleet = fleet_of(1, {{Seconds(5), DeviceId(0), ChurnKind::leave, 1}});
    Settled seen;
    fleet.set_observer(&seen);
    fleet.begin_step(graph_);
    Tasklet load;
    load.id = load.columns = TaskletId(7);
    load.piece.device = DeviceId(0);
    load.run = {.each = {Bytes(1'000'000), Flops(0), Bytes(0)}, .panels = 2, .last_up = Bytes(0)};
    load.piece.bytes_down = load.run.down();
    fleet.submit(load);
    EXPECT_EQ(fleet.next_event(Seconds(released)).kind, EventKind::timeout);
    fleet.release(load.id, DeviceId(0));
    EXPECT_EQ(fleet.next_event(Seconds(4)).kind, EventKind::timeout);
    EXPECT_EQ(fleet.next_event(kLong).kind, EventKind::left);
    ASSERT_EQ(seen.at.size(), 1U) << released;
    EXPECT_FALSE(seen.at.at(load.id).second) << "lost, though it came";
    EXPECT_LE(seen.at.at(load.id).first, Seconds(4));
  }
}

// At one time: churn, then answers in order of tasklet, then kernels.
TEST_F(SimulatedFleetTest, OrderAtOneTime) {
  const Seconds at = time_alone();
  SimulatedFleet fleet = fleet_of(3, {{at, DeviceId(2), ChurnKind::leave, 1}});
  fleet.begin_step(graph_);
  for (const std::int64_t id : {2, 0, 1}) fleet.submit(block(id, DeviceId((id + 1) % 3)));  // 1 is on device 2
  const Event first = fleet.next_event(kLong), second = fleet.next_event(kLong), third = fleet.next_event(kLong);
  EXPECT_EQ(first.kind, EventKind::left);
  EXPECT_EQ(second.tasklet, TaskletId(0));
  EXPECT_EQ(third.tasklet, TaskletId(2));
  for (const Event& event : {first, second, third}) EXPECT_EQ(event.at, at);
  EXPECT_THAT(kinds_of(fleet), ElementsAre());  // tasklet 1 is gone with its device
}

TEST_F(SimulatedFleetTest, DeadlinesPassWithoutLosingAnything) {
  SimulatedFleet stepwise = fleet_of(2);
  stepwise.begin_step(graph_);
  for (const std::int64_t id : {0, 1, 2, 3}) stepwise.submit(block(id, DeviceId(id % 2)));
  SimulatedFleet at_once = fleet_of(2);
  at_once.begin_step(graph_);
  for (const std::int64_t id : {0, 1, 2, 3}) at_once.submit(block(id, DeviceId(id % 2)));
  int timeouts = 0;
  for (int seen = 0; seen < 4;) {
    const Seconds deadline = stepwise.now() + time_alone() / 7;
    const Event event = stepwise.next_event(deadline);
    if (event.kind == EventKind::timeout) {
      EXPECT_EQ(event.at, deadline);
      EXPECT_EQ(stepwise.now(), deadline);
      ++timeouts;
      continue;
    }
    const Event expected = at_once.next_event(kLong);
    EXPECT_EQ(event.kind, expected.kind);
    EXPECT_EQ(event.tasklet, expected.tasklet);
    EXPECT_EQ(event.at, expected.at);
    ++seen;
  }
  EXPECT_GT(timeouts, 6);
}

TEST_F(SimulatedFleetTest, NextAtIsNeverLaterThanTheNextEvent) {
  SimulatedFleet fleet = fleet_of(2);
  fleet.begin_step(graph_);
  for (const std::int64_t id : {0, 1, 2, 3}) fleet.submit(block(id, DeviceId(id % 2)));
  for (int i = 0; i < 4; ++i) {
    const Seconds next = fleet.next_at();
    EXPECT_GE(next, fleet.now());
    EXPECT_LE(next, fleet.next_event(kLong).at);
  }
  EXPECT_FALSE(std::isfinite(fleet.next_at().value()));
}

// One processor: blocks that the server computes itself and kernels, one after another, for FLOP and for traffic.
TEST_F(SimulatedFleetTest, TheServerComputesOneThingAfterAnother) {
  SimulatedFleet fleet = fleet_of(1);
  fleet.begin_step(graph_);
  fleet.submit(block(0, kServerDevice));
  fleet.start(graph_.operation(OpId(1)));
  const Seconds own = Flops(2.0 * 100 * 60 * 500) / wide_server().compute;
  const Event block_done = fleet.next_event(kLong), kernel_done = fleet.next_event(kLong);
  EXPECT_EQ(block_done.kind, EventKind::done);
  EXPECT_EQ(block_done.device, kServerDevice);
  EXPECT_NEAR(block_done.at.value(), own.value(), 1e-12);
  EXPECT_EQ(kernel_done.kind, EventKind::kernel_done);
  EXPECT_EQ(kernel_done.op, OpId(1));
  EXPECT_NEAR(kernel_done.at.value(), (own + plan::kernel_time(graph_.operation(OpId(1)), wide_server())).value(),
              1e-12);
  EXPECT_EQ(fleet.usage()[0].streams, 0);
}

TEST_F(SimulatedFleetTest, DevicesAreTakenOutAndUpOnce) {
  SimulatedFleet fleet = fleet_of(2);
  fleet.begin_step(graph_);
  fleet.remove_device(DeviceId(1));
  fleet.remove_device(DeviceId(1));
  EXPECT_THAT(kinds_of(fleet), ElementsAre(EventKind::left));
  fleet.return_device(DeviceId(1));
  fleet.return_device(DeviceId(1));
  EXPECT_THAT(kinds_of(fleet), ElementsAre(EventKind::joined));
}

TEST_F(SimulatedFleetTest, FaultsAreThoseOfTheTrace) {
  SimulatedFleet fleet =
      fleet_of(2, {{Seconds(1), DeviceId(1), ChurnKind::faulty, 0.5, fleet::InjectedFaultKind::swap_rows}});
  fleet.begin_step(graph_);
  EXPECT_FALSE(fleet.injected_faults(DeviceId(1)));
  EXPECT_EQ(fleet.next_event(Seconds(2)).kind, EventKind::timeout);  // nobody is told
  ASSERT_TRUE(fleet.injected_faults(DeviceId(1)));
  EXPECT_EQ(fleet.injected_faults(DeviceId(1))->kind, fleet::InjectedFaultKind::swap_rows);
  EXPECT_EQ(fleet.injected_faults(DeviceId(1))->share, 0.5);
  EXPECT_FALSE(fleet.injected_faults(DeviceId(0)));
}

// What waits on a device shows in what a planner is told of it, by who would have to wait.
TEST_F(SimulatedFleetTest, DeviceStatesCountWhatIsStillToCome) {
  SimulatedFleet fleet = fleet_of(2);
  fleet.begin_step(graph_);
  for (const plan::DeviceState& state : fleet.devices()) {
    EXPECT_EQ(state.down_busy + state.compute_busy + state.up_busy, Seconds(0));
  }
  for (const std::int64_t id : {0, 1, 2}) {
    Tasklet tasklet = block(id, DeviceId(0));
    tasklet.urgency = 1;
    fleet.submit(tasklet);
  }
  const double down = ((100.0 + 60) * 500 * 4 + static_cast<double>(plan::kMessageHeader.value())) / 1e6;
  EXPECT_NEAR(fleet.devices()[0].down_busy.value(), 2 * down, 1e-9);  // what is under way is not counted
  // A more urgent one waits for the message under way only, a less urgent one for all.
  EXPECT_NEAR(fleet.devices_ahead_of({0, 0})[0].down_busy.value(), down, 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({2, 0})[0].down_busy.value(), 3 * down, 1e-9);
  EXPECT_EQ(fleet.devices()[1].down_busy, Seconds(0));
}

}  // namespace
}  // namespace cleave::sched
