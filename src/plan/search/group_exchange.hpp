// GroupExchange groups: which devices cover which slabs, so that depths that add up are those that devices do best at.
#pragma once

#include <random>

#include "search/areas.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

/// Regions whose groups exchange devices and blocks while all regions together cover more.
class GroupExchange {
 public:
  /// The last group of each region holds the last block.
  GroupExchange(const Areas& areas, std::vector<std::vector<Group>> regions);

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
    std::vector<DeviceRates> devices;
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
