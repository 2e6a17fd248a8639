// What a loss of devices adds to the operations that it hits, by the same operations left alone; who makes blocks that
// are lost over and over; what reports say of it.
#include "cleave/plan/cost.hpp"
#include "graphs.hpp"
#include "recovery/losses.hpp"

namespace cleave::sched {
namespace {

constexpr std::int64_t kOfFleet = 128;

// Two products; a kernel holds the second one back, so that it queues behind the first on every device.
model::StepGraph two_products() {
  return graph_of({gemm(0, {16384, 8192, 4096}), kernel(1, 1000, 1000), gemm(2, {16384, 8192, 4096}, {1})});
}

struct Ends {
  Seconds first, second;
};

Ends run(fleet::ChurnTrace churn, StepReport* told = nullptr) {
  SimulatedFleet fleet(edge_devices(kOfFleet, {0, 0}), wide_server(), DType::f32, std::move(churn));
  Scheduler scheduler(fleet, options_of());
  const model::StepGraph graph = two_products();
  const StepReport report = scheduler.run(graph);
  if (told != nullptr) *told = report;
  Ends ends;
  for (const OperationTiming& timing : report.operations) {
    if (timing.op == OpId(0)) ends.first = timing.end;
    if (timing.op == OpId(2)) ends.second = timing.end;
  }
  return ends;
}

fleet::ChurnTrace lost_at(Seconds at, std::int64_t count) {
  fleet::ChurnTrace trace;
  for (std::int64_t d = 0; d < count; ++d) trace.push_back({at, DeviceId(d * 17), fleet::ChurnKind::leave, 1.0});
  return trace;
}

TEST(StageRecovery, BlocksThatAreComputedAgainDoNotQueueBehindLaterOperations) {
  const Ends calm = run({});
  for (const double moment : {0.3, 0.5, 0.7, 0.8}) {
    for (const std::int64_t count : {1, 3, 5}) {
      StepReport report;
      const Ends hit = run(lost_at(calm.first * moment, count), &report);
      ASSERT_GT(report.lost, 0);
      EXPECT_LE((hit.first - calm.first).value(), 0.015 * calm.first.value()) << count << " at " << moment;
      // The devices are away for the rest of it, and both products' blocks are recomputed before it can end.
      const double share = static_cast<double>(count) / kOfFleet;
      EXPECT_LT((hit.second - calm.second).value(), 2 * share * calm.second.value()) << count << " at " << moment;
    }
  }
}

TEST(StageRecovery, LoadsCountWhatIsAheadAndWhatIsUnderWay) {
  const model::StepGraph graph = two_products();
  SimulatedFleet fleet({device(0, 1e12, 1e6, 1e6)}, wide_server(), DType::f32);
  fleet.begin_step(graph);
  const auto tasklet = [&](std::int64_t id, std::int64_t op, std::int64_t turn) {
    Tasklet t{.id = TaskletId(id), .op = OpId(op), .piece = {}, .turn = turn};
    t.piece.box = {0, 100, 0, 100, 0, 4096};
    plan::estimate_cost(plan::work_of(graph.operation(OpId(op)), DType::f32), t.piece, fleet.devices()[0],
                        options_of().plan);
    return t;
  };
  const Tasklet earlier = tasklet(0, 0, 1), later = tasklet(1, 2, 3);
  fleet.submit(earlier);
  fleet.submit(later);
  const Seconds one = earlier.piece.bytes_down / BytesPerSecond(1e6);
  // Its only panel is under way.
  EXPECT_NEAR(fleet.devices_ahead_of({0, 0})[0].down_busy.value(), one.value(), 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 2})[0].down_busy.value(), one.value(), 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 3})[0].down_busy.value(), 2 * one.value(), 1e-9);
  // Results are ahead only of what does not go ahead of their tasklets.
  const Seconds up = earlier.piece.bytes_up / BytesPerSecond(1e6);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 0})[0].up_busy.value(), 0, 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 2})[0].up_busy.value(), up.value(), 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({1, 0})[0].up_busy.value(), 2 * up.value(), 1e-9);
}

// Operands are not sent for longer than the loss is known of; the rest of the time blocks are computed.
TEST(Losses, ResendingIsAPartOfTheTimeSinceTheLoss) {
  Losses losses;
  const int loss = losses.open(OpId(1), "op", Seconds(10), Seconds(0.5), 1, 2);
  losses.answered(loss, Seconds(12), Seconds(5));
  EXPECT_EQ(losses.all().front().resending, Seconds(2));
  EXPECT_EQ(losses.all().front().recomputing, Seconds(0));
  losses.answered(loss, Seconds(16), Seconds(3));
  EXPECT_EQ(losses.all().front().resending, Seconds(3));
  EXPECT_EQ(losses.all().front().recomputing, Seconds(3));
  EXPECT_EQ(losses.all().front().detection, Seconds(0.5));
}

// Of devices that are missed at one moment the one that was silent for longest counts, whichever is told of last.
TEST(StageRecovery, DetectionIsTheLongestSilence) {
  for (const std::int64_t first : {0, 1}) {
    const Seconds at(2.0);
    SimulatedFleet fleet({device(0, 1e9, 1e6, 1e6), device(1, 1e9, 1e6, 1e6), device(2, 1e9, 1e6, 1e6)}, wide_server(),
                         DType::f32,
                         {{at - Seconds(0.5), DeviceId(0), fleet::ChurnKind::hang, 1},
                          {at, DeviceId(first), fleet::ChurnKind::leave, 1},
                          {at, DeviceId(1 - first), fleet::ChurnKind::leave, 1}});
    const StepReport report = Scheduler(fleet, options_of()).run(graph_of({gemm(0, {4000, 3000, 500})}));
    ASSERT_EQ(report.losses.size(), 1U);
    EXPECT_EQ(report.losses[0].devices, 2);
    EXPECT_NEAR(report.losses[0].detection.value(), 0.5, 1e-9);
  }
}

// A slow device is lost, and a quick one has made its block again long before the slow one would have answered: nothing
// was added to the operation.
TEST(StageRecovery, WhatWouldHaveTakenLongerAddsNothing) {
  SimulatedFleet fleet({device(0, 1e12, 1e5, 1e6), device(1, 1e12, 1e8, 1e8)}, wide_server(), DType::f32,
                       {{Seconds(1), DeviceId(0), fleet::ChurnKind::leave, 1}});
  const StepReport report =
      Scheduler(fleet, options_of(plan::Partition::equal)).run(graph_of({gemm(0, {1000, 1000, 500})}));
  ASSERT_EQ(report.losses.size(), 1U);
  EXPECT_LT(report.time.value(), 5);
  EXPECT_EQ(report.recovery, Seconds(0));
  EXPECT_EQ(report.losses[0].added, Seconds(0));
}

/// Loses the answers of devices to an operation, so many of them.
class LosesAnswers final : public ForwardingFleet<> {
 public:
  LosesAnswers(Fleet& fleet, OpId of, std::int64_t count) : ForwardingFleet(fleet), of_(of), left_(count) {}
  Event next_event(Seconds deadline) override {
    Event event = ForwardingFleet::next_event(deadline);
    if (event.kind == EventKind::done && event.op == of_ && event.device != kServerDevice && left_-- > 0)
      event.kind = EventKind::lost;
    return event;
  }

 private:
  OpId of_;
  std::int64_t left_;
};

std::vector<fleet::DeviceProfile> alike(std::int64_t count) {
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t id = 0; id < count; ++id) devices.push_back(device(id, 1e9, 1e6, 1e6));
  return devices;
}

// One block whose answer never comes: the server makes it after eight losses, however many devices could be asked.
TEST(StageRecovery, TheServerMakesWhatIsLostOverAndOver) {
  const model::StepGraph graph = graph_of({attention(0, {1, 32, 1, 1, 8})});
  SimulatedFleet behind(alike(40), wide_server(), DType::f32);
  LosesAnswers fleet(behind, OpId(0), 1'000'000);
  const StepReport report = Scheduler(fleet, options_of()).run(graph);
  EXPECT_EQ(report.lost, 8);
  EXPECT_EQ(report.devices, 0);
}

// The only device fails three times in a row and would be left out for a minute: there is nobody else, so it is asked
// all the same.
TEST(StageRecovery, WhereAllFailNobodyIsLeftOut) {
  const model::StepGraph graph = graph_of({attention(0, {1, 32, 1, 1, 8}), attention(1, {1, 32, 1, 1, 8}, {0})});
  SimulatedFleet behind(alike(1), wide_server(), DType::f32);
  LosesAnswers fleet(behind, OpId(0), 3);
  const StepReport report = Scheduler(fleet, options_of()).run(graph);
  EXPECT_EQ(report.lost, 3);
  EXPECT_EQ(report.devices, 1);
}

TEST(Reports, PartsAddUp) {
  constexpr std::int64_t StepReport::*kCounts[] = {&StepReport::tasklets,   &StepReport::lost,   &StepReport::redone,
                                                   &StepReport::rejected,   &StepReport::copies, &StepReport::late,
                                                   &StepReport::server_sums};
  const auto count = [&](std::int64_t by) {
    StepReport report;
    report.time = Seconds(1 * static_cast<double>(by));
    report.bytes_down = Bytes(2 * by);
    report.bytes_up = Bytes(3 * by);
    for (std::int64_t i = 0; i < std::ssize(kCounts); ++i) report.*kCounts[i] = (4 + i) * by;
    report.recovery = Seconds(11 * static_cast<double>(by));
    report.planning = Seconds(12 * static_cast<double>(by));
    report.energy = Joules(13 * static_cast<double>(by));
    report.operations.resize(static_cast<std::size_t>(by));
    report.losses.resize(static_cast<std::size_t>(by));
    return report;
  };
  for (const bool part : {false, true}) {
    StepReport sum = count(1);
    part ? add_part(sum, count(2)) : add_abandoned(sum, count(2));
    const StepReport all = count(3);
    EXPECT_EQ(sum.bytes_down, all.bytes_down);
    EXPECT_EQ(sum.bytes_up, all.bytes_up);
    for (const auto figure : kCounts) EXPECT_EQ(sum.*figure, all.*figure);
    EXPECT_EQ(sum.recovery, all.recovery);
    EXPECT_EQ(sum.planning, all.planning);
    // A part is within the step's time; an attempt that was given up is not.
    EXPECT_EQ(sum.time, part ? Seconds(1) : all.time);
    EXPECT_EQ(sum.energy, part ? Joules(13) : all.energy);
    EXPECT_EQ(sum.operations.size(), part ? 3U : 1U);
    EXPECT_EQ(sum.losses.size(), part ? 3U : 1U);
  }
}

}  // namespace
}  // namespace cleave::sched
