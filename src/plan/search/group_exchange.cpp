// Judged by areas alone; true cuts come after (group_search.hpp).
//
// A region covers what the least able of its groups can, so groups of a region are to be equally able; a high power of
// areas stands for the least, so that every change of any group counts.
#include "search/group_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cleave::plan {

namespace {

// Set on 64 devices of bench/plan_table.

/// How much worse a change may be at first, as a share of all that is covered.
constexpr double kWorseCover = 2e-3;

/// Columns and rows of several devices cost about this.
constexpr double kLossOfTiles = 1.03;

/// In place of no area at all.
constexpr double kNoArea = 1e-9;

}  // namespace

GroupExchange::GroupExchange(const Areas& areas, std::vector<std::vector<Group>> regions) : areas_(&areas) {
  for (std::vector<Group>& region : regions) {
    Part part;
    for (Group& group : region) {
      part.groups.push_back(groups_.size());
      groups_.push_back({regions_.size(), group.blocks, false, std::move(group.devices), 0});
    }
    groups_.back().shorter = true;
    for (const std::size_t g : part.groups) groups_[g].lack = lack_of(groups_[g]);
    part.covers = covers(part);
    covered_ += part.covers;
    regions_.push_back(std::move(part));
  }
}

void GroupExchange::improve(int changes) {
  changes_ = changes;
  tried_ = -1;
  best_covered_ = covered_;
  best_groups_ = groups_;
  threshold_accept(*this, draws_, Schedule{kWorseCover});
  groups_ = std::move(best_groups_);
  covered_ = 0;
  for (Part& region : regions_) covered_ += region.covers = covers(region);
}

std::vector<std::vector<Group>> GroupExchange::regions() const {
  std::vector<std::vector<Group>> all;
  for (const Part& region : regions_) {
    all.emplace_back();
    for (const std::size_t g : region.groups) {
      Group group;
      group.blocks = groups_[g].blocks;
      group.devices = groups_[g].devices;
      all.back().push_back(std::move(group));
    }
  }
  return all;
}

double GroupExchange::lack_of(const Members& group) const {
  double area = 0;
  for (const DeviceRates& device : group.devices) area += areas_->at(device, group.blocks, group.shorter);
  if (group.devices.size() > 1) area /= kLossOfTiles;
  const double inverse = 1 / std::max(area, kNoArea), square = inverse * inverse, fourth = square * square;
  return fourth * fourth;
}

double GroupExchange::covers(const Part& region) const {
  double sum = 0;
  for (const std::size_t g : region.groups) sum += groups_[g].lack;
  return 1 / std::sqrt(std::sqrt(std::sqrt(sum / static_cast<double>(region.groups.size()))));
}

double GroupExchange::advance() {
  ++tried_;
  return static_cast<double>(tried_) / static_cast<double>(changes_);
}

// Of eight changes one moves a block within a region, two a device, and five swap two devices.
bool GroupExchange::propose(Draws& draws) {
  const std::size_t a = draws.below(groups_.size()), kind = draws.below(8);
  std::size_t b = draws.below(groups_.size());
  change_.kind = kind == 0 ? Kind::block : kind < 3 ? Kind::device : Kind::swap;
  if (change_.kind == Kind::block) {
    const Part& region = regions_[groups_[a].region];
    b = region.groups[draws.below(region.groups.size())];
  }
  if (a == b) return false;
  const Members &one = groups_[a], &other = groups_[b];
  if (change_.kind == Kind::block && one.blocks < 2) return false;
  if (change_.kind == Kind::device && one.devices.size() < 2) return false;
  change_.one = a;
  change_.other = b;
  change_.given = draws.below(one.devices.size());
  change_.taken = draws.below(other.devices.size());
  return true;
}

void GroupExchange::exchange(bool forth) {
  Members &one = groups_[change_.one], &other = groups_[change_.other];
  switch (change_.kind) {
    case Kind::block:
      one.blocks -= forth ? 1 : -1;
      other.blocks += forth ? 1 : -1;
      break;
    case Kind::device:
      if (forth) {
        std::swap(one.devices[change_.given], one.devices.back());
        other.devices.push_back(one.devices.back());
        one.devices.pop_back();
      } else {
        one.devices.push_back(other.devices.back());
        other.devices.pop_back();
      }
      break;
    case Kind::swap: std::swap(one.devices[change_.given], other.devices[change_.taken]); break;
  }
}

// As a share of all that is covered.
double GroupExchange::loss(double /*worse*/) {
  exchange(true);
  Members &one = groups_[change_.one], &other = groups_[change_.other];
  change_.lack_one = std::exchange(one.lack, lack_of(one));
  change_.lack_other = std::exchange(other.lack, lack_of(other));
  const Part &first = regions_[one.region], &second = regions_[other.region];
  const bool same = one.region == other.region;
  change_.covers_first = covers(first);
  change_.covers_second = same ? 0 : covers(second);
  change_.gain = change_.covers_first + change_.covers_second - first.covers - (same ? 0 : second.covers);
  return -change_.gain / covered_;
}

void GroupExchange::keep() {
  const std::size_t first = groups_[change_.one].region, second = groups_[change_.other].region;
  covered_ += change_.gain;
  regions_[first].covers = change_.covers_first;
  if (second != first) regions_[second].covers = change_.covers_second;
  if (covered_ <= best_covered_) return;
  best_covered_ = covered_;
  best_groups_ = groups_;
}

void GroupExchange::undo() {
  exchange(false);
  groups_[change_.one].lack = change_.lack_one;
  groups_[change_.other].lack = change_.lack_other;
}

}  // namespace cleave::plan
