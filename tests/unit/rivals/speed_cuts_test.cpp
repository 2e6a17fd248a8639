// Cuts that follow the speed of devices: against every cut.
#include "speed_cuts.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "pipeline_grid.hpp"
#include "studies.hpp"

namespace cleave::rivals {
namespace {

// The slowest stage as the header states it; infinite where a device cannot hold its stage.
double slowest_s(const Workload& w, const std::vector<fleet::DeviceProfile>& devices,
                 const std::vector<std::size_t>& chain, const std::vector<double>& hop_share,
                 const std::vector<std::size_t>& cuts) {
  double slowest = 0;
  for (std::size_t s = 0; s < chain.size(); ++s) {
    const fleet::DeviceProfile& device = devices[chain[s]];
    if (stage_memory(w, cuts[s], cuts[s + 1], 1, false).with(1) > static_cast<double>(device.memory.value()))
      return std::numeric_limits<double>::infinity();
    const double flops = w.forward_flops(cuts[s], cuts[s + 1]) + w.backward_flops(cuts[s], cuts[s + 1]);
    double bytes = 0;
    if (s > 0) bytes += hop_share[s - 1] * w.units[cuts[s]].input_bytes;
    if (s + 1 < chain.size()) bytes += hop_share[s] * w.units[cuts[s + 1] - 1].output_bytes;
    slowest = std::max(
        {slowest, flops / device.compute.value(), bytes / device.uplink.value(), bytes / device.downlink.value()});
  }
  return slowest;
}

TEST(SpeedCuts, AreTheBestOfAllCuts) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const StudyInput study = small_study(unlike_devices(4, seed, 1.2e6, 6e6));
    const Workload w = describe_workload(study.model, study.batch, study.wire);
    const std::vector<std::size_t> chain{2, 0, 3};
    const std::vector<double> shares{1.0, 0.25};
    double best = std::numeric_limits<double>::infinity();
    const std::size_t units = w.units.size();
    for (std::size_t a = 1; a + 1 < units; ++a) {
      for (std::size_t b = a + 1; b < units; ++b) {
        best = std::min(best, slowest_s(w, study.devices, chain, shares, {0, a, b, units}));
      }
    }
    const auto cuts = cut_by_speed(w, study.devices, chain, shares, 1, false);
    ASSERT_EQ(cuts.has_value(), best < std::numeric_limits<double>::infinity()) << seed;
    if (!cuts) continue;
    EXPECT_DOUBLE_EQ(slowest_s(w, study.devices, chain, shares, *cuts), best) << seed;
  }
}

// A device ten times as fast as the others takes more, and the pipeline is faster than with even cuts.
TEST(Confidant, CutsThatFollowSpeedBeatEvenOnes) {
  StudyInput study = small_study(equal_devices(3, 1e8, 1e9), 16);
  study.model = small_model(10);
  study.devices[0].compute = FlopsPerSecond(1e9);
  for (fleet::DeviceProfile& device : study.devices) device.memory = Bytes(6'000'000);
  const SystemReport report = find_system("confidant")->simulate(study);
  ASSERT_TRUE(report.feasible) << report.why;
  const auto even = std::find_if(report.figures.begin(), report.figures.end(),
                                 [](const auto& figure) { return figure.first == "even_cuts_s"; });
  ASSERT_NE(even, report.figures.end());
  EXPECT_LT(report.step.value(), even->second);
}

// Two devices share the model; whichever is lost, the other fetches its units, with all but their gradients, and begins
// the batch again. So both losses together fetch the whole model.
TEST(Confidant, WhatALostDeviceHeldIsFetched) {
  StudyInput study = small_study(equal_devices(2, 1e6, 1e5), 8);
  const Workload w = workload_of(study);
  const double calm_s = find_system("confidant")->simulate(study).step.value();
  StudyInput alone = study;
  alone.devices.pop_back();
  const double alone_s = find_system("confidant")->simulate(alone).step.value();
  ASSERT_GT(alone_s, 1.2 * calm_s);
  std::set<double> recoveries;  // one for each device that may be lost
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    study.loss = {.devices = 1, .progress = 0.5, .seed = seed};
    recoveries.insert(find_system("confidant")->simulate(study).recovery.value());
  }
  ASSERT_EQ(recoveries.size(), 2U);
  const double fetched_s =
      *recoveries.begin() + *recoveries.rbegin() - 2 * (study.detection.value() + alone_s - 0.5 * calm_s);
  EXPECT_NEAR(fetched_s, static_cast<double>(w.total_parameters() * w.moved_bytes()) / 1e5, 1e-6 * alone_s);
}

// Of four devices in a ring of backups any three that are lost take along one and its backup.
TEST(Confidant, NobodyHasWhatADeviceAndItsBackupHeld) {
  StudyInput study = small_study(equal_devices(4, 1e6, 1e9), 8);
  study.loss = {.devices = 1, .progress = 0.5, .seed = 0};
  const SystemReport one = find_system("confidant")->simulate(study);
  ASSERT_EQ(one.devices_used, 4) << one.layout;
  EXPECT_TRUE(std::isfinite(one.recovery.value()));
  study.loss.devices = 3;
  const SystemReport three = find_system("confidant")->simulate(study);
  EXPECT_TRUE(std::isinf(three.recovery.value()));
  EXPECT_NE(three.why.find("backup"), std::string::npos) << three.why;
}

// Boundaries are compressed until the links of a device, which carry one on either side, are no busier than the slowest
// processor.
TEST(FusionLlm, CompressedLinksKeepUpWithTheProcessors) {
  StudyInput study = small_study(equal_devices(4, 1e7, 1e4), 16);
  const double state = static_cast<double>(workload_of(study).total_parameters() * 16);
  give_memory(study, 0.45 * state);
  const SystemReport report = find_system("fusionllm")->simulate(study);
  ASSERT_TRUE(report.feasible) << report.why;
  ASSERT_GE(report.devices_used, 3) << report.layout;
  EXPECT_LT(report.figures[1].second, 1.0);
  EXPECT_GT(report.figures[1].second, 0.03);  // not as far as it goes
  EXPECT_LE(report.lower_bound.value(), 1.05 * report.compute.value());
}

TEST(FusionLlm, CompressesSlowLinksOnly) {
  StudyInput study = small_study(equal_devices(2, 1e8, 1e9), 16);
  for (fleet::DeviceProfile& device : study.devices) device.memory = Bytes(2'500'000);  // not the whole model
  const SystemReport fast = find_system("fusionllm")->simulate(study);
  ASSERT_TRUE(fast.feasible) << fast.why;
  EXPECT_EQ(fast.figures[1], (std::pair<std::string, double>{"least_share_of_boundary", 1.0}));
  EXPECT_DOUBLE_EQ(fast.figures[0].second, fast.step.value());
  for (fleet::DeviceProfile& device : study.devices) device.uplink = BytesPerSecond(1e4);
  const SystemReport slow = find_system("fusionllm")->simulate(study);
  ASSERT_TRUE(slow.feasible) << slow.why;
  EXPECT_LT(slow.figures[1].second, 1.0);
  EXPECT_LT(slow.step.value(), slow.figures[0].second);
}

// A device that holds the model, but not what its layers keep.
TEST(FusionLlm, RunsLayersAgainWhereTheirActivationsDoNotFit) {
  StudyInput study = small_study(equal_devices(1, 1e9, 1e9), 4);
  const Workload w = describe_workload(study.model, study.batch, study.wire, Granularity::halves);
  const double need = stage_memory(w, 0, w.units.size(), 1, true).with(1);
  ASSERT_GT(stage_memory(w, 0, w.units.size(), 1, false).with(1), need + 10);
  give_memory(study, need + 10);
  const SystemReport report = find_system("fusionllm")->simulate(study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_NE(report.layout.find("computed again"), std::string::npos) << report.layout;
}

}  // namespace
}  // namespace cleave::rivals
