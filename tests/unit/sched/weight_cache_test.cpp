// The book of columns that devices keep: what finds room is sent, and what is given up or forgotten makes room.
#include "residency/weight_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace cleave::sched {
namespace {

const DeviceId kDevice(3);
const OpId kFirst(10), kSecond(20);
constexpr std::uint64_t kVersion = 1;

class WeightCacheTest : public ::testing::Test {
 protected:
  WeightCacheTest()
      : cache_(
            [this](OpId head, const plan::TaskletPlan& /*columns*/) {
              sent_.push_back(head);
              return TaskletId(std::ssize(sent_));
            },
            [this](TaskletId id, DeviceId device) {
              EXPECT_EQ(device, kDevice);
              released_.push_back(id);
            }) {
    cache_.set_room(kDevice, Bytes(100));
  }
  // An operation of one group wants 60 of the device's 100 bytes.
  void want(OpId head) {
    plan::TaskletPlan columns;
    columns.device = kDevice;
    columns.box = {0, 0, 0, 8, 0, 4};
    columns.resident = Bytes(60);
    cache_.want(head, 1, std::vector{columns}, kVersion);
  }
  static plan::TaskletPlan piece() {
    plan::TaskletPlan tasklet;
    tasklet.device = kDevice;
    tasklet.box = {0, 5, 0, 8, 0, 4};
    return tasklet;
  }

  std::vector<OpId> sent_;
  std::vector<TaskletId> released_;
  WeightCache cache_;
};

// The second's columns wait until the first's only group is sent and answered.
TEST_F(WeightCacheTest, WhatIsDoneMakesRoom) {
  want(kFirst);
  want(kSecond);
  EXPECT_EQ(sent_, std::vector{kFirst});
  EXPECT_FALSE(cache_.must_wait(kFirst));
  EXPECT_TRUE(cache_.must_wait(kSecond));
  const std::optional<TaskletId> columns = cache_.use(kFirst, piece());
  ASSERT_TRUE(columns);
  cache_.sent_group({.first = kFirst, .index = 0, .count = 1});
  EXPECT_TRUE(released_.empty());  // they are in use
  cache_.done(*columns);
  EXPECT_EQ(released_, std::vector{*columns});
  EXPECT_EQ(sent_, (std::vector{kFirst, kSecond}));
  EXPECT_FALSE(cache_.must_wait(kSecond));
}

// A device that is gone has nothing on it: when it is back, all of its room is free, and nobody waits for it.
TEST_F(WeightCacheTest, WhoIsForgottenKeepsNothing) {
  want(kFirst);
  want(kSecond);
  cache_.forget(kDevice);
  EXPECT_EQ(released_.size(), 1U);
  EXPECT_FALSE(cache_.must_wait(kSecond));
  EXPECT_FALSE(cache_.use(kFirst, piece()));
  want(kSecond);
  EXPECT_EQ(sent_, (std::vector{kFirst, kSecond}));
}

}  // namespace
}  // namespace cleave::sched
