// `automatic`: a box of a GEMM in three dimensions, as early as the devices can be done with it.
//
// Some devices do best at the whole depth (finished results go up, half as large as partial sums), others on runs of K
// blocks, each at a depth of its own. So the box is cut, along its longer side, into regions: one at the whole depth,
// and as many of slabs as keep groups small enough to hold devices of like depth. Groups of deep and of shallow slabs
// share a region so that depths add up; regions are as large as what their devices can do.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "bisect.hpp"
#include "slabs.hpp"

namespace cleave::plan {

namespace {

/// Devices in a group, where there are enough: fewer make worse tiles, more make depths less alike.
constexpr double kGroupSize = 24;

/// A kind of region that would do less than this share of the work is not worth having.
constexpr double kLeastShare = 0.03;

struct Wish {
  Power device;
  double lines = 0;  // elements of the result, over the whole depth, that it could do in its best shape
  double depth = 0;  // of that shape, in blocks
  double area = 0;
  bool whole = false;  // at the whole depth
};

// What devices wish for, by a finish time.
class Wishes {
 public:
  Wishes(const Work& work, const GemmBox& box, const Terms& terms)
      : shapes_(work, box),
        terms_(terms),
        box_(box),
        element_(static_cast<double>(size_of(work.wire))),
        partial_(static_cast<double>(size_of(partial_sum_type(work.wire)))),
        k_(static_cast<double>(box.k())),
        least_depth_(std::max(kBlock, 2 * terms.in_price * partial_ * k_)) {}

  // The best shape of all. Without prices where they leave it nothing worth doing.
  [[nodiscard]] Wish of(const Power& device, double finish) const {
    const Budget budget = device.by(finish);
    if (!budget.any()) return {device};
    Piece piece = shapes_.best_piece(budget, terms_);
    if (piece.value <= 0) piece = shapes_.best_piece(budget, {});
    return {device, piece.lines, piece.depth / kBlock, piece.area, piece.depth == k_};
  }

  // In partial sums, on planes of an area of their own. The depth at which downlink and uplink are done together; a
  // price on bytes up makes it deeper.
  [[nodiscard]] Wish shallow(const Power& device, double finish, double plane_area) const {
    const Budget budget = device.by(finish);
    if (!budget.any()) return {device};
    const double area = std::min(budget.up / partial_, plane_area);
    const auto shorter = static_cast<double>(std::min(box_.m(), box_.n()));
    const double side = std::sqrt(area), strips = side <= shorter ? 2 * side : shorter + area / shorter;
    const double kink = std::min(budget.down / element_ / strips, budget.flops / (2 * area));
    const double depth = std::min(std::max(kink, least_depth_), k_ - kBlock / 2);
    const double most = std::min(plane_area, area_by(budget, depth));
    return {device, most * depth / k_, depth / kBlock, most, false};
  }
  // What a device can cover at a depth in elements, in partial sums.
  [[nodiscard]] double area_at(const Power& device, double finish, std::int64_t depth) const {
    return area_by(device.by(finish), static_cast<double>(depth));
  }

 private:
  static constexpr double kBlock = static_cast<double>(kBlockK);
  [[nodiscard]] double area_by(const Budget& budget, double depth) const {
    const Plane plane{box_.m(), box_.n(), depth * element_, partial_, 2 * depth};
    return largest_area(plane, reach_of(plane, budget));
  }

  Shapes shapes_;
  Terms terms_;
  GemmBox box_;
  double element_, partial_, k_, least_depth_;
};

// Forms groups for planes of `area`, at a finish time: each takes devices, deepest first, until they cover the plane at
// the depth that wastes least. Returns the blocks covered; `left` are the devices that complete no group.
class Filling {
 public:
  /// `tails` of the groups may take a slab that is short by `missing` elements.
  Filling(const Wishes& wishes, std::span<const Power> devices, double area, std::int64_t tails, std::int64_t missing)
      : wishes_(wishes), devices_(devices), area_(area), tails_(missing > 0 ? tails : 0), missing_(missing) {}

  std::int64_t fill(double finish, std::int64_t blocks) {
    finish_ = finish;
    tails_left_ = tails_;
    groups_.clear();
    pool_.clear();
    for (const Power& device : devices_) {
      const Wish wish = wishes_.shallow(device, finish, area_);
      if (wish.area > 0) pool_.push_back(wish);
    }
    std::sort(pool_.begin(), pool_.end(), [](const Wish& a, const Wish& b) {
      return a.depth != b.depth ? a.depth > b.depth : a.device.index < b.device.index;
    });
    std::int64_t covered = 0;
    while (covered < blocks && take_group(blocks - covered)) covered += groups_.back().blocks;
    return covered;
  }
  [[nodiscard]] std::vector<Group> groups() const { return groups_; }
  [[nodiscard]] std::vector<Power> left() const {
    std::vector<Power> devices;
    for (const Wish& wish : pool_) devices.push_back(wish.device);
    return devices;
  }

 private:
  // How far ahead of its turn a device may be taken because its area fits.
  static constexpr std::size_t kWindow = 6;

  struct Choice {
    std::vector<std::size_t> members;  // positions in the pool
    double lines = 0;                  // that they wished for
    std::int64_t blocks = 0, missing = 0;
  };

  bool take_group(std::int64_t most_blocks) {
    if (pool_.empty()) return false;
    // The depth that the next devices wish for together.
    double areas = 0, depths = 0;
    for (std::size_t i = 0; i < pool_.size() && areas < area_; ++i) {
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
    std::size_t next = 0, kept = 0;
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      if (next < best.members.size() && best.members[next] == i) {
        ++next;
      } else {
        pool_[kept++] = pool_[i];
      }
    }
    pool_.resize(kept);
    groups_.push_back(std::move(group));
    return true;
  }

  // Devices that cover the plane at a depth; no members when all together do not.
  [[nodiscard]] Choice choose(std::int64_t blocks, std::int64_t missing) const {
    Choice choice;
    choice.blocks = blocks;
    choice.missing = missing;
    std::vector<std::size_t> open;  // the next devices in turn
    std::vector<double> areas;
    std::size_t next = 0;
    double need = area_;
    while (true) {
      while (open.size() < kWindow && next < pool_.size()) {
        open.push_back(next);
        areas.push_back(wishes_.area_at(pool_[next].device, finish_, blocks * kBlockK - missing));
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

  const Wishes& wishes_;
  std::span<const Power> devices_;
  double area_, finish_ = 0;
  std::int64_t tails_, missing_, tails_left_ = 0;
  std::vector<Wish> pool_;
  std::vector<Group> groups_;
};

// Shares groups among regions so that the blocks of each add up to `blocks`. Empty when that cannot be.
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
    // What is too much or too little goes to the deepest, whom it changes least.
    for (; sums[r] != blocks; sums[r] += sums[r] < blocks ? 1 : -1) {
      const auto deepest = std::max_element(shared[r].begin(), shared[r].end(),
                                            [](const Group& a, const Group& b) { return a.blocks < b.blocks; });
      deepest->blocks += sums[r] < blocks ? 1 : -1;
    }
    std::reverse(shared[r].begin(), shared[r].end());  // the short slab is a region's last
  }
  return shared;
}

// Regions of a box, one after another along its longer side.
class Regions {
 public:
  Regions(const Work& work, const GemmBox& box) : work_(work), box_(box), by_rows_(box.m() >= box.n()) {}

  void add(std::vector<Group> groups) { regions_.emplace_back(work_, box_, std::move(groups)); }
  [[nodiscard]] std::size_t count() const { return regions_.size(); }

  // Sizes, balances, cuts and tiles; `guess` is a time near the finish.
  BoxTiling tile(double guess) {
    if (regions_.empty() || std::ssize(regions_) > side()) return {kNever, {}};
    BoxTiling best{kNever, {}};
    double finish = guess;
    for (int round = 0; round < 3; ++round) {
      for (int settle = 0; settle < (round == 0 ? 3 : 1); ++settle) {
        finish = size(finish);
        if (finish == kNever) return best;
        for (Region& region : regions_) region.balance(finish);
      }
      finish = size(finish);
      double slowest = 0;
      for (Region& region : regions_) slowest = std::max(slowest, region.cut(finish));
      if (slowest >= best.finish) continue;
      BoxTiling tiling{0, {}};
      for (const Region& region : regions_) tiling.finish = std::max(tiling.finish, region.tile(tiling.tiles));
      if (tiling.finish < best.finish) best = std::move(tiling);
      if (best.finish < finish * 1.002) break;
    }
    return best;
  }

 private:
  [[nodiscard]] std::int64_t side() const { return by_rows_ ? box_.m() : box_.n(); }

  // Gives every region its share of the longer side, by what its devices could do by a common time; returns that time.
  double size(double guess) {
    const double area = static_cast<double>(box_.m()) * static_cast<double>(box_.n());
    std::vector<double> capacity(regions_.size());
    const auto total = [&](double finish) {
      double sum = 0;
      for (std::size_t r = 0; r < regions_.size(); ++r) sum += capacity[r] = regions_[r].capacity(finish);
      return sum;
    };
    const double finish = find_rise(total, area, 1e-4, guess).high;
    if (finish == kNever) return kNever;
    const double sum = total(finish);
    double reached = 0;
    std::int64_t start = 0;
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      reached += capacity[r];
      const std::int64_t after = std::ssize(regions_) - 1 - static_cast<std::int64_t>(r);
      const std::int64_t end =
          after == 0 ? side()
                     : std::clamp(std::llround(reached / sum * static_cast<double>(side())),
                                  static_cast<long long>(start + 1), static_cast<long long>(side() - after));
      GemmBox part = box_;
      (by_rows_ ? part.m0 : part.n0) += start;
      (by_rows_ ? part.m1 : part.n1) = (by_rows_ ? box_.m0 : box_.n0) + end;
      regions_[r].resize(part);
      start = end;
    }
    return finish;
  }

  Work work_;
  GemmBox box_;
  bool by_rows_;
  std::vector<Region> regions_;
};

}  // namespace

BoxTiling tile_gemm(const Work& work, const GemmBox& box, std::span<const Power> devices, const BoxBound& bound) {
  const std::int64_t blocks = k_blocks(box.k());
  const Wishes wishes(work, box, bound.terms);
  const double area = static_cast<double>(box.m()) * static_cast<double>(box.n());
  const double guess = bound.finish;

  Group whole;
  whole.blocks = blocks;
  std::vector<Power> shallow;
  double whole_lines = 0, lines = 0, areas = 0;
  for (const Power& device : devices) {
    const Wish wish = wishes.of(device, guess);
    lines += wish.lines;
    if (wish.whole) {
      whole.devices.push_back(device);
      whole_lines += wish.lines;
    } else {
      shallow.push_back(device);
      areas += wish.area;
    }
  }
  const double share = whole_lines / lines;
  BoxTiling best{kNever, {}};
  const auto offer = [&best](BoxTiling&& tiling) {
    if (tiling.finish < best.finish) best = std::move(tiling);
  };
  if (share > 1 - kLeastShare || blocks < 2) {
    offer(tile_flat(work, box, devices));
    return best;
  }
  // How many planes the shallow devices cover: slabs over the part of the box that is theirs.
  const double planes = areas / (area * (1 - share));
  const auto members = static_cast<double>(shallow.size());
  std::int64_t tried = 0;
  const std::vector<double> sizes = members <= 96 ? std::vector<double>{24, 14, 8} : std::vector<double>{kGroupSize};
  for (const double size : sizes) {
    const auto regions = static_cast<std::int64_t>(std::clamp(members / (size * std::max(planes, 2.0)), 1.0, 64.0));
    if (regions == tried) continue;
    tried = regions;
    Filling filling(wishes, shallow, area * (1 - share) / static_cast<double>(regions), regions,
                    blocks * kBlockK - box.k());
    const double finish = least_feasible(
        [&](double t) { return filling.fill(t, regions * blocks) >= regions * blocks; }, 2e-3, guess * 1.02);
    if (finish == kNever) continue;
    static_cast<void>(filling.fill(finish, regions * blocks));
    std::vector<Group> groups = filling.groups();
    for (const Power& device : filling.left()) groups.back().devices.push_back(device);
    Regions plan(work, box);
    if (share > kLeastShare) plan.add({whole});
    std::vector<std::vector<Group>> shared = share_groups(std::move(groups), regions, blocks);
    if (shared.empty()) continue;
    for (std::vector<Group>& region : shared) plan.add(std::move(region));
    offer(plan.tile(guess));
  }
  if (best.finish > guess * 1.05) offer(tile_flat(work, box, devices));
  return best;
}

}  // namespace cleave::plan
