// Threshold accepting: what is kept and what is taken back, when it ends, and that draws are Philox's.
#include "search/threshold_accept.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace cleave::plan {
namespace {

TEST(Draws, ArePhiloxBlocksInTurn) {
  Draws draws(7);
  for (std::uint32_t block = 0; block < 3; ++block) {
    const auto words = philox({block, 0, 7, static_cast<std::uint32_t>(Purpose::planning)}, {0, 0});
    for (const std::uint32_t word : words) EXPECT_EQ(draws.bits(), word);
  }
}

TEST(Draws, BelowCoversEveryNumberAboutEquallyOften) {
  Draws draws(1);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60000; ++i) ++counts.at(draws.below(6));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);  // 5 standard deviations
}

TEST(Schedule, FallsInProportionAndOnlyImprovesInTheEnd) {
  const Schedule schedule{0.2};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(0.45), 0.1);
  EXPECT_EQ(schedule.at(0.9), 0);
  EXPECT_EQ(schedule.at(0.99), 0);
}

// A walker on the integers, whose place is worth landscape(place): a basin at 0, a deeper one at 40, a ridge between.
struct Walker {
  static double landscape(int place) {
    return std::abs(place) < 20 ? std::abs(place) : 15 + std::abs(place - 40) - 20.0;
  }

  double advance() { return static_cast<double>(tries++) / most; }
  bool propose(Draws& draws) {
    step = draws.below(2) == 0 ? -1 : 1;
    return std::abs(place + step) <= 60;
  }
  double loss(double worse) {
    const double lost = landscape(place + step) - landscape(place);
    moved = true;
    place += step;
    if (lost > worse) refused.push_back(lost);
    largest_threshold = std::max(largest_threshold, worse);
    return lost;
  }
  void keep() {
    EXPECT_TRUE(std::exchange(moved, false));
    ++kept;
  }
  void undo() {
    EXPECT_TRUE(std::exchange(moved, false));
    place -= step;
    ++undone;
  }

  int most = 0, place = 0, step = 0, tries = 0, kept = 0, undone = 0;
  bool moved = false;
  double largest_threshold = 0;
  std::vector<double> refused{};
};

TEST(ThresholdAccept, WithoutAThresholdNothingWorseIsKept) {
  Walker walker{.most = 2000, .place = 7};
  Draws draws(3);
  threshold_accept(walker, draws, Schedule{0});
  EXPECT_EQ(walker.place, 0);  // the basin that it began in
  EXPECT_EQ(walker.undone, static_cast<int>(walker.refused.size()));
}

TEST(ThresholdAccept, EveryProposalIsSettledAndTheEffortIsSpent) {
  Walker walker{.most = 2000};
  Draws draws(3);
  threshold_accept(walker, draws, Schedule{1});
  EXPECT_EQ(walker.tries, 2001);  // the last look says that it is over
  EXPECT_EQ(walker.kept + walker.undone, 2000);
  EXPECT_LE(walker.largest_threshold, 1);
  EXPECT_GT(walker.undone, 0);
  EXPECT_FALSE(walker.moved);
}

TEST(ThresholdAccept, AThresholdLeavesABasin) {
  Walker walker{.most = 200000};
  Draws draws(5);
  threshold_accept(walker, draws, Schedule{1.05});
  EXPECT_NE(walker.place, 0);
  // In the last tenth it only improves, so it ends at the bottom of a basin.
  EXPECT_LE(Walker::landscape(walker.place), Walker::landscape(walker.place - 1));
  EXPECT_LE(Walker::landscape(walker.place), Walker::landscape(walker.place + 1));
}

TEST(ThresholdAccept, TheSameDrawsTheSameWalk) {
  const auto walk = [](std::uint32_t seed) {
    Walker walker{.most = 5000};
    Draws draws(seed);
    threshold_accept(walker, draws, Schedule{3});
    return std::array{walker.place, walker.kept, walker.undone};
  };
  EXPECT_EQ(walk(9), walk(9));
  EXPECT_NE(walk(9), walk(10));
}

}  // namespace
}  // namespace cleave::plan
