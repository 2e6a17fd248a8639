// The wall clock decides what the virtual clock decides, and takes at least the time that it says. How much longer it
// takes depends on the machine: bash bench/wall_clock.sh measures that.
#include <gtest/gtest.h>

#include "cleave/base/clock.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

// Slow enough to be told from nothing: a step takes some tenths of a second.
Setting slow_devices() {
  Setting s = small_setting();
  s.devices = slower(unlike_devices(5), 20);
  s.device_ranks = 2;
  return s;
}

void expect_alike(Setting s) {
  s.clock = server::ClockMode::virtual_time;
  const Outcome modelled = train(s);
  EXPECT_EQ(modelled.dilated, Seconds(0));
  s.clock = server::ClockMode::wall;
  const SteadyClock clock;
  const Seconds begun = clock.now();
  const Outcome wall = train(s);
  const Seconds real = clock.now() - begun;
  EXPECT_EQ(wall.hash, modelled.hash);
  EXPECT_EQ(wall.time, modelled.time);
  EXPECT_EQ(wall.lost, modelled.lost);
  EXPECT_EQ(wall.redone, modelled.redone);
  EXPECT_GE(wall.dilated, wall.time);
  EXPECT_GE(real, wall.dilated);  // the time that is told to have gone by has gone by
}

TEST(WallClock, DecidesAsTheVirtualClockDoes) { expect_alike(slow_devices()); }

TEST(WallClock, DecidesAlikeWhenDevicesComeAndGo) {
  Setting s = slow_devices();
  const Seconds whole = train(s).time;
  s.churn = {{.at = whole * 0.1, .device = DeviceId(3), .kind = fleet::ChurnKind::leave},
             {.at = whole * 0.2, .device = DeviceId(2), .kind = fleet::ChurnKind::slow, .factor = 0.5},
             {.at = whole * 0.4, .device = DeviceId(3), .kind = fleet::ChurnKind::join},
             {.at = whole * 0.6, .device = DeviceId(1), .kind = fleet::ChurnKind::leave}};
  expect_alike(s);
}

}  // namespace
}  // namespace cleave::testing_run
