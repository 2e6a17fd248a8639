// Costs of groups, of pairs of groups, and the path through them.
#include "dtfm_objective.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cleave/base/random.hpp"

namespace cleave::rivals {

namespace {

/// Remembered pairs of groups; forgotten all at once when they are this many.
constexpr std::size_t kMostKnown = 4'000'000;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = std::min(a, b) * 0x9e3779b97f4a7c15ULL ^ std::max(a, b);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

}  // namespace

DtfmObjective::DtfmObjective(const Network& network, const std::vector<std::size_t>& members, std::size_t stages,
                             double gradient_bytes, double activation_bytes)
    : devices_(members.size()), stages_(stages), hop_(devices_ * devices_), exchange_(devices_ * devices_) {
  const Random random(0, Purpose::rivals, 1);
  for (std::size_t i = 0; i < devices_; ++i) keys_.push_back(random.bits(i));
  const auto size = static_cast<double>(pipelines());
  for (std::size_t i = 0; i < devices_; ++i) {
    for (std::size_t j = 0; j < devices_; ++j) {
      const double rate = std::min(network.rate(members[i], members[j]), network.rate(members[j], members[i]));
      const double delay_s =
          std::max(network.latency_s(members[i], members[j]), network.latency_s(members[j], members[i]));
      hop_[i * devices_ + j] = delay_s + activation_bytes / rate;
      exchange_[i * devices_ + j] = 2 * (delay_s + gradient_bytes / (rate * size));
    }
  }
}

double DtfmObjective::group_cost_s(const std::vector<std::size_t>& group) const {
  double most_s = 0;
  for (const std::size_t i : group) {
    double sum_s = 0;
    for (const std::size_t j : group) {
      if (i != j) sum_s += exchange_s(i, j);
    }
    most_s = std::max(most_s, sum_s);
  }
  return most_s;
}

std::uint64_t DtfmObjective::key_of(const std::vector<std::size_t>& group) const {
  std::uint64_t key = 0;
  for (const std::size_t i : group) key ^= keys_[i];
  return key;
}

std::span<const double> DtfmObjective::hops_between(const std::vector<std::size_t>& a,
                                                    const std::vector<std::size_t>& b) {
  block_.resize(a.size() * b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) block_[i * b.size() + j] = hop_s(a[i], b[j]);
  }
  return block_;
}

DtfmObjective::Between DtfmObjective::between(const std::vector<std::size_t>& a, const std::vector<std::size_t>& b) {
  const std::uint64_t key = mix(key_of(a), key_of(b));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  if (known_.size() >= kMostKnown) known_.clear();
  const std::span<const double> hops = hops_between(a, b);
  const std::size_t n = a.size();
  double cheapest_s = 0;
  cheapest_of_column_.assign(n, std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < n; ++i) {
    double least_s = std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < n; ++j) {
      least_s = std::min(least_s, hops[i * n + j]);
      cheapest_of_column_[j] = std::min(cheapest_of_column_[j], hops[i * n + j]);
    }
    cheapest_s += least_s;
  }
  for (const double least_s : cheapest_of_column_) cheapest_s += least_s;
  Between between;
  between.bottleneck_s = matcher_.solve(hops, n);
  between.soft_s = std::sqrt(between.bottleneck_s * cheapest_s / static_cast<double>(2 * n));
  known_.emplace(key, between);
  return between;
}

double DtfmObjective::between_s(const std::vector<std::size_t>& a, const std::vector<std::size_t>& b) {
  return between(a, b).bottleneck_s;
}

double DtfmObjective::path_length_s(const Groups& groups, double softness) {
  const std::size_t n = groups.size();
  weights_.assign(n * n, 0);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      const Between pair = between(groups[a], groups[b]);
      weights_[a * n + b] = weights_[b * n + a] = (1 - softness) * pair.bottleneck_s + softness * pair.soft_s;
    }
  }
  if (weights_ != solved_weights_) {  // many partitions differ in nothing that the path can see
    solved_length_s_ = path_.solve(weights_, n);
    solved_weights_ = weights_;
  }
  return solved_length_s_;
}

DtfmScore DtfmObjective::score(const Groups& groups) {
  DtfmScore score;
  for (const std::vector<std::size_t>& group : groups) {
    score.data_parallel_s = std::max(score.data_parallel_s, group_cost_s(group));
  }
  score.pipeline_s = path_length_s(groups, 0);
  return score;
}

double DtfmObjective::soft_total_s(const Groups& groups, double softness) {
  double most_s = 0, sum_s = 0;
  for (const std::vector<std::size_t>& group : groups) {
    const double cost_s = group_cost_s(group);
    most_s = std::max(most_s, cost_s);
    sum_s += cost_s;
  }
  return (1 - softness) * most_s + softness * sum_s / static_cast<double>(groups.size()) +
         2 * path_length_s(groups, softness);
}

Groups DtfmObjective::pipelines_of(const Groups& groups) {
  path_length_s(groups, 0);
  const std::vector<std::size_t> order(path_.nodes().begin(), path_.nodes().end());
  Groups grid{groups[order[0]]};
  for (std::size_t s = 1; s < order.size(); ++s) {
    const std::vector<std::size_t>& next = groups[order[s]];
    matcher_.solve(hops_between(grid.back(), next), next.size());
    std::vector<std::size_t> stage;
    for (const std::size_t column : matcher_.columns()) stage.push_back(next[column]);
    grid.push_back(std::move(stage));
  }
  return grid;
}

}  // namespace cleave::rivals
