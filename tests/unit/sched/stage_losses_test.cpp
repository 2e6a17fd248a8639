// Steps in stages while devices leave and come back: everything is done, and counted once.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cleave/base/error.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "stage_case.hpp"
#include "stages/stand_ins.hpp"

namespace cleave::sched {
namespace {

TEST(StageLosses, WhateverLeavesEverythingIsDoneOnce) {
  std::int64_t lost = 0, redone = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const model::StepGraph graph = graph_of("opt", 8, 4);
    const auto devices = devices_of(40, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, {{kWide, 0}, DType::f16}).run().time;
    for (const double progress : {0.05, 0.3, 0.6, 0.9, 0.99}) {
      fleet::ChurnTrace churn;
      for (const std::int64_t victim : {3, 17, 29}) {
        churn.push_back({step * progress, DeviceId(victim), fleet::ChurnKind::leave, 1.0});
      }
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
      const StepReport report = scheduler.run();
      expect_all_done_once(scheduler, graph);
      EXPECT_EQ(fleet.devices().size(), devices.size() - 3) << "the devices left within the step";
      lost += report.lost;
      redone += report.redone;
      for (std::size_t i = 0; i < devices.size(); ++i) {
        EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value()) << seed << ' ' << progress;
      }
    }
  }
  EXPECT_GT(lost, 0) << "no loss hit anything";
  EXPECT_GT(redone, 0);
}

TEST(StageLosses, GroupsOfOwnersThatLoseMembersSumEverySequenceOnce) {
  std::int64_t lost = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const model::StepGraph graph = graph_of("opt", 9);
    const auto devices = devices_of(12, seed, 1e9);
    const plan::StagePlan plan =
        owned_by_each_replica(graph, plan::plan_stages(plan::stage_work_of(graph, DType::f16), devices, {kWide, 0}));
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, plan, {{kWide, 0}, DType::f16}).run().time;
    for (const double progress : {0.05, 0.3, 0.6, 0.9, 0.99}) {
      fleet::ChurnTrace churn;
      for (const std::int64_t victim : {2, 7}) {
        churn.push_back({step * progress, DeviceId(victim), fleet::ChurnKind::leave, 1.0});
      }
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      StageScheduler scheduler(fleet, graph, plan, {{kWide, 0}, DType::f16});
      lost += scheduler.run().lost;
      expect_all_done_once(scheduler, graph);
    }
  }
  EXPECT_GT(lost, 0) << "no loss hit anything";
}

TEST(StageLosses, NothingIsSentAgainWhereNothingIsLost) {
  const model::StepGraph graph = graph_of("opt", 8, 4);
  SimulatedFleet fleet(devices_of(40, 1), kWide, DType::f16);
  StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
  const StepReport report = scheduler.run();
  EXPECT_EQ(report.lost, 0);
  EXPECT_EQ(report.redone, 0);
  expect_all_done_once(scheduler, graph);
}

// Devices come back empty-handed within the step, and the next step is planned for those that are there.
TEST(StageLosses, DevicesComeAndGoBetweenAndWithinSteps) {
  const model::StepGraph graph = graph_of("opt", 8, 4);
  const auto devices = devices_of(40, 2);
  SimulatedFleet calm(devices, kWide, DType::f16);
  const Seconds step = StageScheduler(calm, graph, {{kWide, 0}, DType::f16}).run().time;
  fleet::ChurnTrace churn;
  for (std::int64_t i = 0; i < 12; ++i) {
    churn.push_back({step * (0.1 + 0.2 * static_cast<double>(i)), DeviceId(i), fleet::ChurnKind::leave, 1.0});
    churn.push_back({step * (0.25 + 0.2 * static_cast<double>(i)), DeviceId(i),
                     i % 4 == 0 ? fleet::ChurnKind::hang : fleet::ChurnKind::join, 1.0});
  }
  std::ranges::stable_sort(churn, {}, [](const fleet::ChurnEvent& event) { return event.at.value(); });
  SimulatedFleet fleet(devices, kWide, DType::f16, churn);
  StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
  std::int64_t lost = 0;
  for (int i = 0; i < 3; ++i) {
    lost += scheduler.run().lost;
    expect_all_done_once(scheduler, graph);
  }
  EXPECT_GT(lost, 0);
}

TEST(StageLosses, SaysSoWhereNobodyIsLeftToHoldAStage) {
  const model::StepGraph graph = graph_of("opt", 4, 4);
  auto devices = devices_of(6, 3);
  for (fleet::DeviceProfile& device : devices) device.memory = Bytes(6'000'000);
  fleet::ChurnTrace churn;
  for (std::int64_t i = 0; i < 6; ++i) churn.push_back({Seconds(0.5), DeviceId(i), fleet::ChurnKind::leave, 1.0});
  SimulatedFleet fleet(devices, kWide, DType::f16, churn);
  StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
  EXPECT_THROW(scheduler.run(), InputError);
}

class StandIns : public testing::Test {
 protected:
  StandIns() : graph(graph_of("opt", 8, 4)), work(plan::stage_work_of(graph, DType::f16)), cost(work, 1, 2, 128) {}
  std::vector<plan::PieceSlice> all() const { return plan::slices_between(work, cost, 0, 1); }
  static stages::Candidate candidate(std::int32_t device, double downlink, double uplink) {
    stages::Candidate of;
    of.device = device;
    of.memory = 1e9;
    of.downlink = downlink;
    of.uplink = uplink;
    of.compute = 1e15;
    return of;
  }
  model::StepGraph graph;
  plan::StageWork work;
  plan::StageCost cost;  // an MLP half
};

TEST_F(StandIns, PartsOfSlicesFollowEachOtherAndFillThem) {
  for (const std::int64_t count : {1, 2, 3, 7}) {
    std::vector<plan::PieceSlice> joined;
    for (const auto& part : stages::split_slices(work, cost, all(), count, 128)) {
      for (const plan::PieceSlice& slice : part) {
        if (!joined.empty() && joined.back().piece == slice.piece) {
          EXPECT_EQ(joined.back().end, slice.begin);
          joined.back().end = slice.end;
        } else {
          joined.push_back(slice);
        }
      }
    }
    EXPECT_EQ(joined, all()) << count;
  }
}

// Two replicas with links so fast up that only reading counts: halving the sequences halves the time, halving the
// slices does not.
TEST_F(StandIns, SequencesAreDividedWhereReadingTakesTheTime) {
  std::vector<stages::Candidate> two{candidate(0, 1e6, 1e12), candidate(1, 1e6, 1e12)};
  for (stages::Candidate& of : two) of.replica = true;
  const auto parts = stages::share_out(
      work, cost, {.slices = all(), .at_once = 8, .later = 0, .partial = false, .remaining = {}}, two, 128);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].parts, 2);
  EXPECT_EQ(parts[0].part + parts[1].part, 1);
  EXPECT_EQ(parts[0].slices, all());
}

// Nothing has passed yet and there is time to read: only sending counts, and partial sums would take twice the bytes.
TEST_F(StandIns, SlicesAreDividedWhereSendingTakesTheTime) {
  const std::vector<stages::Candidate> two{candidate(0, 1e12, 1e6), candidate(1, 1e12, 1e6)};
  const auto parts = stages::share_out(
      work, cost, {.slices = all(), .at_once = 0, .later = 8, .partial = false, .remaining = Seconds(100)}, two, 128);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].parts, 1);
  EXPECT_NE(parts[0].slices, parts[1].slices);
}

TEST_F(StandIns, AHelperHasRoomAndIsThereInTime) {
  std::vector<stages::Candidate> some{candidate(0, 1e6, 1e6), candidate(1, 1e5, 1e9), candidate(2, 1e6, 9e5)};
  some[0].memory = static_cast<double>(stages::least_memory(cost).value()) - 1;
  const Seconds patience(2 * static_cast<double>(cost.weights().value()) / 1e6);
  const auto helper = stages::choose_helper(some, cost, patience);
  ASSERT_TRUE(helper);
  EXPECT_EQ(helper->device, 2) << "0 lacks a byte, 1 would be late";
  some[2].replica = true;
  EXPECT_FALSE(stages::choose_helper(some, cost, patience)) << "it is one already";
}

}  // namespace
}  // namespace cleave::sched
