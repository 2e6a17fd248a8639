// Bounds and plans beside every layout in stages that there is, where that is few enough: one layer, three devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "cleave/plan/stage_bound.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "stage_case.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

constexpr std::int64_t kDevices = 3;

// Of all plans, one in so many is tried: no divisor of what they are drawn from.
constexpr std::int64_t kOneIn = all_or_few(1, 13);

// Calls use(plan) for every cut into stages, every set of replicas for each of them, every owner of each gradient,
// which a stage's replicas may also sum each by itself; memory is no limit.
template <class Use>
void for_each_plan(const plan::StageWork& work, const std::vector<fleet::DeviceProfile>& devices, const Use& use) {
  constexpr std::int64_t kSets = (1 << kDevices) - 1, kOwners = kDevices + 1;
  const std::vector<std::vector<std::int64_t>> cuts{{0, 1, 2, 3}, {0, 2, 3}};  // the head stands alone
  for (const std::vector<std::int64_t>& cut : cuts) {
    const auto stages = std::ssize(cut) - 1;
    const auto all = static_cast<std::int64_t>(std::pow(kSets * kOwners, stages));
    for (std::int64_t number = 0; number < all; number += kOneIn) {
      plan::StagePlan plan;
      plan.chunk = plan::kChunkTokens;
      std::int64_t rest = number;
      for (std::int64_t s = 0; s < stages; ++s) {
        const std::int64_t replicas = rest % kSets + 1, owner = rest / kSets % kOwners;
        rest /= kSets * kOwners;
        const plan::StageCost cost(work, cut[s], cut[s + 1], plan.chunk);
        plan::Stage stage{cut[s], cut[s + 1], cost.weights(), {}};
        for (std::int64_t i = 0; i < kDevices; ++i) {
          if ((replicas >> i & 1) == 0) continue;
          plan::StageReplica replica;
          replica.device = devices[static_cast<std::size_t>(i)].id;
          stage.replicas.push_back(replica);
        }
        const auto own = [&](DeviceId device, std::int64_t group, bool replica) {
          plan::GradientOwner of;
          of.device = device;
          of.stage = s;
          of.group = group;
          of.slices = plan::slices_between(work, cost, 0, 1);
          of.replica = replica;
          if (!replica) of.weights = plan::owner_cost(work, cost, of.slices, plan.chunk).weights;
          plan.owners.push_back(of);
        };
        if (owner == kDevices) {
          for (std::int64_t group = 0; group < std::ssize(stage.replicas); ++group)
            own(stage.replicas[static_cast<std::size_t>(group)].device, group, true);
          plan.groups.push_back(std::ssize(stage.replicas));
        } else {
          own(devices[static_cast<std::size_t>(owner)].id, 0, (replicas >> owner & 1) != 0);
          plan.groups.push_back(1);
        }
        plan.stages.push_back(std::move(stage));
      }
      use(plan);
    }
  }
}

TEST(StageExhaustive, NoLayoutBeatsItsBoundOrTheFloorAndThePlannerIsNearTheBest) {
  constexpr std::uint64_t kSeeds[] = {1, 3};
  for (const std::uint64_t seed : std::span(kSeeds).first(all_or_few(2, 1))) {
    StepSpec spec;
    spec.model = model::small_model("opt", 1, 64, 320, 128);
    spec.model.n_head = spec.model.n_kv_head = 4;
    spec.batch = 3;
    spec.wire = DType::f16;
    spec.plan.server = kWide;
    spec.devices = devices_of(kDevices, seed, 1e8);
    const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 1));
    const plan::StageWork work = plan::stage_work_of(graph, spec.wire);
    const plan::ServerShare share = plan::server_share(graph, kWide);
    const double floor = plan::floor_of(work, spec.devices, kWide, share).value();
    const auto time_of = [&](const plan::StagePlan& plan) {
      SimulatedFleet fleet(spec.devices, spec.server(), spec.wire);
      return StageScheduler(fleet, graph, plan, stage_scheduler_options(spec)).run().time.value();
    };
    double best = std::numeric_limits<double>::infinity(), tightest = 0;
    std::int64_t plans = 0;
    for_each_plan(work, spec.devices, [&](plan::StagePlan& plan) {
      const Seconds bound = plan::stage_lower_bound(work, plan, spec.devices, kWide, share);
      plan.forecast = bound;
      const double time = time_of(plan);
      ASSERT_GE(time, bound.value() * (1 - 1e-9)) << seed << ", plan " << plans;
      best = std::min(best, time);
      tightest = std::max(tightest, bound.value() / time);
      ++plans;
    });
    EXPECT_GE(kOneIn * plans, 28 * 28 * 28 + 28 * 28);
    EXPECT_GT(tightest, 0.9) << "the bound is far from every step: the test shows little";
    EXPECT_GE(best, floor);
    for (const std::int64_t groups : {1, 2}) {
      const model::StepGraph tiles = model::build_step(spec.model, graph_options(spec, groups));
      SimulatedFleet fleet(spec.devices, spec.server(), spec.wire);
      EXPECT_GE(Scheduler(fleet, scheduler_options(spec)).run(tiles).time.value(), floor) << groups << " row groups";
    }
    spec.layout.layout = Layout::stages;
    const double chosen = time_of(*choose_layout(spec).stages);
    // It may also share gradients and keep sequences, which these do not.
    EXPECT_LE(chosen, 1.3 * best) << seed;
  }
}

}  // namespace
}  // namespace cleave::sched
