// Levelled owners: by hand for one stage, and on generated fleets, where they fill every gradient within memory and are
// done no later than the owners that they replace.
#include "stages/level_owners.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "small_work.hpp"
#include "stages/finish.hpp"

namespace cleave::plan::stages {
namespace {

StageWork gpt2(std::int64_t layers, std::int64_t batch) {
  return small_work({.family = "gpt2", .layers = layers, .width = 256}, batch);
}

// One stage of all pieces, which the first devices replicate and the very first owns.
Layout one_stage(const StageWork& work, std::size_t replicas) {
  Layout layout{};
  layout.settings.chunk = 128;
  StageDraft& draft = layout.stages.emplace_back(StageCost(work, 0, std::ssize(work.pieces), 128));
  for (std::size_t i = 0; i < replicas; ++i) draft.replicas.push_back(i);
  layout.groups = {1};
  layout.owners = {{0, 0, 0, 1.0, true}};
  return layout;
}

std::map<std::size_t, double> shares_of(const Layout& layout) {
  std::map<std::size_t, double> shares;
  for (const OwnerShare& owned : layout.owners) shares[owned.device] += owned.share;
  return shares;
}

TEST(LevelOwners, UplinksOfOneStageEndTogether) {
  const StageWork work = gpt2(2, 8);
  std::vector<fleet::DeviceProfile> devices = alike_devices(3);
  devices[1].uplink = BytesPerSecond(3e6);
  devices[2].uplink = BytesPerSecond(4e6);
  const Problem problem = problem_of(work, devices, {});
  // The third device is no replica. Its weights take no time, so it is as good an owner as one.
  const Layout layout = one_stage(work, 2);
  const double before = owners_end(problem, layout);
  const std::optional<Layout> level = level_owners(problem, layout, false, before);
  ASSERT_TRUE(level);
  const std::map<std::size_t, double> shares = shares_of(*level);
  ASSERT_EQ(shares.size(), 3U);
  EXPECT_NEAR(shares.at(0), 1.0 / 8, 0.03);
  EXPECT_NEAR(shares.at(1), 3.0 / 8, 0.03);
  EXPECT_NEAR(shares.at(2), 4.0 / 8, 0.03);
  // From when the last sequence has passed on, 8 MB/s send all sums in two bytes an element.
  const Course course = course_of(problem, layout);
  const double sums = layout.stages.front().cost.gradient_elements() * 2;
  EXPECT_NEAR(level->gradients_s, course.passed.front() + sums * (1 + 2.0 / 95) / 8e6, 0.01 * level->gradients_s);
  EXPECT_LT(level->gradients_s, before);
}

TEST(LevelOwners, AskedForReplicasTakesNoOthers) {
  const StageWork work = gpt2(2, 8);
  std::vector<fleet::DeviceProfile> devices = alike_devices(3);
  Problem problem = problem_of(work, devices, {});
  problem.owners = OwnerPlaces::replicas;
  const Layout layout = one_stage(work, 2);
  const std::optional<Layout> level = level_owners(problem, layout, false, owners_end(problem, layout));
  ASSERT_TRUE(level);
  const std::map<std::size_t, double> shares = shares_of(*level);
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_NEAR(shares.at(0), 0.5, 0.01);
  problem.owners = OwnerPlaces::apart;
  const std::optional<Layout> apart = level_owners(problem, layout, false, 10 * owners_end(problem, layout));
  ASSERT_TRUE(apart);
  EXPECT_EQ(shares_of(*apart), (std::map<std::size_t, double>{{2, 1.0}}));
}

TEST(LevelOwners, WhoReadsForLongOwnsLess) {
  const StageWork work = gpt2(2, 64);
  std::vector<fleet::DeviceProfile> devices = alike_devices(4);
  const Problem quick = problem_of(work, devices, {});
  const Layout layout = one_stage(work, 4);
  devices[0].downlink = BytesPerSecond(5e5);
  const Problem slow = problem_of(work, devices, {});
  const std::optional<Layout> even = level_owners(quick, layout, false, owners_end(quick, layout));
  const std::optional<Layout> uneven = level_owners(slow, layout, false, owners_end(slow, layout));
  ASSERT_TRUE(even);
  ASSERT_TRUE(uneven);
  EXPECT_NEAR(shares_of(*even).at(0), 0.25, 0.01);
  EXPECT_LT(shares_of(*uneven)[0], 0.2);
}

TEST(LevelOwners, ASlowProcessorOwnsLess) {
  const StageWork work = gpt2(2, 64);
  std::vector<fleet::DeviceProfile> devices = alike_devices(4);
  const Layout layout = one_stage(work, 4);
  devices[0].compute = FlopsPerSecond(2e9);
  const Problem slow = problem_of(work, devices, {});
  const std::optional<Layout> uneven = level_owners(slow, layout, false, 2 * owners_end(slow, layout));
  ASSERT_TRUE(uneven);
  EXPECT_LT(shares_of(*uneven)[0], 0.2);
}

// X comes twice and dY once for X and dX that go out: a downlink that is no faster than the uplink lets two thirds of
// it be of use.
TEST(PassingRate, IsWhatTheSlowestResourceAllows) {
  const StageWork work = gpt2(2, 8);
  std::vector<fleet::DeviceProfile> devices = alike_devices(3);
  devices[1].downlink = devices[1].uplink;
  devices[2].compute = FlopsPerSecond(1e3);
  const Problem problem = problem_of(work, devices, {});
  const StageCost stage(work, 0, 2, 128);
  const PassingRate rate(problem, stage, false);
  EXPECT_DOUBLE_EQ(rate.of(0), 1e6);
  EXPECT_NEAR(rate.of(1), 2e6 / 3, 1);
  const double flops = stage.forward(0, work.seq).value() + stage.way_back(work.seq, false).value();
  EXPECT_NEAR(rate.of(2), in_bytes(stage.sent(work.seq)) * 1e3 / flops, 1e-6 * rate.of(2));
}

// Plans leave a link a tenth more time. Of that an owner that still reads when all sequences have passed is likely to
// need only a tenth of what it read before.
TEST(LevelOwners, WhoReadsForLongIsLikelyToBeDoneSoonerThanPlanned) {
  const StageWork work = gpt2(2, 64);
  std::vector<fleet::DeviceProfile> devices = alike_devices(4);
  Layout layout = one_stage(work, 3);
  layout.owners = {{3, 0, 0, 1.0, false}};
  const Problem quick = problem_of(work, devices, {});
  EXPECT_DOUBLE_EQ(owners_likely_end(quick, layout), owners_end(quick, layout)) << "all is read when all has passed";
  devices[3].downlink = BytesPerSecond(1e5);
  const Problem slow = problem_of(work, devices, {});
  EXPECT_LT(owners_likely_end(slow, layout), 0.99 * owners_end(slow, layout));
  EXPECT_GT(owners_likely_end(slow, layout), 0.9 * owners_end(slow, layout));
}

TEST(LevelOwners, IsNoneWhereNobodyIsSooner) {
  const StageWork work = gpt2(2, 8);
  const std::vector<fleet::DeviceProfile> devices = alike_devices(1);
  const Problem problem = problem_of(work, devices, {});
  const Layout layout = one_stage(work, 1);
  EXPECT_FALSE(level_owners(problem, layout, false, owners_end(problem, layout)));
}

TEST(LevelOwners, FillEveryGradientOnGeneratedFleets) {
  const StageWork work = gpt2(6, 32);
  std::int64_t levelled = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    fleet::DeviceGroup group;
    group.name = "edge";
    group.count = 24 + 4 * static_cast<std::int64_t>(seed);
    group.compute_flops = {5e10, 7e10};
    group.memory_bytes = {2e7, 8e7};
    group.downlink_bytes = {1e6, 1e7};
    group.uplink_bytes = {5e5, 1e6};
    const std::vector<fleet::DeviceProfile> devices = fleet::draw_devices({group}, seed);
    const Problem problem = problem_of(work, devices, {});
    for (const Layout& layout : search_layouts(problem, 128, true)) {
      const double before = owners_end(problem, layout);
      for (const bool one_group : {false, true}) {
        const std::optional<Layout> level = level_owners(problem, layout, one_group, before);
        if (!level) continue;
        ++levelled;
        EXPECT_LT(level->gradients_s, before);
        EXPECT_TRUE(within_memory(problem, finish(problem, *level))) << "seed " << seed;
        std::map<std::pair<std::size_t, std::int64_t>, double> filled;
        std::map<std::size_t, std::int64_t> owned_stages;
        std::set<std::tuple<std::size_t, std::int64_t, std::size_t>> once;
        for (const OwnerShare& owned : level->owners) {
          filled[{owned.stage, owned.group}] += owned.share;
          ++owned_stages[owned.device];
          EXPECT_TRUE(once.insert({owned.stage, owned.group, owned.device}).second) << "twice an owner of one gradient";
          const std::vector<std::size_t>& replicas = level->stages[owned.stage].replicas;
          EXPECT_EQ(owned.replica, std::ranges::find(replicas, owned.device) != replicas.end());
        }
        for (std::size_t s = 0; s < level->stages.size(); ++s) {
          if (level->stages[s].cost.gradient_elements() == 0) continue;
          EXPECT_EQ(level->groups[s], one_group ? 1 : layout.groups[s]);
          for (std::int64_t g = 0; g < level->groups[s]; ++g) EXPECT_NEAR((filled[{s, g}]), 1, 1e-9);
        }
        for (const auto& [device, count] : owned_stages) EXPECT_LE(count, level->settings.owned_stages);
        const std::optional<Layout> again = level_owners(problem, layout, one_group, before);
        ASSERT_TRUE(again);
        EXPECT_EQ(shares_of(*again), shares_of(*level));
      }
    }
  }
  EXPECT_GT(levelled, 100);
}

}  // namespace
}  // namespace cleave::plan::stages
