// Asteroid's planner against every plan; its allocation against every split; its latency against the equations.
#include "asteroid_plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "asteroid_placement.hpp"
#include "pipeline_grid.hpp"
#include "studies.hpp"

namespace cleave::rivals {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Case {
  std::vector<fleet::DeviceProfile> devices;
  fleet::LinkMatrix links;
  Workload workload;
  std::vector<std::size_t> order;

  Case(std::vector<fleet::DeviceProfile> fleet, std::int64_t layers, std::int64_t batch)
      : devices(std::move(fleet)), workload(describe_workload(small_model(layers), batch, DType::f32)) {
    for (std::size_t d = 0; d < devices.size(); ++d) order.push_back(d);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return devices[a].memory > devices[b].memory; });
  }
};

// The round latency as the reference states it, step by step.
double literal_latency_s(const AsteroidProblem& problem, const std::vector<AsteroidStage>& stages) {
  std::vector<double> forward_s, backward_s, reduce_s;
  for (std::size_t p = 0; p < stages.size(); ++p) {
    const AsteroidStage& stage = stages[p];
    const auto slowest_link = [&](const std::vector<std::size_t>& a, const std::vector<std::size_t>& b) {
      double slowest = kNever;
      for (const std::size_t i : a) {
        for (const std::size_t j : b) {
          if (i != j) slowest = std::min({slowest, problem.network.rate(i, j), problem.network.rate(j, i)});
        }
      }
      return slowest;
    };
    if (p > 0) {
      const double time_s = static_cast<double>(problem.micro_batch) * problem.workload.units[stage.first].input_bytes /
                            slowest_link(stages[p - 1].members, stage.members);
      forward_s.push_back(time_s);
      backward_s.push_back(time_s);
      reduce_s.push_back(0);
    }
    double slowest = 0;
    std::vector<std::size_t> active;
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      if (stage.samples[i] > 0) active.push_back(stage.members[i]);
      slowest = std::max(
          slowest, static_cast<double>(stage.samples[i]) / problem.network.device(stage.members[i]).compute.value());
    }
    const double forward = problem.workload.forward_flops(stage.first, stage.last);
    const double backward = problem.workload.backward_flops(stage.first, stage.last);
    forward_s.push_back(slowest * forward);
    backward_s.push_back(slowest * (backward + (problem.recompute ? forward : 0)));
    const auto g = static_cast<double>(active.size());
    const auto bytes = static_cast<double>(problem.workload.parameters(stage.first, stage.last) * 4);
    reduce_s.push_back(active.size() < 2 ? 0 : 2 * (g - 1) / g * bytes / slowest_link(active, active));
  }
  std::size_t dm = 0;
  const auto e = [&](std::size_t s) { return forward_s[s] + backward_s[s]; };
  for (std::size_t s = 0; s < forward_s.size(); ++s) {
    if (e(s) >= e(dm)) dm = s;
  }
  double latency_s = 0;
  for (std::size_t s = 0; s < forward_s.size(); ++s) {
    double time_s = static_cast<double>(problem.micro_batches) * e(dm) + reduce_s[s];
    for (std::size_t k = 0; k < s; ++k) time_s += forward_s[k];
    for (std::size_t k = s; k < dm; ++k) time_s += e(k);
    for (std::size_t k = dm + 1; k <= s; ++k) time_s -= e(k);
    latency_s = std::max(latency_s, time_s);
  }
  return latency_s;
}

// Calls `visit` with the boundaries of every cut of [0, n) into `parts` runs.
void for_each_cut(std::size_t n, std::size_t parts, const std::function<void(const std::vector<std::size_t>&)>& visit) {
  std::vector<std::size_t> cuts{0};
  const std::function<void()> extend = [&] {
    if (cuts.size() == parts) {
      cuts.push_back(n);
      visit(cuts);
      cuts.pop_back();
      return;
    }
    for (std::size_t next = cuts.back() + 1; next + (parts - cuts.size()) <= n; ++next) {
      cuts.push_back(next);
      extend();
      cuts.pop_back();
    }
  };
  if (parts <= n) extend();
}

double best_of_every_plan_s(const AsteroidProblem& problem) {
  double best_s = kNever;
  const std::size_t units = problem.workload.units.size();
  for (std::size_t used = 1; used <= problem.devices.size(); ++used) {
    for (std::size_t stages = 1; stages <= std::min(units, used); ++stages) {
      for_each_cut(used, stages, [&](const std::vector<std::size_t>& groups) {
        for_each_cut(units, stages, [&](const std::vector<std::size_t>& cuts) {
          std::vector<AsteroidStage> plan;
          for (std::size_t p = 0; p < stages; ++p) {
            AsteroidStage stage;
            stage.first = cuts[p];
            stage.last = cuts[p + 1];
            stage.members.assign(problem.devices.begin() + static_cast<std::ptrdiff_t>(groups[p]),
                                 problem.devices.begin() + static_cast<std::ptrdiff_t>(groups[p + 1]));
            stage.in_flight = static_cast<std::int64_t>(2 * (stages - p) - 1);
            stage.samples = allocate_samples(problem, stage.members, stage.first, stage.last, stage.in_flight).samples;
            if (stage.samples.empty()) return;
            plan.push_back(std::move(stage));
          }
          best_s = std::min(best_s, literal_latency_s(problem, plan));
        });
      });
    }
  }
  return best_s;
}

TEST(AsteroidPlanner, EqualsEveryPlanOnSmallCases) {
  int feasible = 0, split = 0;
  for (const std::int64_t layers : {2, 4, 6}) {
    for (std::int64_t devices = 1; devices <= 5; ++devices) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        // From far too little memory to plenty.
        const double memory = 1e6 * std::pow(2.0, static_cast<double>(seed)) * static_cast<double>(layers);
        const Case c(unlike_devices(devices, seed * 31 + static_cast<std::uint64_t>(devices), memory / 3, memory),
                     layers, 16);
        const Network network(c.devices, c.links);
        const AsteroidProblem problem{.workload = c.workload,
                                      .network = network,
                                      .devices = c.order,
                                      .micro_batch = 4,
                                      .micro_batches = 4,
                                      .recompute = seed % 2 == 1};
        const AsteroidPlan plan = plan_asteroid(problem, c.devices.size());
        const double best_s = best_of_every_plan_s(problem);
        if (best_s == kNever) {
          EXPECT_FALSE(plan.found());
          continue;
        }
        ++feasible;
        ASSERT_TRUE(plan.found());
        if (plan.stages.size() > 1) ++split;
        EXPECT_NEAR(plan.round_s, best_s, 1e-9 * best_s) << layers << " layers, " << devices << " devices";
        EXPECT_NEAR(literal_latency_s(problem, plan.stages), plan.round_s, 1e-9 * best_s);
      }
    }
  }
  EXPECT_GT(feasible, 30);
  EXPECT_GT(split, 10);
}

TEST(AsteroidPlanner, PlansHoldEveryUnitAndFitTheMemory) {
  const Case c(unlike_devices(12, 3, 2e6, 6e6), 6, 16);
  const Network network(c.devices, c.links);
  const AsteroidProblem problem{.workload = c.workload,
                                .network = network,
                                .devices = c.order,
                                .micro_batch = 4,
                                .micro_batches = 4,
                                .recompute = false};
  const AsteroidPlan plan = plan_asteroid(problem, 12);
  ASSERT_TRUE(plan.found());
  std::size_t unit = 0;
  const auto stages = static_cast<std::int64_t>(plan.stages.size());
  for (std::int64_t p = 0; p < stages; ++p) {
    const AsteroidStage& stage = plan.stages[static_cast<std::size_t>(p)];
    EXPECT_EQ(stage.first, unit);
    unit = stage.last;
    EXPECT_EQ(stage.in_flight, 2 * (stages - p) - 1);
    std::int64_t samples = 0;
    const StageMemory one = stage_memory(c.workload, stage.first, stage.last, 1, false);
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      samples += stage.samples[i];
      if (stage.samples[i] == 0) continue;
      const auto share = static_cast<double>(stage.samples[i]);
      const auto flights = static_cast<double>(std::min<std::int64_t>(stage.in_flight, 4));
      EXPECT_LE(one.state + share * (one.at_work + flights * one.per_flight),
                static_cast<double>(c.devices[stage.members[i]].memory.value()));
    }
    EXPECT_EQ(samples, 4);
  }
  EXPECT_EQ(unit, c.workload.units.size());
}

// Of every split of the samples none has a faster slowest device.
TEST(AsteroidAllocation, EqualsEverySplit) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Case c(unlike_devices(3, seed, 1.5e6, 6e6), 2, 8);
    const Network network(c.devices, c.links);
    const AsteroidProblem problem{.workload = c.workload,
                                  .network = network,
                                  .devices = c.order,
                                  .micro_batch = 7,
                                  .micro_batches = 2,
                                  .recompute = false};
    const StageMemory one = stage_memory(c.workload, 1, 3, 1, false);
    const auto slowest_s = [&](const std::array<std::int64_t, 3>& samples) {
      double slowest = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        const auto share = static_cast<double>(samples[i]);
        const double need = one.state + share * (one.at_work + 2 * one.per_flight);
        if (samples[i] > 0 && need > static_cast<double>(c.devices[c.order[i]].memory.value())) return kNever;
        slowest = std::max(slowest, share / c.devices[c.order[i]].compute.value());
      }
      return slowest * c.workload.forward_flops(1, 3);
    };
    double best_s = kNever;
    for (std::int64_t a = 0; a <= 7; ++a) {
      for (std::int64_t b = 0; a + b <= 7; ++b) best_s = std::min(best_s, slowest_s({a, b, 7 - a - b}));
    }
    const Allocation allocation = allocate_samples(problem, c.order, 1, 3, 3);
    ASSERT_EQ(allocation.found(), best_s < kNever);
    if (allocation.found()) { EXPECT_NEAR(allocation.forward_s, best_s, 1e-12 + 1e-9 * best_s) << "seed " << seed; }
  }
}

// A device has room for half of a stage's moments and a sample, not for all of them: two may take a sample each, but
// one of them alone cannot take the only sample, as the other one then holds no shard.
TEST(AsteroidAllocation, OnlyDevicesWithSamplesHoldShards) {
  const Workload workload = describe_workload(small_model(2), 8, DType::f32);
  const auto need = [&](std::int64_t sharing) {
    const StageMemory one = stage_memory(workload, 1, 3, 1, false, sharing);
    return one.state + one.at_work + one.per_flight;
  };
  const Case c(equal_devices(2, 1e9, 1e6, 0, static_cast<std::int64_t>((need(1) + need(2)) / 2)), 2, 8);
  const Network network(c.devices, c.links);
  AsteroidProblem problem{.workload = c.workload, .network = network, .devices = c.order, .sharded = true};
  EXPECT_FALSE(allocate_samples(problem, c.order, 1, 3, 1).found());
  problem.micro_batch = 2;
  EXPECT_EQ(allocate_samples(problem, c.order, 1, 3, 1).samples, (std::vector<std::int64_t>{1, 1}));
}

// P equal stages of one device without transfers: (M + P - 1) (forward + backward) by the dominant step as well.
TEST(AsteroidLatency, BalancedPipelineHasItsClosedForm) {
  RoundSummary summary;
  for (int stage = 0; stage < 4; ++stage) {
    if (stage > 0) summary = summary.behind(0, 0, 0, 10);
    summary = summary.behind(0.25, 0.5, 0, 10);
  }
  EXPECT_NEAR(summary.latency_s, (10 + 4 - 1) * 0.75, 1e-9);
}

class Replay : public testing::Test {
 protected:
  Replay()
      : study_(small_study(equal_devices(6, 1e9, 1e8), 18)),
        workload_(describe_workload(study_.model, 18, DType::f32)),
        network_(study_.devices, study_.links) {}

  // Stages of the given devices over even cuts.
  AsteroidPlacement placement(const std::vector<std::vector<std::size_t>>& groups) {
    problem_.micro_batch = 6;
    problem_.micro_batches = 3;
    for (const auto& group : groups) problem_.devices.insert(problem_.devices.end(), group.begin(), group.end());
    AsteroidPlan plan = recut_units(problem_, groups);
    EXPECT_EQ(plan.stages.size(), groups.size());
    return AsteroidPlacement(study_, workload_, problem_, std::move(plan));
  }

  StudyInput study_;
  Workload workload_;
  Network network_;
  AsteroidProblem problem_{workload_, network_, {}, 6, 3, false};
};

TEST_F(Replay, AGroupGoesOnWithoutOneOfItsDevices) {
  AsteroidPlacement placement = this->placement({{0, 1, 2}, {3, 4, 5}});
  const double before_s = placement.step().time_s;
  const std::size_t lost[] = {1};
  const Remedy remedy = placement.lose(lost, 0.5);
  EXPECT_TRUE(remedy.survives);
  EXPECT_FALSE(placement.uses(1));
  EXPECT_GT(placement.step().time_s, before_s);
  EXPECT_GT(remedy.added_s, 0);
  placement.restore(1);
  EXPECT_NEAR(placement.step().time_s, before_s, 1e-9);
}

TEST_F(Replay, LightReplanningBeatsHeavyRescheduling) {
  AsteroidPlacement placement = this->placement({{0, 1, 2}, {3, 4, 5}});
  const std::size_t lost[] = {4};
  const Remedy remedy = placement.lose(lost, 0.5);
  ASSERT_EQ(remedy.figures.size(), 1U);
  EXPECT_EQ(remedy.figures[0].first, "recovery_heavy_s");
  EXPECT_LT(remedy.added_s, remedy.figures[0].second);
}

// A stage of one device has its weights on the next stage; two neighbours lost at once have not.
TEST_F(Replay, ASingleDeviceIsBackedUpByTheNextStage) {
  AsteroidPlacement one = placement({{0}, {1}, {2}});
  const std::size_t middle[] = {1};
  EXPECT_TRUE(one.lose(middle, 0.5).survives);
  EXPECT_FALSE(one.uses(1));
  problem_.devices.clear();
  AsteroidPlacement two = placement({{0}, {1}, {2}});
  const std::size_t neighbours[] = {1, 2};
  const Remedy remedy = two.lose(neighbours, 0.5);
  EXPECT_FALSE(remedy.survives);
  EXPECT_FALSE(remedy.why.empty());
}

}  // namespace
}  // namespace cleave::rivals
