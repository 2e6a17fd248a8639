// What each device covers of slabs of any depth, for those who form groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "search/preferred_shapes.hpp"

namespace cleave::plan {

/// What devices can cover by a time, in slabs of every number of K blocks. The whole depth counts for nothing: groups
/// that have it do not exchange devices for what they cover.
class Areas {
 public:
  Areas(const PreferredShapes& preferred, std::span<const DeviceRates> devices, double finish, const GemmBox& box);

  /// `shorter`: the last of these blocks is the last of the box.
  [[nodiscard]] double at(const DeviceRates& device, std::int64_t blocks, bool shorter) const {
    return areas_[places_[static_cast<std::size_t>(device.index)] + 2 * static_cast<std::size_t>(blocks) +
                  (shorter ? 1 : 0)];
  }

 private:
  std::size_t depths_;               // none, a block, ... the whole depth
  std::vector<std::size_t> places_;  // by DeviceRates::index
  std::vector<double> areas_;
};

}  // namespace cleave::plan
