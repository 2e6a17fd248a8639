// GroupExchange groups: which devices cover which slabs, so that depths that add up are those that devices do best at.
#pragma once

#include "search/areas.hpp"
#include "search/slabs.hpp"
#include "search/threshold_accept.hpp"

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

  // As threshold_accept() asks.
  template <class State>
  friend void threshold_accept(State& state, Draws& draws, const Schedule& schedule);
  double advance();
  bool propose(Draws& draws);
  double loss(double worse);
  void keep();
  void undo();
  void exchange(bool forth);

  const Areas* areas_;
  std::vector<Members> groups_;
  std::vector<Part> regions_;
  double covered_ = 0;
  Draws draws_{1};
  int changes_ = 0, tried_ = 0;
  // The change that is tried: of two groups, a device of one or of both, or a block.
  enum class Kind : std::uint8_t { block, device, swap };
  struct Change {
    Kind kind = Kind::block;
    std::size_t one = 0, other = 0;       // groups
    std::size_t given = 0, taken = 0;     // positions of devices in them
    double lack_one = 0, lack_other = 0;  // before
    double covers_first = 0, covers_second = 0, gain = 0;
  } change_;
  double best_covered_ = 0;
  std::vector<Members> best_groups_;
};

}  // namespace cleave::plan
