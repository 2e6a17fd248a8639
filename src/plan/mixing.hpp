// Mixing groups: which devices cover which slabs, so that depths that add up are those that devices do best at.
#pragma once

#include <random>

#include "slabs.hpp"
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

/// Regions whose groups exchange devices and blocks while all regions together cover more.
class Mixing {
 public:
  /// The last group of each region holds the last block.
  Mixing(const Areas& areas, std::vector<std::vector<Group>> regions);

  /// Tries so many changes.
  void improve(int changes);

  /// Elements of the result that the regions cover together, about.
  [[nodiscard]] double covered() const { return covered_; }
  [[nodiscard]] std::vector<std::vector<Group>> regions() const;
  /// Of what all regions cover, the share of one.
  [[nodiscard]] double share_of(std::size_t region) const { return regions_[region].covers / covered_; }

 private:
  struct Members {
    std::size_t region = 0;
    std::int64_t blocks = 1;
    bool shorter = false;
    std::vector<Power> devices;
    double lack = 0;  // how little it covers: 1 / area, to a high power
  };
  struct Part {
    std::vector<std::size_t> groups;
    double covers = 0;
  };

  [[nodiscard]] double lack_of(const Members& group) const;
  [[nodiscard]] double covers(const Part& region) const;
  void change(double worse);
  std::size_t draw(std::size_t end) { return (random_() >> 8U) % end; }

  const Areas* areas_;
  std::vector<Members> groups_;
  std::vector<Part> regions_;
  double covered_ = 0;
  std::minstd_rand random_;
};

}  // namespace cleave::plan
