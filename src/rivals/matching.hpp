// Two small assignment problems of DTFM's objective, solved exactly where size allows.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cleave::rivals {

/// A perfect matching of n rows to n columns whose dearest edge is as cheap as possible.
struct Matching {
  double bottleneck = 0;
  std::vector<std::size_t> column;  ///< of each row
};

/// Solver with buffers of its own, for many problems of like size.
class BottleneckMatcher {
 public:
  /// `cost` is n x n, row-major. Rows are added one by one along augmenting paths whose dearest edge is cheapest,
  /// O(n^3). Source: Derigs & Zimmermann 1978; DT-FM deletes heaviest edges and re-solves instead, with the same value.
  double solve(std::span<const double> cost, std::size_t n);
  /// Of the last problem solved: the column of each row.
  [[nodiscard]] std::span<const std::size_t> columns() const { return column_of_; }

 private:
  std::vector<std::size_t> column_of_, row_of_, previous_;
  std::vector<double> reach_;
  std::vector<char> done_;
};

[[nodiscard]] Matching bottleneck_matching(std::span<const double> cost, std::size_t n);

/// An open path through all n nodes, from any start to any end.
struct Path {
  double length = 0;
  std::vector<std::size_t> nodes;
};

/// Up to this many nodes the shortest path is exact; beyond, it is a local optimum.
inline constexpr std::size_t kExactPathNodes = 12;

/// Shortest open path for symmetric weights `w` (n x n). n <= kExactPathNodes: dynamic programme over subsets (Held &
/// Karp 1962), O(2^n n^2). Beyond: nearest neighbour from every node, best one improved by reversing runs and moving
/// nodes.
class PathFinder {
 public:
  double solve(std::span<const double> w, std::size_t n);
  [[nodiscard]] std::span<const std::size_t> nodes() const { return nodes_; }

 private:
  double solve_exactly(std::span<const double> w, std::size_t n);
  double solve_roughly(std::span<const double> w, std::size_t n);
  bool reverse_a_run(std::span<const double> w, std::size_t n);
  bool move_a_node(std::span<const double> w, std::size_t n);
  [[nodiscard]] double edge(std::span<const double> w, std::size_t n, std::size_t i) const;

  std::vector<double> best_;
  std::vector<std::size_t> nodes_, trial_;
};

[[nodiscard]] Path shortest_open_path(std::span<const double> w, std::size_t n);

}  // namespace cleave::rivals
