// Systems that hold the model in shards, and copies that seldom meet: closed forms and brute force.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "collective.hpp"
#include "pipeline_grid.hpp"
#include "studies.hpp"
#include "summa.hpp"
#include "workload.hpp"

namespace cleave::rivals {
namespace {

// 8 + 8 / r bytes a parameter, with 16-bit types 4 + 12 / r.
TEST(StageMemory, SharesMomentsAndMasterWeights) {
  StudyInput study = small_study(equal_devices(1, 1, 1));
  for (const DType wire : {DType::f32, DType::f16}) {
    study.wire = wire;
    const Workload w = workload_of(study);
    const auto parameters = static_cast<double>(w.parameters(1, 3));
    EXPECT_DOUBLE_EQ(stage_memory(w, 1, 3, 1, false).state, 16 * parameters);
    const double expected = wire == DType::f32 ? 8 + 8.0 / 4 : 4 + 12.0 / 4;
    EXPECT_DOUBLE_EQ(stage_memory(w, 1, 3, 1, false, 4).state, expected * parameters);
  }
}

// Links so slow that compute vanishes: two gathers and a scatter of every unit but the last, which stays between its
// passes.
TEST(Fsdp, SlowLinksHaveAClosedForm) {
  StudyInput study = small_study(equal_devices(2, 1e15, 1e5), 2);
  const Workload w = workload_of(study);
  const double whole = static_cast<double>(w.total_parameters() * 16);
  give_memory(study, 0.9 * whole);
  const SystemReport report = run("fsdp", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_EQ(report.layout, "1 groups of 2 devices, micro-batches of 1");
  double expected_s = 0;
  for (std::size_t u = 0; u < w.units.size(); ++u) {
    const double half_s = 0.5 * ring_s(study, static_cast<double>(w.units[u].parameters * 4));
    expected_s += (u + 1 < w.units.size() ? 3 : 2) * half_s;
  }
  EXPECT_NEAR(report.step.value(), expected_s, 1e-6 * expected_s);
  EXPECT_NEAR(report.lower_bound.value(), expected_s, 1e-6 * expected_s);
}

// A device holds half of the state, and of the largest unit the weights twice (one at work, one under way) and its
// gradients.
TEST(Fsdp, CountsWholeUnitsBesideItsShard) {
  StudyInput study = small_study(equal_devices(2, 1e15, 1e5), 2);
  const Workload w = workload_of(study);
  const double state = static_cast<double>(w.total_parameters() * 16);
  give_memory(study, 0.9 * state);
  const SystemReport report = run("fsdp", study);
  ASSERT_EQ(report.layout, "1 groups of 2 devices, micro-batches of 1");
  std::int64_t largest = 0;
  for (const Unit& unit : w.units) largest = std::max(largest, unit.parameters);
  const double expected = state / 2 + static_cast<double>(3 * 4 * largest) + w.kept_bytes(0, w.units.size());
  EXPECT_NEAR(static_cast<double>(report.device_memory_max.value()), expected, 1);
}

// Links take all the time, and those of one device are half as fast from the beginning.
TEST(Fsdp, ASlowDeviceSlowsItsMeasuredLinks) {
  StudyInput study = small_study(equal_devices(2, 1e15, 1e9), 2);
  const double state = static_cast<double>(workload_of(study).total_parameters() * 16);
  give_memory(study, 0.9 * state);
  study.links = fleet::LinkMatrix(2, {Seconds(0), BytesPerSecond(1e5)});
  const double calm_s = run("fsdp", study).step.value();
  study.churn = {{Seconds(0), DeviceId(1), fleet::ChurnKind::slow, 0.5}};
  EXPECT_NEAR(run("fsdp", study).step.value(), 2 * calm_s, 1e-6 * calm_s);
}

TEST(Fsdp, FitsWhereNoDeviceHoldsTheModel) {
  StudyInput study = small_study(unlike_devices(16, 2, 1.5e6, 2e6), 16);
  EXPECT_FALSE(run("data-parallel", study).feasible);
  const SystemReport report = run("fsdp", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_LE(report.device_memory_max.value(), 2'000'000);
}

// What tensor parallelism can do, pipelines of one stage do too, with less memory.
TEST(Megatron, IsNeverSlowerThanTensorParallelism) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const StudyInput study = small_study(unlike_devices(8, seed, 2e6, 6e6), 16);
    const SystemReport tensor = run("tensor-parallel", study), both = run("megatron", study);
    ASSERT_TRUE(both.feasible) << both.why;
    EXPECT_LE(both.device_memory_max.value(), 6'000'000);
    if (!tensor.feasible) continue;
    EXPECT_LE(both.step.value(), tensor.step.value() * 1.0001) << seed;
  }
}

// One stage of four shards: per layer two all-reduces each way, one for embedding and head each, and what they hold.
TEST(Megatron, OneStageOfShardsIsTensorParallelism) {
  const StudyInput study = small_study(equal_devices(4, 1e6, 1e9, 0.001), 1);
  const Workload w = workload_of(study);
  const SystemReport report = run("megatron", study);
  ASSERT_NE(report.layout.find("1 replicas of 1 stages of 4 devices, micro-batches of 1"), std::string::npos)
      << report.layout;
  const double boundary = 32 * 64 * 4, parameters = static_cast<double>(w.total_parameters()) / 4;
  const double expected_s =
      w.step_flops() / 4 / 1e6 + (4 * 4 + 2) * ring_s(study, boundary) + Workload::kUpdateFlops * parameters / 1e6;
  EXPECT_NEAR(report.step.value(), expected_s, 1e-9 * expected_s);
  const double memory = 16 * parameters + w.kept_bytes(0, w.units.size()) / 4 + 2 * boundary;
  EXPECT_NEAR(static_cast<double>(report.device_memory_max.value()), memory, 1);
}

// A number of heads that is no power of two is shared by as many devices.
TEST(Megatron, AnyNumberThatDividesTheHeadsSharesAStage) {
  StudyInput study = small_study(equal_devices(3, 1e6, 1e9), 1);
  study.model.n_head = study.model.n_kv_head = 6;
  study.model.d_model = 96;
  give_memory(study, 0.45 * static_cast<double>(workload_of(study).total_parameters() * 16));
  const SystemReport report = run("megatron", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_NE(report.layout.find("1 replicas of 1 stages of 3 devices"), std::string::npos) << report.layout;
}

// Two stages of two shards each, links so slow that compute vanishes, one sequence: nothing overlaps. All-reduces of
// the layers, one for the embedding, one for the head, a boundary's share each way, and each shard of the tied
// embedding to its counterpart and back.
TEST(Megatron, TwoStagesOfShardsHaveTheirClosedForm) {
  for (const bool again : {false, true}) {
    StudyInput study = small_study(equal_devices(4, 1e15, 1e6), 1);
    study.model.n_head = study.model.n_kv_head = 2;  // two shards at most
    const Workload w = workload_of(study);
    const std::vector<std::size_t> cuts = cut_evenly(w, 2);
    const double boundary = 32 * 64 * 4;
    double need = 0;
    for (std::size_t s = 0; s < 2; ++s) {
      const StageMemory memory = stage_memory(w, cuts[s], cuts[s + 1], 1, again);
      need = std::max(need, (memory.state + memory.per_flight + memory.at_work) / 2 + 2 * boundary);
    }
    give_memory(study, need + 10);
    const SystemReport report = run("megatron", study);
    ASSERT_EQ(report.layout, again ? "1 replicas of 2 stages of 2 devices, micro-batches of 1, layers computed again"
                                   : "1 replicas of 2 stages of 2 devices, micro-batches of 1");
    StudyInput pair = study;
    pair.devices.resize(2);
    const double expected_s = (4 * (again ? 6 : 4) + 2) * ring_s(pair, boundary) + 2 * (boundary / 2 + 128) / 1e6 +
                              (static_cast<double>(w.tied_parameters) * 4 / 2 + 128) / 1e6;
    EXPECT_NEAR(report.step.value(), expected_s, 1e-6 * expected_s);
  }
}

// Two stages on two devices without transfers: (M + 1) / M times the slower stage's work at most.
TEST(Megatron, TwoStagesHaveTheirClosedForm) {
  StudyInput study = small_study(equal_devices(2, 1e6, 1e12), 8);
  const Workload w = workload_of(study);
  const auto most = static_cast<std::int64_t>(0.62 * static_cast<double>(w.total_parameters() * 16));
  for (fleet::DeviceProfile& device : study.devices) device.memory = Bytes(most);
  study.model.n_head = study.model.n_kv_head = 1;  // no shards
  const SystemReport report = run("megatron", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_NE(report.layout.find("1 replicas of 2 stages of 1 devices"), std::string::npos) << report.layout;
  const double compute_s = w.step_flops() / 2 / 1e6;
  EXPECT_GE(report.step.value(), compute_s);
  EXPECT_LE(report.step.value(), 1.6 * compute_s);
}

// A quarter of the heads each, rings for nothing.
TEST(Galaxy, EqualDevicesShareEverything) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e15), 4);
  const Workload w = workload_of(study);
  const double whole = static_cast<double>(w.total_parameters() * 16);
  give_memory(study, 0.5 * whole);
  const SystemReport report = run("galaxy", study);
  ASSERT_TRUE(report.feasible) << report.why;
  const double expected_s = (w.step_flops() + 15 * static_cast<double>(w.total_parameters())) / 4 / 1e9;
  EXPECT_NEAR(report.step.value(), expected_s, 1e-6 * expected_s);
}

// Three of four heads on the device that is three times as fast; where it lacks the memory, fewer.
TEST(Galaxy, SharesFollowSpeedAndMemory) {
  StudyInput study = small_study(equal_devices(2, 1e6, 1e15), 4);
  study.devices[0].compute = FlopsPerSecond(3e6);
  const Workload w = workload_of(study);
  const double whole = static_cast<double>(w.total_parameters() * 16);
  give_memory(study, 0.95 * whole);
  const double work = w.step_flops() + 15 * static_cast<double>(w.total_parameters());
  EXPECT_NEAR(run("galaxy", study).step.value(), work / 4 / 1e6, 1e-4 * work / 4e6);
  give_memory(study, 0.65 * whole);
  const SystemReport halves = run("galaxy", study);
  EXPECT_NEAR(halves.step.value(), work / 2 / 1e6, 1e-4 * work / 2e6);
  EXPECT_LE(halves.device_memory_max, study.devices[0].memory);
}

// Links so slow that compute vanishes, and no memory for activations: a ring for each half of a layer, for embedding
// and for head; one forward, one for the forward pass that runs again, one backward.
TEST(Galaxy, WhatRunsAgainIsGatheredAgain) {
  StudyInput study = small_study(equal_devices(2, 1e15, 1e5), 1);
  const Workload w = workload_of(study);
  const std::size_t units = w.units.size();
  const double state = static_cast<double>(w.total_parameters() * 16), boundary = 32 * 64 * 4;
  const double kept = w.input_bytes(0, units) + w.largest_kept_bytes(0, units);
  ASSERT_LT(kept + 100, w.kept_bytes(0, units));
  for (fleet::DeviceProfile& device : study.devices)
    device.memory = Bytes(static_cast<std::int64_t>(2 * boundary + (state + kept) / 2) + 10);
  const SystemReport report = run("galaxy", study);
  ASSERT_EQ(report.layout, "1 groups of 2 devices, micro-batches of 1, layers computed again");
  const double expected_s = (4 * 2 + 2) * 3 * ring_s(study, boundary);
  EXPECT_NEAR(report.step.value(), expected_s, 1e-6 * expected_s);
}

// Two pairs of a device with much memory and one with little, but the other way round in the second: the devices with
// little memory that two losses leave are no pair.
TEST(Galaxy, DevicesThatAreLeftMayNotHoldTheModelTogether) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e15), 4);
  study.model.n_head = study.model.n_kv_head = 2;  // so two devices share a model at most
  const double whole = static_cast<double>(workload_of(study).total_parameters() * 16);
  constexpr double kMemory[] = {1.3, 0.45, 0.45, 1.3};
  for (std::size_t d = 0; d < 4; ++d) study.devices[d].memory = Bytes(static_cast<std::int64_t>(kMemory[d] * whole));
  const SystemReport calm = run("galaxy", study);
  ASSERT_TRUE(calm.feasible) << calm.why;
  ASSERT_EQ(calm.layout.substr(0, 8), "2 groups") << calm.layout;
  const double step_s = calm.step.value();
  study.churn = {{Seconds(0.3 * step_s), DeviceId(0), fleet::ChurnKind::leave, 1.0}};
  EXPECT_TRUE(run("galaxy", study).feasible);
  study.churn.push_back({Seconds(0.6 * step_s), DeviceId(3), fleet::ChurnKind::leave, 1.0});
  const SystemReport after = run("galaxy", study);
  EXPECT_FALSE(after.feasible);
  EXPECT_NE(after.why.find("on no other device"), std::string::npos) << after.why;
}

// Elements of A and B that device (r, c) of a q x q grid needs for its block of C and does not own.
std::size_t missing(std::size_t m, std::size_t n, std::size_t k, std::size_t q, std::size_t r, std::size_t c) {
  std::size_t count = 0;
  for (std::size_t i = r * m / q; i < (r + 1) * m / q; ++i) {
    for (std::size_t l = 0; l < k; ++l) count += l * q / k != c ? 1 : 0;  // A: rows r, depth anywhere
  }
  for (std::size_t l = 0; l < k; ++l) {
    for (std::size_t j = c * n / q; j < (c + 1) * n / q; ++j) count += l * q / k != r ? 1 : 0;
  }
  return count;
}

TEST(Summa, MovesWhatADeviceLacks) {
  for (const std::size_t q : {1, 2, 3}) {
    const std::size_t m = 6 * q, n = 4 * q, k = 5 * q;
    const GridTraffic traffic =
        traffic_of({static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)}, {q, 1, false}, 1);
    for (std::size_t r = 0; r < q; ++r) {
      for (std::size_t c = 0; c < q; ++c) {
        EXPECT_NEAR(traffic.bytes, static_cast<double>(missing(m, n, k, q, r, c)), 1e-9);
      }
    }
  }
}

// Three dimensions: device (x, y, z) multiplies block (x, z) of A by block (z, y) of B, each of which it owns 1/q of,
// and sums 1/q of block (x, y) of C over z.
TEST(Summa, ThreeDimensionsGatherAndScatterTheirFaces) {
  const double q = 3, m = 9, n = 18, k = 27;
  const double a = m / q * k / q, b = k / q * n / q, c = m / q * n / q;
  EXPECT_NEAR(traffic_of({m, n, k}, {3, 1, true}, 2).bytes, 2 * (a + b + c) * (1 - 1 / q), 1e-9);
}

// 2.5 dimensions: each of c layers does a part of the depth as a grid of its own, then the layers' partial results are
// scattered and summed.
TEST(Summa, LayersShareTheDepthAndSumTheirResults) {
  const std::size_t q = 2, c = 3, m = 8, n = 4, k = 18;
  const GridTraffic traffic =
      traffic_of({static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)}, {q, c, false}, 2);
  const double block = static_cast<double>(m / q * n / q);
  const double elements = static_cast<double>(missing(m, n, k / c, q, 0, 0)) + block * static_cast<double>(c - 1) / c;
  EXPECT_NEAR(traffic.bytes, 2 * elements, 1e-9);
}

// Every layer of the grid has the whole state in its blocks.
TEST(Summa, EveryLayerKeepsTheState) {
  const StudyInput study = small_study(equal_devices(8, 1e9, 1e15), 1);
  const Workload w = workload_of(study);
  const SystemReport report = run("summa", study);
  ASSERT_EQ(report.layout, "1 grids of 2 x 2 x 2 (2.5 D) devices");
  const std::size_t units = w.units.size();
  const double kept = w.input_bytes(0, units) + w.largest_kept_bytes(0, units);
  EXPECT_NEAR(static_cast<double>(report.device_memory_max.value()),
              static_cast<double>(w.total_parameters() * 16) / 4 + kept / 8, 1);
}

TEST(Summa, FourDevicesWithFreeLinksShareTheWork) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e15), 4);
  const Workload w = workload_of(study);
  const double whole = static_cast<double>(w.total_parameters() * 16);
  give_memory(study, 0.5 * whole);
  const SystemReport report = run("summa", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_EQ(report.layout, "1 grids of 2 x 2 devices");
  const double again = static_cast<double>(w.batch) * w.forward_flops(1, w.units.size() - 1);
  const double expected_s = (w.step_flops() + again + 15 * static_cast<double>(w.total_parameters())) / 4 / 1e9;
  EXPECT_NEAR(report.step.value(), expected_s, 1e-6 * expected_s);
}

TEST(LocalSteps, ExchangeOnceAnInterval) {
  StudyInput study = small_study(equal_devices(4, 1e6, 1e5), 8);
  study.local_steps.interval = 100;
  const Workload w = workload_of(study);
  const SystemReport report = run("local-steps", study);
  ASSERT_EQ(report.devices_used, 4) << report.layout;
  const double exchange_s = ring_s(study, static_cast<double>(w.total_parameters() * 4));
  const double expected_s =
      w.step_flops() / 4 / 1e6 + 15 * static_cast<double>(w.total_parameters()) / 1e6 + exchange_s / 100;
  EXPECT_NEAR(report.step.value(), expected_s, 1e-9 * expected_s);
}

// Beside its copy a device holds the last average and the outer momentum, 4 bytes each.
TEST(LocalSteps, HoldTheAverageAndTheMomentum) {
  const StudyInput study = small_study(equal_devices(1, 1e6, 1e5), 1);
  const Bytes copy = run("data-parallel", study).device_memory_max;
  EXPECT_EQ((run("local-steps", study).device_memory_max - copy).value(), 8 * workload_of(study).total_parameters());
}

// A quarter, half and three quarters of the layers for a sixth of the run each, then all.
TEST(ProgFed, IsTheMeanOverItsParts) {
  StudyInput study = small_study(equal_devices(1, 1e9, 1e6), 8);
  study.model = small_model(8);
  double expected_s = 0;
  for (const auto& [layers, share] : {std::pair(2, 1.0 / 6), {4, 1.0 / 6}, {6, 1.0 / 6}, {8, 0.5}}) {
    StudyInput part = study;
    part.model.n_layer = layers;
    expected_s += share * run("data-parallel", part).step.value();
  }
  EXPECT_NEAR(run("progfed", study).step.value(), expected_s, 1e-9 * expected_s);
}

}  // namespace
}  // namespace cleave::rivals
