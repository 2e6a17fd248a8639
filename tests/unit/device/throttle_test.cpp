// The emulated resources of a device against times worked out by hand.
#include "../../../src/device/throttle.hpp"

#include <gtest/gtest.h>

#include <array>

namespace cleave::device {
namespace {

comm::HostedDevice device() {
  return {.id = DeviceId(1),
          .name = "d",
          .compute = FlopsPerSecond(100),
          .memory = Bytes(1000),
          .downlink = BytesPerSecond(10),
          .uplink = BytesPerSecond(5),
          .latency = Seconds(0.5),
          .jitter = Seconds(0)};
}

comm::TaskView task(std::span<const comm::PanelCost> schedule, double factor = 1) {
  comm::TaskView view;
  view.header.tasklet = TaskletId(3);
  view.header.rate_factor = factor;
  view.schedule = schedule;
  return view;
}

TEST(Throttle, OneTaskletAlone) {
  Throttle throttle(device(), 1);
  const std::array schedule = {comm::PanelCost{20, 10, 300}};
  const Timeline t = throttle.admit(Seconds(1), task(schedule));
  EXPECT_DOUBLE_EQ(t.received.value(), 1 + 2 + 0.5);
  EXPECT_DOUBLE_EQ(t.computed.value(), 3.5 + 3);
  EXPECT_DOUBLE_EQ(t.answered.value(), 6.5 + 2 + 0.5);
}

TEST(Throttle, ResourcesWorkAtTheSameTime) {
  Throttle throttle(device(), 1);
  const std::array schedule = {comm::PanelCost{20, 10, 300}};
  throttle.admit(Seconds(0), task(schedule));
  const Timeline t = throttle.admit(Seconds(0), task(schedule));
  EXPECT_DOUBLE_EQ(t.received.value(), 4.5);   // the link carries the second from 2 to 4
  EXPECT_DOUBLE_EQ(t.computed.value(), 8.5);   // the processor is taken from 2.5 to 5.5
  EXPECT_DOUBLE_EQ(t.answered.value(), 11.0);  // the uplink was free since 7.5
}

TEST(Throttle, PanelsOverlapWithinATasklet) {
  Throttle throttle(device(), 1);
  const std::array schedule = {comm::PanelCost{10, 5, 100}, comm::PanelCost{10, 5, 100}};
  const Timeline t = throttle.admit(Seconds(0), task(schedule));
  // down 0-1, 1-2; computed 1.5-2.5, 2.5-3.5; up 2.5-3.5, 3.5-4.5
  EXPECT_DOUBLE_EQ(t.received.value(), 2.5);
  EXPECT_DOUBLE_EQ(t.computed.value(), 3.5);
  EXPECT_DOUBLE_EQ(t.answered.value(), 5.0);
}

TEST(Throttle, DelayServerInterfaceAndSlowness) {
  Throttle throttle(device(), 1);
  const std::array schedule = {comm::PanelCost{20, 10, 300}};
  comm::TaskView view = task(schedule);
  view.header.delay = Seconds(1);
  view.header.nic = Seconds(6);  // slower than the link: it decides
  EXPECT_DOUBLE_EQ(throttle.admit(Seconds(0), view).received.value(), 7.5);

  Throttle slow(device(), 1);
  const Timeline t = slow.admit(Seconds(0), task(schedule, 0.5));
  EXPECT_DOUBLE_EQ(t.received.value(), 4.5);
  EXPECT_DOUBLE_EQ(t.computed.value(), 10.5);
  EXPECT_DOUBLE_EQ(t.answered.value(), 15.0);
}

TEST(Throttle, NothingToSendUp) {
  Throttle throttle(device(), 1);
  const std::array schedule = {comm::PanelCost{10, 0, 100}, comm::PanelCost{10, 10, 100}};
  EXPECT_DOUBLE_EQ(throttle.admit(Seconds(0), task(schedule)).answered.value(), 3.5 + 2 + 0.5);
}

TEST(Throttle, JitterIsAFunctionOfSeedDeviceAndTasklet) {
  comm::HostedDevice shaky = device();
  shaky.jitter = Seconds(1);
  const std::array schedule = {comm::PanelCost{20, 10, 300}};
  const auto answered = [&](std::uint64_t seed) {
    return Throttle(shaky, seed).admit(Seconds(0), task(schedule)).answered;
  };
  EXPECT_EQ(answered(1), answered(1));
  EXPECT_NE(answered(1), answered(2));
  EXPECT_GE(answered(1), Seconds(8));
  EXPECT_LT(answered(1), Seconds(10));
}

}  // namespace
}  // namespace cleave::device
