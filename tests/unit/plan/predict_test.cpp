// When an operation alone is done: a closed form for one device, the shortcut for devices that share nothing, and the
// server's interface and a device's links where they are shared.
#include "predict.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cleave/plan/cost.hpp"
#include "cleave/plan/panels.hpp"
#include "cleave/timing/alone.hpp"
#include "fleets.hpp"

namespace cleave::plan {
namespace {

const fleet::ServerProfile kUnlimited = server_of(fleet::kUnlimitedRate.value());

OperationPlan planned(const Work& work, const std::vector<DeviceState>& devices) {
  return plan_operation(work, devices, {.server = kUnlimited});
}

// One message down, the product, one message up.
TEST(Predict, OneDeviceAndOnePanelHaveAClosedForm) {
  const Work work = gemm_work(100, 200, 768);
  const std::vector<DeviceState> devices{device(0, 1e9, 1'000'000'000, 1e6, 5e5, 0.25)};
  TaskletPlan tasklet = planned(work, devices).tasklets.at(0);
  ASSERT_EQ(tasklet.box, (GemmBox{0, 100, 0, 200, 0, 768}));
  tasklet.order = PanelOrder::whole;
  tasklet.panels = 1;
  const std::vector<Panel> panels = panels_of(work, tasklet);
  ASSERT_EQ(panels.size(), 1U);
  const double expected = static_cast<double>(panels[0].down.value()) / 1e6 + 0.25 + panels[0].flops.value() / 1e9 +
                          0.25 + static_cast<double>(panels[0].up.value()) / 5e5;
  EXPECT_NEAR(predict_time(work, std::span(&tasklet, 1), devices, server_of(1e15)).value(), expected, 1e-9);

  // A device that is taken for 7 s in all its resources begins then.
  std::vector<DeviceState> busy = devices;
  busy[0].down_busy = busy[0].compute_busy = busy[0].up_busy = Seconds(7);
  EXPECT_NEAR(predict_time(work, std::span(&tasklet, 1), busy, server_of(1e15)).value(), 7 + expected, 1e-9);
}

// Without an interface to share, the latest of the tasklets' own times is what the time model says.
TEST(Predict, DevicesThatShareNothingAreTheLatestOfThem) {
  const Work work = gemm_work(4096, 4096, 8192);
  const std::vector<DeviceState> devices = cleave_fleet(40);
  const OperationPlan plan = planned(work, devices);
  ASSERT_EQ(plan.tasklets.size(), 40U);
  Seconds latest{0};
  std::vector<timing::Submission> streams;
  for (const TaskletPlan& tasklet : plan.tasklets) {
    latest = std::max(latest, tasklet.time);
    streams.push_back(
        {static_cast<std::size_t>(tasklet.device.value), panel_sequence(work, tasklet), tasklet.resident});
  }
  EXPECT_EQ(predict_time(work, plan.tasklets, devices, kUnlimited), latest);
  EXPECT_EQ(timing::time_alone(streams, devices, kUnlimited), latest);
}

TEST(Predict, TheServersInterfaceIsShared) {
  const Work work = gemm_work(4096, 4096, 8192);
  const std::vector<DeviceState> devices = cleave_fleet(40);
  const OperationPlan plan = planned(work, devices);
  const double unlimited = predict_time(work, plan.tasklets, devices, kUnlimited).value();
  const double narrow = predict_time(work, plan.tasklets, devices, server_of(1e8)).value();
  const double bytes = static_cast<double>(plan.bytes_down.value());
  EXPECT_GT(narrow, unlimited);
  EXPECT_GE(narrow, bytes / 1e8);
}

// The second of two tasklets follows the first one on the link that takes longest: here operands come down for longer
// than anything else takes.
TEST(Predict, OneDevicesTaskletsShareItsLinks) {
  const Work work = gemm_work(4096, 4096, 8192);
  const std::vector<DeviceState> devices = cleave_fleet(40);
  const TaskletPlan once = planned(work, devices).tasklets.at(0);
  const fleet::DeviceProfile& profile = devices[static_cast<std::size_t>(once.device.value)].profile;
  const double operands = static_cast<double>(once.bytes_down.value()) / profile.downlink.value();
  ASSERT_GT(operands, static_cast<double>(once.bytes_up.value()) / profile.uplink.value());
  const std::vector<TaskletPlan> twice{once, once};
  EXPECT_NEAR(predict_time(work, twice, devices, kUnlimited).value(), once.time.value() + operands, 1e-9);
}

}  // namespace
}  // namespace cleave::plan
