// DTFM's placement objective: what its scheduler minimises. Not a run-time predictor: no micro-batches, no overlap.
//
// N devices = stages x pipelines; a group holds the devices of one stage.
//   data-parallel cost  C_DP = max over groups G, i in G of  sum_{j in G, j != i} 2 (delay_ij + gradient / (rate_ij
//   |G|)) hop                 h_ij = delay_ij + activation / rate_ij between two groups  w(G, H) = dearest hop of the
//   perfect matching whose dearest hop is cheapest pipeline cost       C_PP = length of the shortest open path through
//   all groups by w total               C_DP + 2 C_PP   (forward and backward)
// Source: Yuan et al. 2022 (arXiv 2206.01288), and the authors' scheduler. Links are symmetric: the worse direction.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "matching.hpp"
#include "network.hpp"

namespace cleave::rivals {

/// Positions of devices, group by group; every group has the same size.
using Groups = std::vector<std::vector<std::size_t>>;

struct DtfmScore {
  double data_parallel_s = 0, pipeline_s = 0;  ///< C_DP and C_PP
  [[nodiscard]] double total_s() const { return data_parallel_s + 2 * pipeline_s; }
};

class DtfmObjective {
 public:
  /// Over `members` of the network (positions); groups name devices by their index in `members`. `gradient` and
  /// `activation` in bytes.
  DtfmObjective(const Network& network, const std::vector<std::size_t>& members, std::size_t stages,
                double gradient_bytes, double activation_bytes);

  [[nodiscard]] std::size_t devices() const { return devices_; }
  [[nodiscard]] std::size_t stages() const { return stages_; }
  [[nodiscard]] std::size_t pipelines() const { return devices_ / stages_; }
  /// h_ij
  [[nodiscard]] double hop_s(std::size_t i, std::size_t j) const { return hop_[i * devices_ + j]; }
  /// 2 (delay_ij + gradient / (rate_ij |G|))
  [[nodiscard]] double exchange_s(std::size_t i, std::size_t j) const { return exchange_[i * devices_ + j]; }

  [[nodiscard]] double group_cost_s(const std::vector<std::size_t>& group) const;
  /// w(G, H)
  double between_s(const std::vector<std::size_t>& a, const std::vector<std::size_t>& b);
  DtfmScore score(const Groups& groups);
  /// The total without its plateaus, for searches: with weight `softness`, the mean over groups stands in for the
  /// largest group cost, and for w(G, H) the geometric mean of it and the mean cheapest hop of their devices. That
  /// falls while a matching is still short of a cheaper bottleneck, and fastest where cheap hops gather in few pairs of
  /// groups.
  double soft_total_s(const Groups& groups, double softness);
  /// The stages in path order and, along it, matched devices: result[stage][pipeline] is an index in `members`.
  Groups pipelines_of(const Groups& groups);

 private:
  [[nodiscard]] std::uint64_t key_of(const std::vector<std::size_t>& group) const;
  struct Between {
    double bottleneck_s, soft_s;
  };
  // Remembered by the sets of devices, so that a search pays for changed groups only.
  Between between(const std::vector<std::size_t>& a, const std::vector<std::size_t>& b);
  double path_length_s(const Groups& groups, double softness);
  std::span<const double> hops_between(const std::vector<std::size_t>& a, const std::vector<std::size_t>& b);

  std::size_t devices_, stages_;
  std::vector<double> hop_, exchange_;
  std::vector<std::uint64_t> keys_;  // of devices, for sets of them
  std::unordered_map<std::uint64_t, Between> known_;
  std::vector<double> block_, cheapest_of_column_, weights_, solved_weights_;
  double solved_length_s_ = 0;  // of the path by solved_weights_
  BottleneckMatcher matcher_;
  PathFinder path_;
};

}  // namespace cleave::rivals
