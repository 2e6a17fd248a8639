// What each device covers of slabs of any depth, for those who form groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wishes.hpp"

namespace cleave::plan {

/// What devices can cover by a time, in slabs of every number of K blocks. The whole depth counts for nothing: groups
/// that have it are not mixed with others for what they cover.
class Areas {
 public:
  Areas(const Wishes& wishes, std::span<const Power> devices, double finish, const GemmBox& box);

  /// `shorter`: the last of these blocks is the last of the box.
  [[nodiscard]] double at(const Power& device, std::int64_t blocks, bool shorter) const {
    return areas_[places_[static_cast<std::size_t>(device.index)] + 2 * static_cast<std::size_t>(blocks) +
                  (shorter ? 1 : 0)];
  }

 private:
  std::size_t depths_;               // none, a block, ... the whole depth
  std::vector<std::size_t> places_;  // by Power::index
  std::vector<double> areas_;
};

}  // namespace cleave::plan
