// Region::refine(): local search over which devices and how many blocks the groups of a region have, by true cuts.
//
// Moves of the slowest group with another are first ranked by capacity: what a device can do by the wanted time at the
// depth of a group, over what the group then has to do. The best of them are cut, and the first that ends before the
// slowest group does is taken.
#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

namespace {

// Set on the fleets of bench/plan_table.

/// A move must end the slower of its two groups earlier by this share of its time.
constexpr double kLeastGain = 1e-3;

/// Moves that are ranked for one slowest group.
constexpr std::size_t kMostRanked = 4000;

constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

}  // namespace

struct Region::GroupMove {
  double slack = 0;  // of the slower of both groups, as a share of its work
  std::size_t with = 0;
  std::size_t given = kNobody, taken = kNobody;  // positions in the slowest group and in the other
  std::int64_t blocks = 0;                       // of the slowest group, afterwards
};

std::vector<Region::GroupMove> Region::rank_moves(std::size_t slowest, double finish, std::size_t most) const {
  const double area = static_cast<double>(box_.m()) * static_cast<double>(box_.n());
  const auto capacity = [&](const Group& group, const DeviceRates& device) {
    const Tiling2D plane = plane_at(group, group.blocks);
    return largest_area(plane, reach_of(plane, device.by(finish))) / area / group.loss * depth_of(group, group.blocks);
  };
  const Group& mine = groups_[slowest];
  double here = 0;
  std::vector<double> own, own_there, theirs, theirs_here;
  for (const DeviceRates& device : mine.devices) {
    own.push_back(capacity(mine, device));
    here += own.back();
  }
  std::vector<GroupMove> moves;
  for (std::size_t step = 1; step < groups_.size(); ++step) {
    const std::size_t with = (slowest + step) % groups_.size();
    const Group& other = groups_[with];
    if (moves.size() > kMostRanked) break;
    own_there.clear();
    theirs.clear();
    theirs_here.clear();
    double there = 0;
    for (const DeviceRates& device : mine.devices) own_there.push_back(capacity(other, device));
    for (const DeviceRates& device : other.devices) {
      theirs.push_back(capacity(other, device));
      theirs_here.push_back(capacity(mine, device));
      there += theirs.back();
    }
    const std::int64_t together = mine.blocks + other.blocks;
    const auto offer = [&](std::size_t given, std::size_t taken) {
      double left = here, right = there;
      if (given != kNobody) {
        left -= own[given];
        right += own_there[given];
      }
      if (taken != kNobody) {
        left += theirs_here[taken];
        right -= theirs[taken];
      }
      if (!(left > 0) || !(right > 0)) return;
      const auto even = static_cast<std::int64_t>(static_cast<double>(together) * left / (left + right));
      for (std::int64_t blocks = std::max<std::int64_t>(even, 1); blocks <= std::min(even + 1, together - 1);
           ++blocks) {
        if (given == kNobody && taken == kNobody && blocks == mine.blocks) continue;
        const double slack = std::min(left / depth_of(mine, blocks), right / depth_of(other, together - blocks)) - 1;
        if (slack > -0.05) moves.push_back({slack, with, given, taken, blocks});
      }
    };
    offer(kNobody, kNobody);
    for (std::size_t b = 0; b < theirs.size() && theirs.size() > 1; ++b) offer(kNobody, b);
    for (std::size_t a = 0; a < own.size() && own.size() > 1; ++a) offer(a, kNobody);
    for (std::size_t a = 0; a < own.size(); ++a) {
      for (std::size_t b = 0; b < theirs.size(); ++b) offer(a, b);
    }
  }
  const auto end = moves.begin() + static_cast<std::ptrdiff_t>(std::min(most, moves.size()));
  std::partial_sort(moves.begin(), end, moves.end(),
                    [](const GroupMove& a, const GroupMove& b) { return a.slack > b.slack; });
  moves.erase(end, moves.end());
  return moves;
}

void Region::refine(std::int64_t effort, std::size_t tries) {
  if (groups_.size() < 2) return;
  while (effort > 0) {
    std::size_t slowest = 0;
    for (std::size_t i = 1; i < groups_.size(); ++i) {
      if (groups_[i].cut.finish > groups_[slowest].cut.finish) slowest = i;
    }
    const double finish = groups_[slowest].cut.finish * (1 - kLeastGain);
    bool better = false;
    for (const GroupMove& move : rank_moves(slowest, finish, tries)) {
      Group mine = groups_[slowest], other = groups_[move.with];
      other.blocks += mine.blocks - move.blocks;
      mine.blocks = move.blocks;
      const auto end = [](std::size_t at) { return static_cast<std::ptrdiff_t>(at); };
      if (move.given != kNobody && move.taken != kNobody) {
        std::swap(mine.devices[move.given], other.devices[move.taken]);
      } else if (move.given != kNobody) {
        other.devices.push_back(mine.devices[move.given]);
        mine.devices.erase(mine.devices.begin() + end(move.given));
      } else if (move.taken != kNobody) {
        mine.devices.push_back(other.devices[move.taken]);
        other.devices.erase(other.devices.begin() + end(move.taken));
      }
      effort -= std::ssize(mine.devices) + std::ssize(other.devices);
      mine.stale = other.stale = true;
      cut_group(mine, finish);
      if (mine.cut.finish >= finish) continue;
      cut_group(other, finish);
      if (other.cut.finish >= finish) continue;
      groups_[slowest] = std::move(mine);
      groups_[move.with] = std::move(other);
      better = true;
      break;
    }
    if (!better) return;
  }
}

}  // namespace cleave::plan
