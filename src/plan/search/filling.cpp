// Groups take devices of like depth, deepest first; regions take groups so that depths add up.
#include "search/filling.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cleave::plan {

namespace {

/// Set on the fleets of bench/plan_table: how far ahead of its turn a device may be taken because its area fits.
constexpr std::size_t kWindow = 6;

}  // namespace

std::int64_t Filling::fill(double finish, std::int64_t blocks) {
  finish_ = finish;
  tails_left_ = tails_;
  groups_.clear();
  pool_.clear();
  first_ = 0;
  for (const DeviceRates& device : devices_) {
    const PreferredShape shape = preferred_.shallow(device, finish, area_);
    if (shape.area > 0) pool_.push_back(shape);
  }
  std::sort(pool_.begin(), pool_.end(), [](const PreferredShape& a, const PreferredShape& b) {
    return a.depth != b.depth ? a.depth > b.depth : a.device.index < b.device.index;
  });
  std::int64_t covered = 0;
  while (covered < blocks && take_group(blocks - covered)) covered += groups_.back().blocks;
  return covered;
}

std::vector<DeviceRates> Filling::left() const {
  std::vector<DeviceRates> devices;
  for (std::size_t i = first_; i < pool_.size(); ++i) devices.push_back(pool_[i].device);
  return devices;
}

bool Filling::take_group(std::int64_t most_blocks) {
  if (first_ == pool_.size()) return false;
  // The depth that suits the next devices together.
  double areas = 0, depths = 0;
  for (std::size_t i = first_; i < pool_.size() && areas < area_; ++i) {
    areas += pool_[i].area;
    depths += pool_[i].area * pool_[i].depth;
  }
  const auto low = std::clamp<std::int64_t>(static_cast<std::int64_t>(depths / areas), 1, most_blocks);
  Choice best;
  double best_worth = 0;
  const auto consider = [&](std::int64_t blocks, std::int64_t missing) {
    Choice choice = choose(blocks, missing);
    if (choice.members.empty()) return;
    const double worth = static_cast<double>(blocks * kBlockK - missing) / choice.lines;
    if (worth <= best_worth) return;
    best_worth = worth;
    best = std::move(choice);
  };
  for (std::int64_t blocks = low; blocks <= std::min(low + 1, most_blocks); ++blocks) {
    consider(blocks, 0);
    if (tails_left_ > 0) consider(blocks, missing_);
  }
  if (best.members.empty()) return false;
  Group group;
  group.blocks = best.blocks;
  group.missing = best.missing;
  if (best.missing > 0) --tails_left_;
  std::sort(best.members.begin(), best.members.end());
  for (const std::size_t i : best.members) group.devices.push_back(pool_[i].device);
  remove(best.members);
  groups_.push_back(std::move(group));
  return true;
}

// Those before the last member that stay move up to it: few, because none is taken far ahead of its turn.
void Filling::remove(const std::vector<std::size_t>& members) {
  std::size_t to = members.back() + 1, next = members.size();
  for (std::size_t i = to; i-- > first_;) {
    if (next > 0 && members[next - 1] == i) {
      --next;
    } else {
      pool_[--to] = pool_[i];
    }
  }
  first_ = to;
}

// Devices that cover the plane at a depth; no members when all together do not.
Filling::Choice Filling::choose(std::int64_t blocks, std::int64_t missing) const {
  Choice choice;
  choice.blocks = blocks;
  choice.missing = missing;
  std::vector<std::size_t> open;  // the next devices in turn
  std::vector<double> areas;
  std::size_t next = first_;
  double need = area_;
  while (true) {
    while (open.size() < kWindow && next < pool_.size()) {
      open.push_back(next);
      areas.push_back(preferred_.area_at(pool_[next].device, finish_, blocks * kBlockK - missing));
      ++next;
    }
    if (open.empty()) return {};
    // The smallest that completes the plane, or else whose turn it is.
    std::size_t taken = 0;
    bool completes = false;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (areas[i] >= need && (!completes || areas[i] < areas[taken])) {
        completes = true;
        taken = i;
      }
    }
    choice.members.push_back(open[taken]);
    choice.lines += pool_[open[taken]].lines;
    need -= areas[taken];
    if (completes) return choice;
    // Tiles of several devices lose a little against free shapes.
    if (choice.members.size() == 1) need += 0.02 * area_;
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(taken));
    areas.erase(areas.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

std::vector<Group> deal_groups(const PreferredShapes& preferred, std::span<const DeviceRates> devices, double finish,
                               std::int64_t count, std::int64_t blocks, double area) {
  std::vector<PreferredShape> able;
  for (const DeviceRates& device : devices) able.push_back(preferred.shallow(device, finish, area));
  std::stable_sort(able.begin(), able.end(),
                   [](const PreferredShape& a, const PreferredShape& b) { return a.lines > b.lines; });
  std::vector<Group> groups(static_cast<std::size_t>(count));
  // Lines and devices of each group: those that can do nothing by then, for their latency, add no lines.
  std::vector<std::pair<double, std::size_t>> given(groups.size());
  for (const PreferredShape& shape : able) {
    const auto next = static_cast<std::size_t>(std::min_element(given.begin(), given.end()) - given.begin());
    groups[next].devices.push_back(shape.device);
    given[next].first += shape.lines;
    ++given[next].second;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    groups[static_cast<std::size_t>(i)].blocks = blocks * (i + 1) / count - blocks * i / count;
  }
  return groups;
}

std::vector<Group> row_groups(const PreferredShapes& preferred, std::span<const DeviceRates> devices, double finish,
                              std::int64_t count, std::int64_t blocks, double area) {
  std::vector<PreferredShape> able;
  double areas = 0;
  for (const DeviceRates& device : devices) {
    able.push_back(preferred.shallow(device, finish, area));
    areas += able.back().area;
  }
  std::stable_sort(able.begin(), able.end(),
                   [](const PreferredShape& a, const PreferredShape& b) { return a.depth > b.depth; });
  std::vector<Group> groups(static_cast<std::size_t>(count));
  std::vector<double> depths(groups.size(), 0);
  double reached = 0, depth_sum = 0;
  for (std::size_t i = 0; i < able.size(); ++i) {
    // Groups that are still empty must get one of the devices that are left.
    const auto by_area = static_cast<std::int64_t>((reached + able[i].area / 2) / areas * static_cast<double>(count));
    const auto at_least = count - std::ssize(able) + static_cast<std::int64_t>(i);
    const auto group = static_cast<std::size_t>(std::clamp<std::int64_t>(
        std::max(by_area, at_least), 0, std::min<std::int64_t>(count - 1, static_cast<std::int64_t>(i))));
    groups[group].devices.push_back(able[i].device);
    depths[group] += able[i].area * able[i].depth;
    depth_sum += able[i].area * able[i].depth;
    reached += able[i].area;
  }
  for (std::size_t g = groups.size(); g-- > 0;) {
    if (!groups[g].devices.empty()) continue;  // whose depth is 0 where its devices can do nothing by then
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(g));
    depths.erase(depths.begin() + static_cast<std::ptrdiff_t>(g));
  }
  double seen = 0;
  std::int64_t given = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    seen += depths[g];
    const std::int64_t after = std::ssize(groups) - 1 - static_cast<std::int64_t>(g);
    const std::int64_t end = std::clamp<std::int64_t>(std::llround(static_cast<double>(blocks) * seen / depth_sum),
                                                      given + 1, blocks - after);
    groups[g].blocks = end - given;
    given = end;
  }
  return groups;
}

std::vector<std::vector<Group>> share_groups(std::vector<Group> groups, std::int64_t regions, std::int64_t blocks) {
  std::vector<std::vector<Group>> shared(static_cast<std::size_t>(regions));
  std::vector<std::int64_t> sums(shared.size(), 0);
  // Short slabs first, one to each region; then the deepest that is left to the region with the least depth so far.
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.missing != b.missing ? a.missing > b.missing : a.blocks > b.blocks;
  });
  for (Group& group : groups) {
    const auto r = static_cast<std::size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
    sums[r] += group.blocks;
    shared[r].push_back(std::move(group));
  }
  for (std::size_t r = 0; r < shared.size(); ++r) {
    if (std::ssize(shared[r]) > blocks || shared[r].empty()) return {};
    // The deepest group takes the surplus or the deficit: relative to its depth the change is smallest.
    for (; sums[r] != blocks; sums[r] += sums[r] < blocks ? 1 : -1) {
      const auto deepest = std::max_element(shared[r].begin(), shared[r].end(),
                                            [](const Group& a, const Group& b) { return a.blocks < b.blocks; });
      deepest->blocks += sums[r] < blocks ? 1 : -1;
    }
    std::reverse(shared[r].begin(), shared[r].end());  // the short slab is a region's last
  }
  return shared;
}

}  // namespace cleave::plan
