// Bottleneck matching and shortest open paths.
#include "matching.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace cleave::rivals {

namespace {
constexpr std::size_t kNoVertex = static_cast<std::size_t>(-1);
constexpr double kUnreached = std::numeric_limits<double>::infinity();
/// A change of a path must gain at least this share of the edges it takes out: rounding must not make it go on for
/// ever.
constexpr double kLeastGain = 1e-9;
// best[S * N + v]: shortest path that visits the set S and ends in v, for every v in S. From each set, `onward[v]` is
// the shortest path that visits it and then goes to v. N is known to the compiler: searches solve this 10^5 times.
template <std::size_t N>
void fill_table(const double* w, std::size_t n, double* best) {
  if constexpr (N > 1) {
    if (n < N) return fill_table<N - 1>(w, n, best);
  }
  for (std::size_t v = 0; v < N; ++v) best[(std::size_t{1} << v) * N + v] = 0;
  for (std::size_t set = 1; set < std::size_t{1} << N; ++set) {
    double onward[N];
    std::fill(onward, onward + N, kUnreached);
    for (std::size_t left = set; left != 0; left &= left - 1) {
      const auto u = static_cast<std::size_t>(std::countr_zero(left));
      const double here = best[set * N + u];
      for (std::size_t v = 0; v < N; ++v) {
        const double there = here + w[u * N + v];
        onward[v] = there < onward[v] ? there : onward[v];
      }
    }
    for (std::size_t left = (std::size_t{1} << N) - 1 - set; left != 0; left &= left - 1) {
      const auto v = static_cast<std::size_t>(std::countr_zero(left));
      best[(set | std::size_t{1} << v) * N + v] = onward[v];
    }
  }
}

}  // namespace

double BottleneckMatcher::solve(std::span<const double> cost, std::size_t n) {
  column_of_.assign(n, kNoVertex);
  row_of_.assign(n, kNoVertex);
  previous_.resize(n);
  reach_.resize(n);
  done_.resize(n);
  // No matching is cheaper than the cheapest edge of any one row or column; rows that find a free column within that
  // bound take it at once.
  double bottleneck = 0;
  std::fill(reach_.begin(), reach_.end(), kUnreached);
  for (std::size_t row = 0; row < n; ++row) {
    double least = kUnreached;
    for (std::size_t c = 0; c < n; ++c) {
      least = std::min(least, cost[row * n + c]);
      reach_[c] = std::min(reach_[c], cost[row * n + c]);
    }
    bottleneck = std::max(bottleneck, least);
  }
  for (const double least : reach_) bottleneck = std::max(bottleneck, least);
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t c = 0; c < n; ++c) {
      if (row_of_[c] != kNoVertex || cost[row * n + c] > bottleneck) continue;
      row_of_[c] = row;
      column_of_[row] = c;
      break;
    }
  }
  for (std::size_t row = 0; row < n; ++row) {
    if (column_of_[row] != kNoVertex) continue;
    // reach[c]: the dearest edge on the best alternating path from `row` to column c, at least today's bottleneck.
    std::fill(done_.begin(), done_.end(), char{0});
    for (std::size_t c = 0; c < n; ++c) {
      reach_[c] = std::max(bottleneck, cost[row * n + c]);
      previous_[c] = row;
    }
    std::size_t end = kNoVertex;
    while (end == kNoVertex) {
      std::size_t nearest = kNoVertex;
      for (std::size_t c = 0; c < n; ++c) {
        if (!done_[c] && (nearest == kNoVertex || reach_[c] < reach_[nearest])) nearest = c;
      }
      done_[nearest] = 1;
      if (row_of_[nearest] == kNoVertex) {
        end = nearest;
        break;
      }
      const std::size_t via = row_of_[nearest];
      for (std::size_t c = 0; c < n; ++c) {
        const double through = std::max(reach_[nearest], cost[via * n + c]);
        if (!done_[c] && through < reach_[c]) {
          reach_[c] = through;
          previous_[c] = via;
        }
      }
    }
    bottleneck = reach_[end];
    while (end != kNoVertex) {  // flip the path
      const std::size_t r = previous_[end], next = column_of_[r];
      row_of_[end] = r;
      column_of_[r] = end;
      end = r == row ? kNoVertex : next;
    }
  }
  return bottleneck;
}

Matching bottleneck_matching(std::span<const double> cost, std::size_t n) {
  BottleneckMatcher matcher;
  Matching matching;
  matching.bottleneck = matcher.solve(cost, n);
  matching.column.assign(matcher.columns().begin(), matcher.columns().end());
  return matching;
}

double PathFinder::solve(std::span<const double> w, std::size_t n) {
  if (n <= kExactPathNodes) return solve_exactly(w, n);
  return solve_roughly(w, n);
}

double PathFinder::solve_exactly(std::span<const double> w, std::size_t n) {
  best_.resize((std::size_t{1} << n) * n);
  fill_table<kExactPathNodes>(w.data(), n, best_.data());
  // Back from the best end: the node before is the one by which the length adds up.
  std::size_t set = (std::size_t{1} << n) - 1, end = 0;
  for (std::size_t v = 1; v < n; ++v) {
    if (best_[set * n + v] < best_[set * n + end]) end = v;
  }
  const double length = best_[set * n + end];
  nodes_.assign(n, 0);
  for (std::size_t i = n; i-- > 0;) {
    nodes_[i] = end;
    const std::size_t rest = set ^ (std::size_t{1} << end);
    if (rest == 0) break;
    std::size_t before = 0;
    while (!(rest >> before & 1) || best_[rest * n + before] + w[before * n + end] != best_[set * n + end]) ++before;
    set = rest;
    end = before;
  }
  return length;
}

double PathFinder::solve_roughly(std::span<const double> w, std::size_t n) {
  double shortest = kUnreached;
  for (std::size_t start = 0; start < n; ++start) {
    trial_.assign(1, start);
    double length = 0;
    std::vector<char> seen(n, 0);
    seen[start] = 1;
    while (trial_.size() < n) {
      const std::size_t here = trial_.back();
      std::size_t next = kNoVertex;
      for (std::size_t v = 0; v < n; ++v) {
        if (!seen[v] && (next == kNoVertex || w[here * n + v] < w[here * n + next])) next = v;
      }
      seen[next] = 1;
      length += w[here * n + next];
      trial_.push_back(next);
    }
    if (length < shortest) {
      shortest = length;
      nodes_ = trial_;
    }
  }
  while (reverse_a_run(w, n) || move_a_node(w, n)) {}
  double length = 0;
  for (std::size_t i = 0; i + 1 < n; ++i) length += w[nodes_[i] * n + nodes_[i + 1]];
  return length;
}

// Weight of the edge between positions i and i+1; nothing beyond the ends of an open path.
double PathFinder::edge(std::span<const double> w, std::size_t n, std::size_t i) const {
  return i + 1 < n ? w[nodes_[i] * n + nodes_[i + 1]] : 0;
}

// 2-opt on an open path: positions [i, j] the other way round.
bool PathFinder::reverse_a_run(std::span<const double> w, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      const double before = (i > 0 ? edge(w, n, i - 1) : 0) + edge(w, n, j);
      const double after =
          (i > 0 ? w[nodes_[i - 1] * n + nodes_[j]] : 0) + (j + 1 < n ? w[nodes_[i] * n + nodes_[j + 1]] : 0);
      if (after < before * (1 - kLeastGain)) {
        std::reverse(nodes_.begin() + static_cast<std::ptrdiff_t>(i),
                     nodes_.begin() + static_cast<std::ptrdiff_t>(j) + 1);
        return true;
      }
    }
  }
  return false;
}

// Or-opt: one node elsewhere.
bool PathFinder::move_a_node(std::span<const double> w, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t node = nodes_[i];
    const bool inner = i > 0 && i + 1 < n;
    const double out =
        (i > 0 ? edge(w, n, i - 1) : 0) + edge(w, n, i) - (inner ? w[nodes_[i - 1] * n + nodes_[i + 1]] : 0);
    trial_ = nodes_;
    trial_.erase(trial_.begin() + static_cast<std::ptrdiff_t>(i));
    for (std::size_t j = 0; j < n; ++j) {  // between positions j-1 and j of what is left
      const double in = (j > 0 ? w[trial_[j - 1] * n + node] : 0) + (j < n - 1 ? w[node * n + trial_[j]] : 0) -
                        (j > 0 && j < n - 1 ? w[trial_[j - 1] * n + trial_[j]] : 0);
      if (in < out - kLeastGain * std::abs(out)) {
        trial_.insert(trial_.begin() + static_cast<std::ptrdiff_t>(j), node);
        nodes_ = trial_;
        return true;
      }
    }
  }
  return false;
}

Path shortest_open_path(std::span<const double> w, std::size_t n) {
  PathFinder finder;
  Path path;
  path.length = finder.solve(w, n);
  path.nodes.assign(finder.nodes().begin(), finder.nodes().end());
  return path;
}

}  // namespace cleave::rivals
