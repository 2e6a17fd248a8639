// Slices of gradients end where pieces do, within what shares and memory allow.
#include "stages/slices.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "cleave/plan/stage_cost.hpp"
#include "small_work.hpp"
#include "stages/finish.hpp"

namespace cleave::plan::stages {
namespace {

// One stage of the lowest pieces, which every device replicates and owns so much of.
Layout one_stage(const StageWork& work, std::int64_t pieces, const std::vector<double>& shares) {
  Layout layout{};
  layout.settings.chunk = 128;
  StageDraft& draft = layout.stages.emplace_back(StageCost(work, 0, pieces, 128));
  layout.groups = {1};
  for (std::size_t i = 0; i < shares.size(); ++i) {
    draft.replicas.push_back(i);
    layout.owners.push_back({i, 0, 0, shares[i], true});
  }
  return layout;
}

void expect_filled(const StageWork& work, std::int64_t pieces, const std::vector<GradientOwner>& owners) {
  std::map<std::int64_t, std::int64_t> units;
  for (const GradientOwner& owner : owners) {
    for (const PieceSlice& slice : owner.slices) {
      EXPECT_EQ(slice.begin, units[slice.piece]);
      units[slice.piece] = slice.end;
    }
  }
  for (std::int64_t i = 0; i < pieces; ++i) EXPECT_EQ(units[i], work.pieces[static_cast<std::size_t>(i)].units) << i;
}

double elements_of(const StageWork& work, const Layout& layout, const GradientOwner& owner) {
  return owner_cost(work, layout.stages.front().cost, owner.slices, 128).elements;
}

// An attention half has a third of a layer's gradient: two of six owners.
TEST(Slices, EndWherePiecesDo) {
  const StageWork work = small_work({.family = "gpt2", .width = 384}, 8);
  const std::vector<fleet::DeviceProfile> devices = alike_devices(6);
  const Problem problem = problem_of(work, devices, {});
  const Layout layout = one_stage(work, 2, {0.17, 0.16, 0.165, 0.17, 0.165, 0.17});
  const std::vector<GradientOwner> owners = owners_with_slices(problem, layout, true);
  ASSERT_EQ(owners.size(), 6U);
  expect_filled(work, 2, owners);
  std::map<std::int64_t, std::int64_t> of_piece;
  for (const GradientOwner& owner : owners) {
    ASSERT_EQ(owner.slices.size(), 1U) << owner.device.value;
    ++of_piece[owner.slices.front().piece];
    const double share = elements_of(work, layout, owner) / layout.stages.front().cost.gradient_elements();
    EXPECT_NEAR(share, layout.owners[static_cast<std::size_t>(owner.device.value)].share, 0.1 / 6);
  }
  EXPECT_EQ(of_piece, (std::map<std::int64_t, std::int64_t>{{0, 2}, {1, 4}}));
}

// Who owns some of the attention half makes the MLP half above it again, forward and back. Who owns some of that makes
// the attention half forward.
TEST(Slices, TheQuickestProcessorsMakeMostAgain) {
  const StageWork work = small_work({.family = "gpt2", .width = 384}, 8);
  for (const std::int64_t count : {6, 12}) {  // few enough to try all choices, and more
    std::vector<fleet::DeviceProfile> devices = alike_devices(count);
    for (const std::int64_t quick : {1, 4, 7, 10}) {
      if (quick < count) devices[static_cast<std::size_t>(quick)].compute = FlopsPerSecond(4e15);
    }
    const Problem problem = problem_of(work, devices, {});
    const Layout layout =
        one_stage(work, 2, std::vector(static_cast<std::size_t>(count), 1.0 / static_cast<double>(count)));
    for (const GradientOwner& owner : owners_with_slices(problem, layout, true)) {
      const bool quick = owner.device.value % 3 == 1;
      EXPECT_EQ(owner.slices.front().piece, quick ? 0 : 1) << owner.device.value << " of " << count;
    }
  }
}

// Nobody's half fits a third: one of them owns parts of both.
TEST(Slices, AreCutAnywhereWhereSharesDoNotFit) {
  const StageWork work = small_work({.family = "gpt2", .width = 384}, 8);
  const std::vector<fleet::DeviceProfile> devices = alike_devices(2);
  const Problem problem = problem_of(work, devices, {});
  const std::vector<GradientOwner> owners = owners_with_slices(problem, one_stage(work, 2, {0.5, 0.5}), true);
  ASSERT_EQ(owners.size(), 2U);
  expect_filled(work, 2, owners);
  EXPECT_EQ(owners.front().slices.size() + owners.back().slices.size(), 3U);
}

TEST(Slices, FillGradientsWithinMemory) {
  std::mt19937_64 random(7);
  std::int64_t within = 0, all = 0;
  for (int round = 0; round < 200; ++round) {
    const auto draw = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
    const StageWork work = small_work({.family = round % 2 == 0 ? "opt" : "llama", .layers = 3, .width = 256}, 8);
    const auto pieces = static_cast<std::int64_t>(draw(2, 6.99));
    std::vector<double> shares(static_cast<std::size_t>(draw(1, 14)));
    double sum = 0;
    for (double& share : shares) sum += share = draw(0.2, 1);
    for (double& share : shares) share /= sum;
    std::vector<fleet::DeviceProfile> devices = alike_devices(std::ssize(shares));
    for (fleet::DeviceProfile& device : devices) device.compute = FlopsPerSecond(draw(1e14, 1e15));
    const Layout layout = one_stage(work, pieces, shares);
    // As much memory as shares take that are cut anywhere, and a little.
    const StageCost& cost = layout.stages.front().cost;
    double at = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double end = i + 1 == shares.size() ? 1 : at + shares[i];
      const OwnerCost of = owner_cost(work, cost, slices_between(work, cost, at, end), 128);
      const double bytes = replica_bytes(layout.stages.front()) +
                           in_bytes(cost.at_work() + of.at_work + of.waiting(true)) + of.elements * 4;
      devices[i].memory = Bytes(static_cast<std::int64_t>(bytes * draw(1, 1.05)) + 1);
      at = end;
    }
    const Problem problem = problem_of(work, devices, {});
    const std::vector<GradientOwner> owners = owners_with_slices(problem, layout, false);
    expect_filled(work, pieces, owners);
    for (const GradientOwner& owner : owners) {
      within += owner.slices.size() == 1 ? 1 : 0;
      ++all;
    }
    EXPECT_TRUE(within_memory(problem, finish(problem, layout))) << round;
  }
  EXPECT_GT(2 * within, all) << "hardly anything is cut along pieces: the test shows nothing";
}

}  // namespace
}  // namespace cleave::plan::stages
