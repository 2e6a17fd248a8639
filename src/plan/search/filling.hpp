// Forming groups of devices, each to cover one slab, and sharing them among the regions of a box.
#pragma once

#include "search/preferred_shapes.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

/// Forms groups for planes of `area`, at a finish time: each takes devices, deepest first, until they cover the plane
/// at the depth that wastes least.
class Filling {
 public:
  /// `tails` of the groups may take a slab that is short by `missing` elements.
  Filling(const PreferredShapes& preferred, std::span<const DeviceRates> devices, double area, std::int64_t tails,
          std::int64_t missing)
      : preferred_(preferred), devices_(devices), area_(area), tails_(missing > 0 ? tails : 0), missing_(missing) {}

  /// Returns the blocks covered, at most `blocks`.
  std::int64_t fill(double finish, std::int64_t blocks);

  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }
  /// Devices that complete no group.
  [[nodiscard]] std::vector<DeviceRates> left() const;

 private:
  struct Choice {
    std::vector<std::size_t> members;  // positions in the pool
    double lines = 0;                  // of their preferred shapes
    std::int64_t blocks = 0, missing = 0;
  };

  bool take_group(std::int64_t most_blocks);
  [[nodiscard]] Choice choose(std::int64_t blocks, std::int64_t missing) const;
  void remove(const std::vector<std::size_t>& members);

  const PreferredShapes& preferred_;
  std::span<const DeviceRates> devices_;
  double area_, finish_ = 0;
  std::int64_t tails_, missing_, tails_left_ = 0;
  std::vector<PreferredShape> pool_;
  std::size_t first_ = 0;  // of the pool; those before are taken
  std::vector<Group> groups_;
};

/// Deals devices out to `count` groups of like capacity by `finish` for planes of `area`, the most able first; `blocks`
/// are shared out evenly. Requires: count <= blocks, count <= devices.
[[nodiscard]] std::vector<Group> deal_groups(const PreferredShapes& preferred, std::span<const DeviceRates> devices,
                                             double finish, std::int64_t count, std::int64_t blocks, double area);

/// The same with neighbours by depth together, and blocks in proportion to it.
[[nodiscard]] std::vector<Group> row_groups(const PreferredShapes& preferred, std::span<const DeviceRates> devices,
                                            double finish, std::int64_t count, std::int64_t blocks, double area);

/// Shares groups among regions so that the blocks of each add up to `blocks`. Empty when that cannot be.
[[nodiscard]] std::vector<std::vector<Group>> share_groups(std::vector<Group> groups, std::int64_t regions,
                                                           std::int64_t blocks);

}  // namespace cleave::plan
