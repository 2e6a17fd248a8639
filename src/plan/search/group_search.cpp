// What is searched for is who is in which group; how deep a group covers its region follows from that.
#include "search/group_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "bisect.hpp"

namespace cleave::plan {

namespace {

// Set on 64 and 256 devices of bench/plan_table, `moderate` and `symmetric` (docs/measurements/planner.md).

/// How much earlier the next finish is.
constexpr double kEarlier = 0.998;

/// What a share of one more block is worth of a block, and what a region covers beyond its depth, up to a share of it,
/// of what it lacks.
constexpr double kMore = 0.3, kBeyond = 0.5, kMostBeyond = 0.02;

/// By so much earlier a finish, areas are taken for what they were.
constexpr double kSameAreas = 0.99;

/// Groups cover about this share of the depth that their areas allow.
constexpr double kUsualDepth = 0.96;

/// A change counts as this many devices cut at least, so that a search whose cuts are all known ends too.
constexpr double kLeastEffort = 0.1;

}  // namespace

GroupSearch::GroupSearch(const SearchedRegions& searched, const PreferredShapes& preferred,
                         std::vector<std::vector<Group>> regions, const std::vector<double>& sizes, double finish,
                         Draws draws)
    : searched_(searched),
      preferred_(preferred),
      blocks_(k_blocks(searched.box.k())),
      missing_(blocks_ * kBlockK - searched.box.k()),
      parts_(regions.size()),
      draws_(draws) {
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
  const auto draw_key = [this] {
    const std::uint64_t high = draws_.bits();
    return (high << 32U) | draws_.bits();
  };
  for (std::size_t i = 0; i < most; ++i) keys_.push_back(draw_key());
  for (std::size_t r = 0; r < regions.size(); ++r) {
    const std::uint64_t key = draw_key();
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

// What bytes beyond those that the interface carries cost, as a share of all that is done: as much as they are more.
double GroupSearch::fee(double interface_s) const {
  return std::max(0.0, interface_s / std::max(finish_ - searched_.pause, kSoonest) - 1);
}

bool GroupSearch::met() const {
  for (const Part& part : parts_) {
    if (part.blocks < blocks_) return false;
  }
  return fee_of(bytes_) <= 0;
}

double GroupSearch::improve(const Limits& limits) {
  limits_ = limits;
  underestimate_ = 1;
  met_at_ = kNever;
  cut_devices_ = 0;
  tried_ = 0;
  begin_at(limits.finish);
  threshold_accept(*this, draws_, Schedule{limits.worse});
  return met_at_;
}

// The next finish is looked for as soon as one is met. Bytes are known to the last only of what is recorded; where
// these are more than the interface carries, estimates were too low, and the search goes on with higher ones.
double GroupSearch::advance() {
  while (met()) {
    Found found = record();
    const double interface_s = found.bytes.time(searched_.server);
    if (fee(interface_s) > 0) {
      underestimate_ = interface_s / bytes_.time(searched_.server);
      continue;
    }
    found_ = std::move(found);
    met_at_ = finish_;
    if (finish_ <= limits_.wanted) return 1;
    begin_at(finish_ * kEarlier);
  }
  return std::max(kLeastEffort * static_cast<double>(tried_++), cut_devices_) / limits_.changes;
}

double GroupSearch::total() const {
  double sum = -fee_of(bytes_);
  for (const Part& part : parts_) sum += worth(part);
  return sum;
}

GroupSearch::Found GroupSearch::record() const {
  Found found;
  for (std::size_t r = 0; r < parts_.size(); ++r) {
    const Part& part = parts_[r];
    found.lengths.push_back(searched_.by_rows ? part.box.m() : part.box.n());
    std::vector<Group> groups = groups_of(r);
    if (bytes_.time(searched_.server) > 0) {
      Region region(searched_.work, part.box, groups);
      static_cast<void>(region.cut(finish_));
      found.bytes.add(region.server_bytes());
    }
    found.regions.push_back(std::move(groups));
  }
  return found;
}

// What is covered beyond the depth is taken from those who are sent most for it.
std::vector<Group> GroupSearch::groups_of(std::size_t region) const {
  const Part& part = parts_[region];
  std::vector<const Members*> members;
  for (const Members& group : groups_) {
    if (group.region == region && group.depth.blocks > 0) members.push_back(&group);
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
  std::vector<Group> groups;
  for (const Members* one : members) {
    Group group;
    group.blocks = blocks[static_cast<std::size_t>(one - groups_.data())];
    if (group.blocks == 0) continue;
    group.devices = one->devices;
    group.stale = false;
    GemmBox slab = part.box;
    slab.k1 = slab.k0 + group.blocks * kBlockK - (one->shorter ? missing_ : 0);
    static_cast<void>(cover_by_columns(tiling_2d_of(searched_.work, slab), group.devices, finish_, &group.cut));
    groups.push_back(std::move(group));
  }
  return groups;
}

// A device and one that prefers a like depth, mostly: they change places, or the first joins the other's group. Of
// eight changes three are moves, one of them to any group; one in four knows no likeness.
bool GroupSearch::propose(Draws& draws) {
  const std::size_t at = draws.below(by_depth_.size()), kind = draws.below(8);
  const std::size_t window = kind < 6 ? std::max<std::size_t>(4, by_depth_.size() / 8) : by_depth_.size();
  change_.moves = kind % 3 == 0;
  change_.first_device = static_cast<std::size_t>(by_depth_[at]);
  change_.one = group_of_[change_.first_device];
  if (kind == 0) {
    change_.other = draws.below(groups_.size());
  } else {
    const std::size_t low = at > window ? at - window : 0, high = std::min(at + window + 1, by_depth_.size());
    change_.second_device = static_cast<std::size_t>(by_depth_[low + draws.below(high - low)]);
    change_.other = group_of_[change_.second_device];
  }
  if (change_.one == change_.other) return false;
  const auto place_of = [](const Members& group, std::size_t device) {
    std::size_t i = 0;
    while (static_cast<std::size_t>(group.devices[i].index) != device) ++i;
    return i;
  };
  change_.given = place_of(groups_[change_.one], change_.first_device);
  change_.taken = change_.moves ? 0 : place_of(groups_[change_.other], change_.second_device);
  return true;
}

void GroupSearch::exchange(bool forth) {
  Members &one = groups_[change_.one], &other = groups_[change_.other];
  std::uint64_t key = keys_[change_.first_device];
  if (!change_.moves) {
    key ^= keys_[change_.second_device];
    std::swap(one.devices[change_.given], other.devices[change_.taken]);
  } else if (forth) {
    other.devices.push_back(one.devices[change_.given]);
    one.devices.erase(one.devices.begin() + static_cast<std::ptrdiff_t>(change_.given));
  } else {
    one.devices.insert(one.devices.begin() + static_cast<std::ptrdiff_t>(change_.given), other.devices.back());
    other.devices.pop_back();
  }
  one.key ^= key;
  other.key ^= key;
}

// How much better all is with these depths of the two groups.
double GroupSearch::gain_at(const std::array<Depth, 2>& depths) {
  const std::array<const Members*, 2> both{&groups_[change_.one], &groups_[change_.other]};
  const Part &first = parts_[both[0]->region], &second = parts_[both[1]->region];
  const bool same = both[0]->region == both[1]->region;
  const auto add_up = [&](const Part& a, const Part& b) { return worth(a) + (same ? 0 : worth(b)); };
  const double before = add_up(first, second) - fee_of(bytes_);
  change_.first = first;
  change_.second = second;
  change_.bytes = bytes_;
  const auto put = [&](const Part& part, double sign) {
    const ServerBytes all = needed(part);
    change_.bytes.add({sign * all.out, sign * all.in});
  };
  put(change_.first, -1);
  if (!same) put(change_.second, -1);
  for (std::size_t s = 0; s < 2; ++s) {
    Part& part = s == 0 || same ? change_.first : change_.second;
    count(part, both[s]->depth, -1);
    count(part, depths[s], 1);
  }
  put(change_.first, 1);
  if (!same) put(change_.second, 1);
  return add_up(change_.first, change_.second) - fee_of(change_.bytes) - before;
}

// Both groups as deep as their areas allow first; true cuts, one after the other, only while that may do.
double GroupSearch::loss(double worse) {
  exchange(true);
  const std::array<const Members*, 2> both{&groups_[change_.one], &groups_[change_.other]};
  const std::array<std::int64_t, 2> deepest{deepest_by_area(*both[0]), deepest_by_area(*both[1])};
  for (std::size_t s = 0; s < 2; ++s) change_.depths[s] = {deepest[s], 1, 0};
  double lost = -gain_at(change_.depths);
  for (std::size_t s = 0; s < 2 && lost <= worse; ++s) {
    change_.depths[s] = depth_of(*both[s], deepest[s]);
    lost = -gain_at(change_.depths);
  }
  return lost;
}

void GroupSearch::undo() { exchange(false); }

void GroupSearch::keep() {
  Members &one = groups_[change_.one], &other = groups_[change_.other];
  group_of_[change_.first_device] = change_.other;
  if (!change_.moves) group_of_[change_.second_device] = change_.one;
  parts_[other.region] = change_.second;
  parts_[one.region] = change_.first;
  one.depth = change_.depths[0];
  other.depth = change_.depths[1];
  bytes_ = change_.bytes;
}

}  // namespace cleave::plan
