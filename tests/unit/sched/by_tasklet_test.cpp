// Values under tasklet ids, against a map.
#include "by_tasklet.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cleave/base/random.hpp"

namespace cleave::sched {
namespace {

TEST(ByTasklet, DoesAsAMapDoes) {
  const Random random(3, Purpose::test);
  ByTasklet<std::int64_t> kept;
  std::map<std::int64_t, std::int64_t> expected;
  std::int64_t next = 1000;  // ids need not begin at 0
  for (std::uint64_t i = 0; i < 20000; ++i) {
    // Most leave soon after they came, some stay for long.
    if (random.below(4 * i, 2) == 0 || expected.empty()) {
      next += static_cast<std::int64_t>(random.below(4 * i + 1, 3)) * (i % 500 == 0 ? 700 : 1) + 1;
      expected[next] = static_cast<std::int64_t>(i);
      EXPECT_EQ(kept.add(TaskletId(next), static_cast<std::int64_t>(i)), static_cast<std::int64_t>(i));
    } else {
      auto gone = expected.begin();
      std::advance(gone, static_cast<std::int64_t>(random.below(4 * i + 2, expected.size())));
      if (random.below(4 * i + 3, 50) == 0) gone = std::prev(expected.end());
      kept.remove(TaskletId(gone->first));
      EXPECT_EQ(kept.find(TaskletId(gone->first)), nullptr);
      expected.erase(gone);
    }
    ASSERT_EQ(kept.size(), expected.size());
  }
  for (const auto& [id, value] : expected) {
    ASSERT_NE(kept.find(TaskletId(id)), nullptr);
    EXPECT_EQ(*kept.find(TaskletId(id)), value);
  }
  std::vector<std::int64_t> in_order, values;
  for (const auto& [id, value] : expected) in_order.push_back(value);
  kept.for_each([&](const std::int64_t& value) { values.push_back(value); });
  EXPECT_EQ(values, in_order);
}

TEST(ByTasklet, WhatIsNotKeptIsNotFound) {
  ByTasklet<int> kept;
  EXPECT_EQ(kept.find(TaskletId(5)), nullptr);
  EXPECT_EQ(kept.find(TaskletId()), nullptr);
  kept.remove(TaskletId(5));
  kept.add(TaskletId(5000), 1);
  kept.add(TaskletId(3), 2);  // before all others
  EXPECT_EQ(*kept.find(TaskletId(3)), 2);
  EXPECT_EQ(*kept.find(TaskletId(5000)), 1);
  EXPECT_EQ(kept.find(TaskletId(4999)), nullptr);
  EXPECT_EQ(kept.find(TaskletId(1 << 20)), nullptr);
  kept.clear();
  EXPECT_EQ(kept.size(), 0U);
  EXPECT_EQ(kept.find(TaskletId(3)), nullptr);
}

TEST(ByTasklet, ClearedItIsAsNewAndUsesItsMemoryAgain) {
  ByTasklet<std::int64_t> kept;
  std::set<const std::int64_t*> places;
  for (std::int64_t id = 0; id < 1000; ++id) places.insert(&kept.add(TaskletId(id), id));
  kept.remove(TaskletId(500));
  kept.clear();
  for (std::int64_t id = 300; id < 1300; ++id) {
    EXPECT_EQ(kept.find(TaskletId(id)), nullptr);
    EXPECT_TRUE(places.contains(&kept.add(TaskletId(id), -id)));
  }
  std::int64_t next = 300;
  kept.for_each([&](const std::int64_t& value) { EXPECT_EQ(value, -next++); });
  EXPECT_EQ(next, 1300);
}

}  // namespace
}  // namespace cleave::sched
