// Threshold accepting (Dueck and Scheuer 1990) over areas alone; true cuts come after (group_search.hpp).
//
// A region covers what the least able of its groups can, so groups of a region are to be equally able; a high power of
// areas stands for the least, so that every change of any group counts.
#include "search/group_exchange.hpp"

#include <algorithm>
#include <cmath>

namespace cleave::plan {

namespace {

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
  double best = covered_;
  std::vector<Members> found = groups_;
  for (int i = 0; i < changes; ++i) {
    const double left = 1 - static_cast<double>(i) / (0.9 * changes);
    change(std::max(0.0, kWorseCover * covered_ * left));
    if (covered_ > best) {
      best = covered_;
      found = groups_;
    }
  }
  groups_ = std::move(found);
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

// Two groups exchange devices, or a block; undone where less is covered by more than `worse`.
void GroupExchange::change(double worse) {
  const std::size_t a = draw(groups_.size()), kind = draw(8);
  std::size_t b = draw(groups_.size());
  if (kind == 0) {
    const Part& region = regions_[groups_[a].region];
    b = region.groups[draw(region.groups.size())];
  }
  if (a == b) return;
  Members &one = groups_[a], &other = groups_[b];
  if (kind == 0 ? one.blocks < 2 : kind < 3 && one.devices.size() < 2) return;
  const std::size_t i = draw(one.devices.size()), j = draw(other.devices.size());
  const auto exchange = [&](std::int64_t sign) {
    if (kind == 0) {
      one.blocks -= sign;
      other.blocks += sign;
    } else if (kind > 2) {
      std::swap(one.devices[i], other.devices[j]);
    } else if (sign > 0) {
      std::swap(one.devices[i], one.devices.back());
      other.devices.push_back(one.devices.back());
      one.devices.pop_back();
    } else {
      one.devices.push_back(other.devices.back());
      other.devices.pop_back();
    }
  };
  const double before_one = one.lack, before_other = other.lack;
  Part &first = regions_[one.region], &second = regions_[other.region];
  const bool same = one.region == other.region;
  exchange(1);
  one.lack = lack_of(one);
  other.lack = lack_of(other);
  const double covers_first = covers(first), covers_second = same ? 0 : covers(second);
  const double gain = covers_first + covers_second - first.covers - (same ? 0 : second.covers);
  if (gain >= -worse) {
    covered_ += gain;
    first.covers = covers_first;
    if (!same) second.covers = covers_second;
    return;
  }
  exchange(-1);
  one.lack = before_one;
  other.lack = before_other;
}

}  // namespace cleave::plan
