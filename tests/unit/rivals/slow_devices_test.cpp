// Devices that turn out slow: each rival plans again for the rates that a step has shown.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "studies.hpp"

namespace cleave::rivals {
namespace {

StudyInput with_slow(StudyInput study, std::size_t device, double factor) {
  study.churn.push_back({Seconds(0), DeviceId(static_cast<std::int64_t>(device)), fleet::ChurnKind::slow, factor});
  return study;
}

// The same devices where a tenth of one's rates is what it declares; under churn too, for which methods keep copies.
StudyInput declared_slow(StudyInput study, std::size_t device, double factor) {
  study.devices[device] = fleet::slowed(study.devices[device], factor);
  return with_slow(std::move(study), device, 1);
}

// From the second step on a method is no slower than if the device had declared its rates.
TEST(SlowDevices, AreKnownFromTheNextStepOn) {
  std::set<std::string> gained;
  for (const auto& [devices, slow] : {std::pair(unlike_devices(8, 3, 6e6, 2e7), 5), {equal_devices(3, 1e7, 1e9), 1}}) {
    for (const std::unique_ptr<System>& system : all_systems()) {
      const std::string name = system->name();
      StudyInput study = small_study(devices, 16);
      if (!system->uses_peer_links() || !run(name, study).feasible) continue;
      const SystemReport known = run(name, declared_slow(study, slow, 0.1));
      study = with_slow(std::move(study), slow, 0.1);
      const double first_s = run(name, study).step.value();
      study.steps = 3;
      const SystemReport report = run(name, study);
      ASSERT_TRUE(report.feasible) << name << ": " << report.why;
      // progfed scales its step by what its first layout gains from smaller models.
      const double allowed = name == "progfed" ? 1e-3 : 1e-9;
      EXPECT_LE(3 * report.step.value(), (first_s + 2 * known.step.value()) * (1 + allowed)) << name;
      EXPECT_LE(report.step.value(), first_s * (1 + 1e-9)) << name;
      if (report.step.value() < 0.6 * first_s) gained.insert(name);
    }
  }
  // Those whose layouts do not follow rates by themselves.
  for (const char* name : {"dtfm", "asteroid", "fusionllm"}) EXPECT_TRUE(gained.contains(name)) << name;
}

// What a layout for measured rates leaves out: devices that are away. They are back in the step after they return.
TEST(SlowDevices, ALayoutForThemUsesThoseThatAreThere) {
  const StudyInput three = small_study(equal_devices(3, 1e7, 1e9), 12);
  const auto step_of = [](const StudyInput& study) { return run("tensor-parallel", study).step.value(); };
  StudyInput two = three;
  two.devices.pop_back();
  const double unknown_s = step_of(with_slow(two, 1, 0.1));
  const double known_s = step_of(declared_slow(two, 1, 0.1)), with_all_s = step_of(declared_slow(three, 1, 0.1));
  ASSERT_LT(known_s, 0.6 * unknown_s);
  ASSERT_LT(with_all_s, 0.6 * known_s);

  StudyInput study = three;
  study.churn = {{Seconds(0), DeviceId(1), fleet::ChurnKind::slow, 0.1},
                 {Seconds(1e-6), DeviceId(2), fleet::ChurnKind::leave, 1.0}};
  const auto total_s = [&](std::int64_t steps) {
    study.steps = steps;
    const SystemReport report = run("tensor-parallel", study);
    EXPECT_TRUE(report.feasible) << report.why;
    return static_cast<double>(steps) * report.step.value();
  };
  const double first_s = total_s(1);
  EXPECT_NEAR(total_s(2) - first_s, known_s, 1e-6 * known_s);
  study.churn.push_back({Seconds(first_s + 0.5 * known_s), DeviceId(2), fleet::ChurnKind::join, 1.0});
  const double two_steps_s = total_s(2);
  EXPECT_NEAR(two_steps_s - first_s, known_s, 1e-6 * known_s);
  EXPECT_NEAR(total_s(3) - two_steps_s, with_all_s, 1e-6 * with_all_s);
}

}  // namespace
}  // namespace cleave::rivals
