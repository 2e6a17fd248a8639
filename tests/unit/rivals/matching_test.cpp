// Bottleneck matching and open paths against every permutation.
#include "matching.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "cleave/base/random.hpp"

namespace cleave::rivals {
namespace {

std::vector<double> random_costs(std::size_t n, std::uint64_t seed, bool coarse) {
  const Random random(seed, Purpose::test);
  std::vector<double> cost(n * n);
  for (std::size_t i = 0; i < cost.size(); ++i) {
    cost[i] = coarse ? static_cast<double>(random.below(i, 4)) : random.uniform(i);  // coarse: many ties
  }
  return cost;
}

std::vector<std::size_t> identity(std::size_t n) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

double least_bottleneck(const std::vector<double>& cost, std::size_t n) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> columns = identity(n);
  do {
    double dearest = 0;
    for (std::size_t row = 0; row < n; ++row) dearest = std::max(dearest, cost[row * n + columns[row]]);
    best = std::min(best, dearest);
  } while (std::next_permutation(columns.begin(), columns.end()));
  return best;
}

double shortest_path(const std::vector<double>& w, std::size_t n) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> order = identity(n);
  do {
    double length = 0;
    for (std::size_t i = 0; i + 1 < n; ++i) length += w[order[i] * n + order[i + 1]];
    best = std::min(best, length);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

std::vector<double> symmetric(std::vector<double> w, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    w[i * n + i] = 0;
    for (std::size_t j = 0; j < i; ++j) w[i * n + j] = w[j * n + i];
  }
  return w;
}

bool is_permutation_of_all(std::span<const std::size_t> found, std::size_t n) {
  std::vector<std::size_t> sorted(found.begin(), found.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted == identity(n);
}

TEST(Matching, BottleneckEqualsEveryPermutation) {
  for (std::size_t n = 1; n <= 7; ++n) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const std::vector<double> cost = random_costs(n, seed * 8 + n, seed % 3 == 0);
      const Matching found = bottleneck_matching(cost, n);
      ASSERT_TRUE(is_permutation_of_all(found.column, n));
      double dearest = 0;
      for (std::size_t row = 0; row < n; ++row) dearest = std::max(dearest, cost[row * n + found.column[row]]);
      EXPECT_EQ(dearest, found.bottleneck);
      EXPECT_EQ(found.bottleneck, least_bottleneck(cost, n)) << "n " << n << " seed " << seed;
    }
  }
}

TEST(Matching, OneSolverForManyProblems) {
  BottleneckMatcher matcher;
  for (const std::size_t n : {6, 2, 5, 1, 7}) {
    const std::vector<double> cost = random_costs(n, n, false);
    EXPECT_EQ(matcher.solve(cost, n), least_bottleneck(cost, n));
  }
}

TEST(Paths, EqualEveryPermutation) {
  for (std::size_t n = 1; n <= 8; ++n) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<double> w = symmetric(random_costs(n, seed * 16 + n, seed % 3 == 0), n);
      const Path path = shortest_open_path(w, n);
      ASSERT_TRUE(is_permutation_of_all(path.nodes, n));
      double length = 0;
      for (std::size_t i = 0; i + 1 < n; ++i) length += w[path.nodes[i] * n + path.nodes[i + 1]];
      EXPECT_NEAR(path.length, length, 1e-12);
      EXPECT_NEAR(path.length, shortest_path(w, n), 1e-12) << "n " << n << " seed " << seed;
    }
  }
}

// Beyond kExactPathNodes a local search: on points of a line the shortest path is their span.
TEST(Paths, LongOnesFollowALine) {
  constexpr std::size_t kNodes = 40;
  const Random random(3, Purpose::test);
  std::vector<double> at(kNodes), w(kNodes * kNodes);
  for (std::size_t i = 0; i < kNodes; ++i) at[i] = random.uniform(i);
  for (std::size_t i = 0; i < kNodes; ++i) {
    for (std::size_t j = 0; j < kNodes; ++j) w[i * kNodes + j] = std::abs(at[i] - at[j]);
  }
  const Path path = shortest_open_path(w, kNodes);
  EXPECT_TRUE(is_permutation_of_all(path.nodes, kNodes));
  const auto [low, high] = std::minmax_element(at.begin(), at.end());
  EXPECT_NEAR(path.length, *high - *low, 1e-9);
}

}  // namespace
}  // namespace cleave::rivals
