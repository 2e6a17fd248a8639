// Threshold accepting (Dueck and Scheuer 1990) over who is in which group. How deep a group covers its region follows.
#include "search/group_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "bisect.hpp"

namespace cleave::plan {

namespace {

/// How much earlier the next finish is.
constexpr double kEarlier = 0.998;

/// What a share of one more block is worth of a block, and what a region covers beyond its depth, up to a share of it,
/// of what it lacks.
constexpr double kMore = 0.3, kBeyond = 0.5, kMostBeyond = 0.02;

/// By so much earlier a finish, areas are taken for what they were.
constexpr double kSameAreas = 0.99;

/// Groups cover about this share of the depth that their areas allow.
constexpr double kUsualDepth = 0.96;

/// What bytes beyond those that the server's interface carries cost, as a share of all that is done.
constexpr double kFee = 1;

}  // namespace

GroupSearch::GroupSearch(const SearchedRegions& searched, const PreferredShapes& preferred,
                         std::vector<std::vector<Group>> regions, const std::vector<double>& sizes, double finish)
    : searched_(searched),
      preferred_(preferred),
      blocks_(k_blocks(searched.box.k())),
      missing_(blocks_ * kBlockK - searched.box.k()),
      parts_(regions.size()) {
  std::vector<std::pair<double, std::int32_t>> by_depth;
  const double area = static_cast<double>(searched.box.m()) * static_cast<double>(searched.box.n());
  for (const std::vector<Group>& region : regions) {
    for (const Group& group : region) {
      for (const DeviceRates& device : group.devices) {
        by_depth.emplace_back(preferred.shallow(device, finish, area).depth, device.index);
        devices_.push_back(device);
      }
    }
  }
  std::sort(by_depth.begin(), by_depth.end());
  std::size_t most = 0;
  for (const auto& [depth, device] : by_depth) {
    by_depth_.push_back(device);
    most = std::max(most, static_cast<std::size_t>(device) + 1);
  }
  group_of_.resize(most);
  std::mt19937_64 random;
  for (std::size_t i = 0; i < most; ++i) keys_.push_back(random());
  for (std::size_t r = 0; r < regions.size(); ++r) {
    const std::uint64_t key = random();
    const auto add = [&](std::vector<DeviceRates> devices, bool shorter) {
      Members members{r, shorter, std::move(devices), key ^ (shorter ? 1U : 0U), {}};
      for (const DeviceRates& device : members.devices) {
        members.key ^= keys_[static_cast<std::size_t>(device.index)];
        group_of_[static_cast<std::size_t>(device.index)] = groups_.size();
      }
      groups_.push_back(std::move(members));
    };
    const std::size_t spare = regions[r].size() / 4 + 1;
    for (std::size_t i = 0; i < spare; ++i) add({}, false);
    for (Group& group : regions[r]) add(std::move(group.devices), &group == &regions[r].back());
  }
  lay_out(sizes);
}

void GroupSearch::lay_out(const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const GemmBox& box = searched_.box;
  const auto side = searched_.share * static_cast<double>(searched_.by_rows ? box.m() : box.n());
  for (std::size_t r = 0; r < parts_.size(); ++r) {
    parts_[r].share = shares[r] / sum;
    parts_[r].box = box;
    const auto length = std::max<std::int64_t>(1, std::llround(side * parts_[r].share));
    if (searched_.by_rows) {
      parts_[r].box.m1 = box.m0 + length;
    } else {
      parts_[r].box.n1 = box.n0 + length;
    }
  }
}

void GroupSearch::begin_at(double finish) {
  finish_ = finish;
  if (!areas_ || finish >= areas_at_ || finish <= kSameAreas * areas_at_) {
    areas_.emplace(preferred_, devices_, finish, searched_.box);
    areas_at_ = finish;
  }
  measure_all();
}

void GroupSearch::measure_all() {
  known_.clear();
  for (Part& part : parts_) {
    part.depth = 0;
    part.blocks = 0;
    part.bytes = {};
  }
  for (Members& group : groups_) {
    group.depth = depth_of(group, deepest_by_area(group));
    count(parts_[group.region], group.depth, 1);
  }
  bytes_ = {};
  for (const Part& part : parts_) bytes_.add(needed(part));
}

std::int64_t GroupSearch::deepest_by_area(const Members& group) const {
  const Part& part = parts_[group.region];
  const double size = static_cast<double>(part.box.m()) * static_cast<double>(part.box.n());
  std::int64_t low = 0, high = blocks_;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    double area = 0;
    for (const DeviceRates& device : group.devices) area += areas_->at(device, middle, group.shorter);
    (area >= size ? low : high) = middle;
  }
  return low;
}

GroupSearch::Depth GroupSearch::measure(const Members& group, std::int64_t deepest) {
  if (group.devices.empty()) return {};
  GemmBox slab = parts_[group.region].box;
  std::int64_t low = 0, high = deepest + 1;
  double low_share = 0, high_share = 0;
  Depth depth;
  auto next = std::clamp<std::int64_t>(std::llround(kUsualDepth * static_cast<double>(deepest)), 1,
                                       std::max<std::int64_t>(1, deepest));
  while (high - low > 1 || (low == 0 && high_share == 0)) {
    slab.k1 = slab.k0 + next * kBlockK - (group.shorter ? missing_ : 0);
    const Covering covering = cover_by_columns(tiling_2d_of(searched_.work, slab), group.devices, finish_);
    const auto devices = static_cast<double>(group.devices.size());
    cut_devices_ += devices * (0.7 + devices / 10);
    if (covering.share >= 1) {
      low = next;
      low_share = covering.share;
      depth.strips = covering.strips;
    } else {
      high = next;
      high_share = std::max(covering.share, 1e-6);
    }
    if (high - low <= 1) break;
    const double at = static_cast<double>(covering.share >= 1 ? low : high);
    if (low > 0 && high_share > 0) {
      next = low + std::llround(static_cast<double>(high - low) * (low_share - 1) / (low_share - high_share));
    } else {
      next = std::llround(at * std::pow(std::clamp(covering.share, 0.1, 10.0), 0.7));
    }
    next = std::clamp(next, low + 1, high - 1);
  }
  depth.blocks = low;
  if (low == 0) {
    depth.more = high_share;
  } else if (high_share > 0) {
    depth.more = std::clamp((low_share - 1) / (low_share - high_share), 0.0, 1.0);
  }
  return depth;
}

const GroupSearch::Depth& GroupSearch::depth_of(const Members& group, std::int64_t deepest) {
  const auto [found, is_new] = known_.try_emplace(group.key);
  if (is_new) found->second = measure(group, deepest);
  return found->second;
}

void GroupSearch::count(Part& part, const Depth& depth, double sign) const {
  part.depth += sign * (static_cast<double>(depth.blocks) + kMore * depth.more);
  part.blocks += static_cast<std::int64_t>(sign) * depth.blocks;
  if (!(depth.strips > 0)) return;  // nothing, or not cut yet
  GemmBox slab = part.box;
  slab.k1 = slab.k0 + depth.blocks * kBlockK;
  const Tiling2D plane = tiling_2d_of(searched_.work, slab);
  part.bytes.add({sign * depth.strips * plane.strip_bytes, sign * plane.area() * plane.result_bytes});
}

double GroupSearch::worth(const Part& part) const {
  const double beyond = part.depth / static_cast<double>(blocks_) - 1;
  return part.share * (beyond > 0 ? kBeyond * std::min(beyond, kMostBeyond) : beyond);
}

// What is covered beyond the depth needs no operands.
ServerBytes GroupSearch::needed(const Part& part) const {
  if (part.blocks <= blocks_) return part.bytes;
  return {part.bytes.out * static_cast<double>(blocks_) / static_cast<double>(part.blocks), part.bytes.in};
}

double GroupSearch::fee(const ServerBytes& bytes) const {
  return kFee * std::max(0.0, bytes.time(searched_.server) / std::max(finish_ - searched_.pause, kSoonest) - 1);
}

bool GroupSearch::met() const {
  for (const Part& part : parts_) {
    if (part.blocks < blocks_) return false;
  }
  return fee(bytes_) <= 0;
}

double GroupSearch::improve(const Limits& limits) {
  begin_at(limits.finish);
  cut_devices_ = 0;
  double met_at = kNever, spent = 0;
  int tried = 0;
  while (spent < 1) {
    while (met()) {
      met_at = finish_;
      keep();
      if (finish_ <= limits.wanted) return met_at;
      begin_at(finish_ * kEarlier);
    }
    change(std::max(0.0, limits.worse * (1 - spent / 0.9)));
    if (parts_.size() > 1 && ++tried % 4000 == 0) resize();
    spent = std::max(spent + 0.1 / limits.changes, cut_devices_ / limits.changes);
  }
  return met_at;
}

double GroupSearch::total() const {
  double sum = -fee(bytes_);
  for (const Part& part : parts_) sum += worth(part);
  return sum;
}

// Regions that cover deeper than they need become larger, while that is better for all.
void GroupSearch::resize() {
  const double before = total();
  const std::vector<Part> parts = parts_;
  const std::vector<Members> groups = groups_;
  const ServerBytes bytes = bytes_;
  std::vector<double> shares;
  for (const Part& part : parts_) shares.push_back(part.share * std::sqrt(part.depth / static_cast<double>(blocks_)));
  lay_out(shares);
  measure_all();
  if (total() >= before) return;
  parts_ = parts;
  groups_ = groups;
  bytes_ = bytes;
  known_.clear();
}

void GroupSearch::keep() {
  found_.assign(parts_.size(), {});
  lengths_.clear();
  for (std::size_t r = 0; r < parts_.size(); ++r) {
    const Part& part = parts_[r];
    lengths_.push_back(searched_.by_rows ? part.box.m() : part.box.n());
    // What is covered beyond the depth is taken from those who are sent most for it.
    std::vector<const Members*> members;
    for (const Members& group : groups_) {
      if (group.region == r && group.depth.blocks > 0) members.push_back(&group);
    }
    std::vector<const Members*> by_strips = members;
    std::stable_sort(by_strips.begin(), by_strips.end(),
                     [](const Members* a, const Members* b) { return a->depth.strips > b->depth.strips; });
    std::int64_t beyond = part.blocks - blocks_;
    std::vector<std::int64_t> blocks(groups_.size());
    for (const Members* group : by_strips) {
      const std::int64_t less = std::min(beyond, group->depth.blocks);
      blocks[static_cast<std::size_t>(group - groups_.data())] = group->depth.blocks - less;
      beyond -= less;
    }
    for (const Members* one : members) {
      Group group;
      group.blocks = blocks[static_cast<std::size_t>(one - groups_.data())];
      if (group.blocks == 0) continue;
      group.devices = one->devices;
      group.stale = false;
      GemmBox slab = part.box;
      slab.k1 = slab.k0 + group.blocks * kBlockK - (one->shorter ? missing_ : 0);
      static_cast<void>(cover_by_columns(tiling_2d_of(searched_.work, slab), group.devices, finish_, &group.cut));
      found_[r].push_back(std::move(group));
    }
  }
}

// Two groups exchange devices; undone where that is worse by more than `worse`.
void GroupSearch::change(double worse) {
  const std::size_t at = draw(by_depth_.size()), kind = draw(8);
  const std::size_t window = kind < 6 ? std::max<std::size_t>(4, by_depth_.size() / 8) : by_depth_.size();
  const std::size_t first_device = static_cast<std::size_t>(by_depth_[at]);
  const std::size_t a = group_of_[first_device];
  const bool moves = kind % 3 == 0;
  std::size_t b = 0, second_device = 0;
  if (moves && kind == 0) {
    b = draw(groups_.size());
  } else {
    const std::size_t low = at > window ? at - window : 0, high = std::min(at + window + 1, by_depth_.size());
    second_device = static_cast<std::size_t>(by_depth_[low + draw(high - low)]);
    b = group_of_[second_device];
  }
  if (a == b) return;
  Members &one = groups_[a], &other = groups_[b];
  const auto place_of = [](const Members& group, std::size_t device) {
    std::size_t i = 0;
    while (static_cast<std::size_t>(group.devices[i].index) != device) ++i;
    return i;
  };
  const std::size_t i = place_of(one, first_device), j = moves ? 0 : place_of(other, second_device);
  const auto exchange = [&](bool forth) {
    if (!moves) {
      const std::uint64_t keys = keys_[static_cast<std::size_t>(one.devices[i].index)] ^
                                 keys_[static_cast<std::size_t>(other.devices[j].index)];
      one.key ^= keys;
      other.key ^= keys;
      std::swap(one.devices[i], other.devices[j]);
      return;
    }
    Members &from = forth ? one : other, &to = forth ? other : one;
    const std::size_t which = forth ? i : from.devices.size() - 1;
    const std::uint64_t key = keys_[static_cast<std::size_t>(from.devices[which].index)];
    one.key ^= key;
    other.key ^= key;
    to.devices.push_back(from.devices[which]);
    from.devices.erase(from.devices.begin() + static_cast<std::ptrdiff_t>(which));
  };
  exchange(true);
  const bool same = one.region == other.region;
  const auto add_up = [&](const Part& first, const Part& second) { return worth(first) + (same ? 0 : worth(second)); };
  const Part first_before = parts_[one.region], second_before = parts_[other.region];
  const double before = add_up(first_before, second_before) - fee(bytes_);
  const std::array<const Members*, 2> both{&one, &other};
  const std::array<std::int64_t, 2> deepest{deepest_by_area(one), deepest_by_area(other)};
  std::array<Depth, 2> depths;
  for (std::size_t s = 0; s < 2; ++s) depths[s] = {deepest[s], 1, 0};  // at best
  Part first, second;
  ServerBytes bytes;
  const auto judge = [&] {
    first = first_before;
    second = second_before;
    bytes = bytes_;
    const auto put = [&](const Part& part, double sign) {
      const ServerBytes all = needed(part);
      bytes.add({sign * all.out, sign * all.in});
    };
    put(first, -1);
    if (!same) put(second, -1);
    for (std::size_t s = 0; s < 2; ++s) {
      Part& part = s == 0 || same ? first : second;
      count(part, both[s]->depth, -1);
      count(part, depths[s], 1);
    }
    put(first, 1);
    if (!same) put(second, 1);
    return add_up(first, second) - fee(bytes) - before >= -worse;
  };
  bool good = judge();
  for (std::size_t s = 0; s < 2 && good; ++s) {
    depths[s] = depth_of(*both[s], deepest[s]);
    good = judge();
  }
  if (!good) {
    exchange(false);
    if (moves) {  // back to its place
      std::rotate(one.devices.begin() + static_cast<std::ptrdiff_t>(i), one.devices.end() - 1, one.devices.end());
    }
    return;
  }
  group_of_[first_device] = b;
  if (!moves) group_of_[second_device] = a;
  if (!same) parts_[other.region] = second;
  parts_[one.region] = first;
  one.depth = depths[0];
  other.depth = depths[1];
  bytes_ = bytes;
}

}  // namespace cleave::plan
