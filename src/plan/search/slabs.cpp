// Moves of blocks, devices and pairs of devices between the groups of a region.
#include "search/slabs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "bisect.hpp"
#include "gemm_costs.hpp"

namespace cleave::plan {

namespace {

// Set on the fleets of bench/plan_table.

/// A move must help by this share of a group's work; groups this close to each other are left alone.
constexpr double kLeastGainOfMove = 1e-4, kBalanced = 2e-3;

/// What columns and rows usually cost, until a cut tells.
constexpr double kUsualLoss = 1.02;

/// So many of the groups that are furthest ahead are asked for a device.
constexpr std::size_t kGivers = 3;

}  // namespace

Region::Region(const Work& work, const GemmBox& box, std::vector<Group> groups)
    : work_(work), box_(box), groups_(std::move(groups)) {
  for (Group& group : groups_) group.missing = 0;
  groups_.back().missing = k_blocks(box.k()) * kBlockK - box.k();
  for (Group& group : groups_) group.loss = group.devices.size() > 1 ? kUsualLoss : 1.0;
}

Tiling2D Region::plane_at(const Group& group, std::int64_t blocks) const {
  GemmBox slab = box_;
  slab.k1 = slab.k0 + blocks * kBlockK - group.missing;
  return tiling_2d_of(work_, slab);
}

Tiling2D tiling_2d_of(const Work& work, const GemmBox& slab) {
  const GemmCosts costs = gemm_costs(work, slab);
  return {slab.m(),
          slab.n(),
          static_cast<double>(costs.strip_bytes),
          static_cast<double>(costs.result_bytes),
          2.0 * static_cast<double>(slab.k()),
          static_cast<double>(costs.cell_bytes)};
}

double Region::area_by(const Group& group, std::int64_t blocks, double finish) const {
  const Tiling2D plane = plane_at(group, blocks);
  double area = 0;
  for (const DeviceRates& device : group.devices) area += largest_area(plane, reach_of(plane, device.by(finish)));
  return area / group.loss;
}

double Region::capacity(double finish) const {
  double least = kNever;
  for (const Group& group : groups_) least = std::min(least, area_by(group, group.blocks, finish));
  return least;
}

void Region::balance(double finish) {
  if (groups_.size() < 2) return;
  // How far each group is ahead of the region's area, as a share of it.
  const double needed = static_cast<double>(box_.m()) * static_cast<double>(box_.n());
  std::vector<double> slack;
  for (const Group& group : groups_) slack.push_back(area_by(group, group.blocks, finish) / needed - 1);
  const std::size_t most_moves = 4 * groups_.size() + 16;
  for (std::size_t move = 0; move < most_moves; ++move) {
    const auto [low, high] = std::minmax_element(slack.begin(), slack.end());
    if (*high - *low < kBalanced || !improve(slack, finish)) return;
  }
}

// The move that helps the group that is furthest behind most; false when none does.
bool Region::improve(std::vector<double>& slack, double finish) {
  const double needed = static_cast<double>(box_.m()) * static_cast<double>(box_.n());
  const auto last = static_cast<std::size_t>(std::min_element(slack.begin(), slack.end()) - slack.begin());
  Group& behind = groups_[last];
  double best = slack[last] + kLeastGainOfMove;
  enum class Move : std::uint8_t { none, block, device, swap } kind = Move::none;
  std::size_t with = 0, given = 0, taken = 0;

  if (behind.blocks > 1) {
    const double lighter = area_by(behind, behind.blocks - 1, finish) / needed - 1;
    for (std::size_t j = 0; j < groups_.size() && lighter > best; ++j) {
      if (j == last || slack[j] <= best) continue;
      const double heavier = area_by(groups_[j], groups_[j].blocks + 1, finish) / needed - 1;
      if (std::min(lighter, heavier) > best) {
        best = std::min(lighter, heavier);
        kind = Move::block;
        with = j;
      }
    }
  }

  std::vector<std::size_t> givers(groups_.size());
  std::iota(givers.begin(), givers.end(), std::size_t{0});
  std::erase(givers, last);
  const auto end = givers.begin() + static_cast<std::ptrdiff_t>(std::min(kGivers, givers.size()));
  std::partial_sort(givers.begin(), end, givers.end(),
                    [&](std::size_t a, std::size_t b) { return slack[a] != slack[b] ? slack[a] > slack[b] : a < b; });
  givers.erase(end, givers.end());

  const Tiling2D mine = plane_at(behind, behind.blocks);
  const auto share = [&](const Tiling2D& plane, const Group& group, const DeviceRates& device) {
    return largest_area(plane, reach_of(plane, device.by(finish))) / group.loss / needed;
  };
  std::vector<double> own, own_there, theirs, theirs_here;
  for (const DeviceRates& device : behind.devices) own.push_back(share(mine, behind, device));
  for (const std::size_t j : givers) {
    const Group& giver = groups_[j];
    const Tiling2D other = plane_at(giver, giver.blocks);
    theirs.clear();
    theirs_here.clear();
    own_there.clear();
    for (const DeviceRates& device : giver.devices) {
      theirs.push_back(share(other, giver, device));
      theirs_here.push_back(share(mine, behind, device));
    }
    for (const DeviceRates& device : behind.devices) own_there.push_back(share(other, giver, device));
    for (std::size_t b = 0; b < theirs.size(); ++b) {
      const auto offer = [&](double here, double there, Move how, std::size_t a) {
        const double least = std::min(here, there);
        if (least <= best) return;
        best = least;
        kind = how;
        with = j;
        taken = b;
        given = a;
      };
      const double here = slack[last] + theirs_here[b], there = slack[j] - theirs[b];
      if (theirs.size() > 1) offer(here, there, Move::device, 0);
      for (std::size_t a = 0; a < own.size(); ++a) offer(here - own[a], there + own_there[a], Move::swap, a);
    }
  }

  if (kind == Move::none) return false;
  Group& other = groups_[with];
  switch (kind) {
    case Move::none: break;
    case Move::block:
      --behind.blocks;
      ++other.blocks;
      break;
    case Move::device:
      behind.devices.push_back(other.devices[taken]);
      other.devices.erase(other.devices.begin() + static_cast<std::ptrdiff_t>(taken));
      break;
    case Move::swap: std::swap(behind.devices[given], other.devices[taken]); break;
  }
  for (const std::size_t j : {last, with}) {
    groups_[j].stale = true;
    slack[j] = area_by(groups_[j], groups_[j].blocks, finish) / needed - 1;
  }
  return true;
}

void Region::cut_group(Group& group, double guess) const {
  const Tiling2D plane = plane_at(group, group.blocks);
  if (group.stale) {
    group.cut = cut_columns(plane, group.devices, guess);
    group.stale = false;
  } else {
    finish_cut(plane, group.devices, group.cut);
  }
  if (group.cut.finish == kNever) return;
  group.loss = 1;
  // Never more than what the devices can make up for: the area of each ends at the plane's.
  const double most = 1 + 0.5 * static_cast<double>(group.devices.size() - 1);
  group.loss = std::clamp(area_by(group, group.blocks, group.cut.finish) / plane.area(), 1.0, std::min(2.0, most));
}

double Region::cut(double guess) {
  double finish = 0;
  for (Group& group : groups_) {
    cut_group(group, guess);
    finish = std::max(finish, group.cut.finish);
  }
  return finish;
}

ServerBytes Region::server_bytes() const {
  ServerBytes bytes;
  for (const Group& group : groups_) {
    const Tiling2D plane = plane_at(group, group.blocks);
    const auto side = static_cast<double>(group.cut.transposed ? plane.columns : plane.rows);
    for (const ColumnCut::Column& column : group.cut.columns) {
      bytes.out += (side + static_cast<double>(column.last - column.first) * column.width) * plane.strip_bytes;
    }
    bytes.in += plane.area() * plane.result_bytes;
  }
  return bytes;
}

double Region::tile(std::vector<BoxTile>& tiles) const {
  double finish = 0;
  GemmBox slab = box_;
  for (const Group& group : groups_) {
    slab.k1 = std::min(box_.k1, slab.k0 + group.blocks * kBlockK);
    const Tiles2D plane = tile_columns(plane_at(group, group.blocks), group.devices, group.cut);
    for (const Tile2D& tile : plane.tiles) {
      tiles.push_back({group.devices[static_cast<std::size_t>(tile.device)].index,
                       {slab.m0 + tile.row0, slab.m0 + tile.row1, slab.n0 + tile.column0, slab.n0 + tile.column1,
                        slab.k0, slab.k1}});
    }
    finish = std::max(finish, plane.finish);
    slab.k0 = slab.k1;
  }
  return finish;
}

BoxTiling tile_flat(const Work& work, const GemmBox& box, std::span<const DeviceRates> devices) {
  Group all;
  all.devices.assign(devices.begin(), devices.end());
  all.blocks = k_blocks(box.k());
  Region region(work, box, {all});
  double soonest = 1;
  for (const DeviceRates& device : devices) soonest = std::min(soonest, device.earliest());
  BoxTiling tiling;
  if (region.cut(soonest) != kNever) {
    tiling.finish = region.tile(tiling.tiles);
    if (tiling.finish != kNever) return tiling;  // not where no whole rows and columns fit
  }
  // Too much for all memories at once: tiles are then cut into several tasklets.
  std::vector<DeviceRates> roomy(devices.begin(), devices.end());
  bool limited = false;
  for (DeviceRates& device : roomy) limited = std::exchange(device.memory, kNever) < kNever || limited;
  if (!limited) return {kNever, {}};
  tiling = tile_flat(work, box, roomy);
  tiling.in_memory = false;
  return tiling;
}

}  // namespace cleave::plan
