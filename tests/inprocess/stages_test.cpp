// Training in stages with real numbers, over device ranks in this process.
#include <gtest/gtest.h>

#include "run.hpp"

namespace cleave {
namespace {

using namespace testing_run;

Setting in_stages(Setting setting, std::int64_t devices, int ranks) {
  setting.devices = alike_devices(devices);
  setting.device_ranks = ranks;
  setting.layout = sched::Layout::stages;
  return setting;
}

TEST(Stages, LearnAsTilesDo) {
  const Setting tiles = [] {
    Setting s = small_setting();
    s.devices = alike_devices(3);
    return s;
  }();
  const Outcome wanted = train(tiles), got = train(in_stages(small_setting(), 3, 1));
  EXPECT_EQ(got.first_loss, wanted.first_loss);
  EXPECT_EQ(got.last_loss, wanted.last_loss);
  EXPECT_EQ(got.hash, wanted.hash);
}

TEST(Stages, TheSameBitsForAnyDevicesAndRanks) {
  const std::uint64_t wanted = train(in_stages(small_setting(), 2, 1)).hash;
  EXPECT_EQ(train(in_stages(small_setting(), 3, 2)).hash, wanted);
  EXPECT_EQ(train(in_stages(small_setting(), 8, 3)).hash, wanted);
}

}  // namespace
}  // namespace cleave
