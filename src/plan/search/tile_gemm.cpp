// `automatic`: a box of a GEMM in three dimensions, as early as the devices can be done with it.
//
// Some devices do best at the whole depth (finished results go up, half as large as partial sums), others on runs of K
// blocks, each at a depth of its own. So the box is cut, along its longer side, into regions: one at the whole depth,
// and as many of slabs as keep groups small enough to hold devices of like depth. Groups of deep and of shallow slabs
// share a region so that depths add up; regions are as large as what their devices can do. How many regions and groups
// are best depends on how well whole blocks and like devices fit, so several ways are tried: the fewer devices, the
// more.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "bisect.hpp"
#include "search/filling.hpp"
#include "search/group_exchange.hpp"
#include "search/group_search.hpp"

namespace cleave::plan {

namespace {

/// A kind of region that would do less than this share of the work is not worth having: its devices hold few whole
/// tiles. Set on the fleets of bench/plan_table.
constexpr double kLeastShare = 0.03;

// Regions of a box, one after another along one of its sides.
class Regions {
 public:
  Regions(const Work& work, const GemmBox& box, bool balance)
      : work_(work), box_(box), by_rows_(box.m() >= box.n()), balance_(balance) {}

  void add(std::vector<Group> groups) { regions_.emplace_back(work_, box_, std::move(groups)); }
  [[nodiscard]] std::size_t count() const { return regions_.size(); }

  // Sizes, balances and cuts; `guess` is a time near the finish. Returns the finish time.
  double arrange(double guess) {
    if (regions_.empty() || std::ssize(regions_) > side()) return finish_ = kNever;
    std::vector<Region> best;
    double finish = guess;
    finish_ = kNever;
    for (int round = 0; round < 3; ++round) {
      for (int settle = 0; settle < (round == 0 ? 3 : 1); ++settle) {
        finish = size(finish);
        if (finish == kNever) break;
        for (Region& region : regions_) {
          if (balance_) region.balance(finish);
        }
      }
      finish = size(finish);
      if (finish == kNever) break;
      const double slowest = cut(finish);
      if (slowest < finish_) {
        finish_ = slowest;
        best = regions_;
      }
      if (finish_ < finish * 1.002) break;
    }
    if (!best.empty()) regions_ = std::move(best);
    return finish_;
  }

  // Cuts regions of these lengths; one before them, if any, takes what they leave. Returns the finish time.
  double cut_at(std::span<const std::int64_t> lengths, double guess) {
    if (std::ssize(regions_) > side()) return finish_ = kNever;
    std::int64_t end = side();
    for (std::size_t r = regions_.size(); r-- > 0;) {
      const std::size_t before = regions_.size() - lengths.size();
      const std::int64_t start =
          r > 0 ? std::clamp(end - lengths[r - before], static_cast<std::int64_t>(r), end - 1) : 0;
      place(r, start, end);
      end = start;
    }
    return finish_ = cut(guess);
  }

  // Lets regions exchange devices by true cuts, `effort` of them; `tries` as Region has it.
  void refine(std::int64_t effort, std::size_t tries) {
    for (int round = 0; round < 2; ++round) {
      const std::vector<Region> before = regions_;
      for (Region& region : regions_) region.refine(effort / std::ssize(regions_), tries);
      const double finish = regions_.size() > 1 ? size(finish_) : finish_;
      const double slowest = finish == kNever ? kNever : cut(finish);
      if (slowest >= finish_) {
        regions_ = before;
        static_cast<void>(cut(finish_));
        return;
      }
      finish_ = slowest;
      if (regions_.size() == 1) return;
    }
  }

  [[nodiscard]] double finish() const { return finish_; }
  // Of devices and interface.
  [[nodiscard]] double finish_with(const fleet::ServerProfile& server, double pause) const {
    ServerBytes bytes;
    for (const Region& region : regions_) bytes.add(region.server_bytes());
    return std::max(finish_, bytes.time(server) + pause);
  }

  // In whole elements.
  [[nodiscard]] BoxTiling tile() const {
    BoxTiling tiling{0, {}};
    for (const Region& region : regions_) tiling.finish = std::max(tiling.finish, region.tile(tiling.tiles));
    return tiling;
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
      place(r, start, end);
      start = end;
    }
    return finish;
  }

  void place(std::size_t region, std::int64_t start, std::int64_t end) {
    GemmBox part = box_;
    (by_rows_ ? part.m0 : part.n0) += start;
    (by_rows_ ? part.m1 : part.n1) = (by_rows_ ? box_.m0 : box_.n0) + end;
    regions_[region].resize(part);
  }

  double cut(double finish) {
    double slowest = 0;
    for (Region& region : regions_) slowest = std::max(slowest, region.cut(finish));
    return slowest;
  }

  Work work_;
  GemmBox box_;
  bool by_rows_, balance_;
  std::vector<Region> regions_;
  double finish_ = kNever;
};

// Ways of cutting a box, tried one after another: all are arranged, the best refined, the best of those tiled.
class Search {
 public:
  Search(const TilingProblem& problem, const Ways& ways)
      : work_(problem.work),
        server_(problem.server),
        box_(problem.box),
        devices_(problem.devices),
        stages_(problem.stages),
        guess_(problem.bound.finish),
        pause_(problem.bound.pause),
        blocks_(k_blocks(box_.k())),
        area_(static_cast<double>(box_.m()) * static_cast<double>(box_.n())),
        preferred_(work_, box_, problem.bound.terms),
        ways_(ways),
        thorough_(ways.effort == Effort::thorough &&
                  std::ssize(devices_) <= (problem.bound.wanted > 0 ? kFewToSearch : kFew)),
        wanted_(problem.bound.wanted) {
    double whole_lines = 0, lines = 0;
    for (const DeviceRates& device : devices_) {
      const PreferredShape shape = preferred_.of(device, guess_);
      lines += shape.lines;
      if (shape.whole) {
        whole_.push_back(device);
        whole_lines += shape.lines;
      } else {
        shallow_.push_back(device);
        areas_ += shape.area;
      }
    }
    if (whole_lines < ways.whole_share * lines) whole_lines += move_to_whole(ways.whole_share * lines - whole_lines);
    share_ = whole_lines / lines;
    if (share_ > kLeastShare && !ways.in_slabs) return;
    for (const DeviceRates& device : whole_) shallow_.push_back(device);
    whole_.clear();
    share_ = 0;
  }

  // Of devices; where there is time, with the interface, too: devices that are done sooner may be so by more bytes.
  [[nodiscard]] double finish_of(const BoxTiling& tiling) const {
    if (!(wanted_ > 0) || tiling.finish == kNever) return tiling.finish;
    return std::max(tiling.finish, server_bytes(work_, tiling).time(server_) + pause_);
  }

  // Whether few devices have a region at the whole depth, and there is time to try without.
  [[nodiscard]] bool far_by_few(const BoxTiling& tiling) const {
    return thorough_ && share_ > 0 && share_ < kFewShare && wanted_ > 0 && finish_of(tiling) > wanted_;
  }

  BoxTiling find() {
    if (share_ > 1 - kLeastShare || blocks_ < 2) return tile_flat(work_, box_, devices_);
    if (thorough_) {
      const bool few = wanted_ > 0 || std::ssize(shallow_) <= kDealt;
      const std::vector<double> sizes = few && runs(SearchStage::group_sizes)
                                            ? std::vector<double>{24, 14, 8, 5, 3}
                                            : std::vector<double>{std::min(10.0, ways_.group_size)};
      for (const double size : sizes) fill(size);
      if (few && runs(SearchStage::dealt_groups)) deal();
      if (std::ssize(devices_) > kFewDevices && runs(SearchStage::group_exchange)) exchange_groups();
    } else {
      fill(ways_.group_size);
    }
    return best();
  }

 private:
  // Sizes and efforts below were set on the fleets of bench/plan_table, where one plan of 3240 is above 1.1 of its
  // bound (docs/measurements/planner.md).

  /// Up to so many devices, more ways are tried; up to more where there is time.
  static constexpr std::int64_t kFew = 256, kFewToSearch = 512, kDealt = 64;

  /// Groups exchange devices where the finish is beyond the bound by this factor, and so that they cover most by the
  /// second.
  static constexpr double kFarFromBound = 1.08, kExchangedAt = 1.05;
  /// What a region at the whole depth does at least, of all, where slabs alone are not tried.
  static constexpr double kFewShare = 0.3;
  /// Changes of every way to begin, and of the best so many ways.
  static constexpr int kFirstChanges = 3000, kChanges = 30000;
  static constexpr std::size_t kExchanged = 3;
  /// Where there is time, groups of the best so many ways are searched by true cuts, too, from this factor of the
  /// soonest finish so far, and the best of these for longer, unless they lack this share of all.
  static constexpr std::size_t kSearched = 6, kSearchedLonger = 2;
  static constexpr double kSearchedFrom = 1.01, kHopeless = 0.1;
  /// How much worse a change may be at first, of what a device does on average, and how many changes there are for a
  /// device.
  static constexpr double kWorseSearched = 0.15, kSearchChanges = 500, kMoreSearchChanges = 2500;

  [[nodiscard]] bool runs(SearchStage stage) const { return stages_.runs(stage); }

  // Lets devices do whole depths, first those that lose least by it, until they do `wanted` lines; returns how many.
  double move_to_whole(double wanted) {
    struct Mover {
      double keeps = 0, lines = 0, area = 0;
      DeviceRates device;
    };
    std::vector<Mover> movers;
    for (const DeviceRates& device : shallow_) {
      const PreferredShape shape = preferred_.of(device, guess_);
      const double lines = preferred_.whole_lines(device, guess_);
      movers.push_back({shape.lines > 0 ? lines / shape.lines : 0, lines, shape.area, device});
    }
    std::stable_sort(movers.begin(), movers.end(), [](const Mover& a, const Mover& b) { return a.keeps > b.keeps; });
    shallow_.clear();
    double moved = 0;
    for (const Mover& mover : movers) {
      const bool moves = moved < wanted && mover.lines > 0;
      (moves ? whole_ : shallow_).push_back(mover.device);
      if (!moves) continue;
      moved += mover.lines;
      areas_ -= mover.area;
    }
    return moved;
  }

  // Slabs over the part of the box that is the shallow devices'.
  [[nodiscard]] double planes() const { return areas_ / (area_ * (1 - share_)); }

  void offer(std::vector<Group> groups, std::int64_t regions) {
    std::vector<std::vector<Group>> shared = share_groups(std::move(groups), regions, blocks_);
    if (shared.empty()) return;
    arrange(shared);
    if (thorough_ && std::ssize(devices_) > kFewDevices) starts_.push_back(std::move(shared));
  }

  // Returns the finish, with the server's interface.
  double arrange(std::vector<std::vector<Group>> regions, const GroupSearch* searched = nullptr) {
    Regions plan(work_, box_, runs(SearchStage::balance));
    if (share_ > kLeastShare) {
      Group whole;
      whole.blocks = blocks_;
      whole.devices = whole_;
      plan.add({whole});
    }
    for (std::vector<Group>& region : regions) plan.add(std::move(region));
    const double finish = searched ? plan.cut_at(searched->lengths(), guess_) : plan.arrange(guess_);
    if (finish == kNever) return kNever;
    plans_.push_back(std::move(plan));
    return plans_.back().finish_with(server_, pause_);
  }

  // Whether more is tried. Tiles that are to be early are tried again without that, so it is not tried for them.
  [[nodiscard]] bool far(double finish) const {
    return finish > kFarFromBound * guess_ && devices_.front().wavefront >= kBalancedWavefront;
  }

  // Where plans are far from the bound, the groups that they began as exchange devices and blocks.
  void exchange_groups() {
    double soonest = kNever;
    for (const Regions& plan : plans_) soonest = std::min(soonest, plan.finish_with(server_, pause_));
    if (!far(soonest)) return;
    const Areas areas(preferred_, shallow_, kExchangedAt * guess_, box_);
    std::vector<GroupExchange> exchanged;
    for (std::vector<std::vector<Group>>& start : starts_) {
      exchanged.emplace_back(areas, std::move(start));
      exchanged.back().improve(kFirstChanges);
    }
    std::stable_sort(exchanged.begin(), exchanged.end(),
                     [](const auto& a, const auto& b) { return a.covered() > b.covered(); });
    for (std::size_t i = 0; i < std::min(kExchanged, exchanged.size()); ++i) {
      exchanged[i].improve(kChanges);
      arrange(exchanged[i].regions());
    }
    if (!(wanted_ > 0) || !runs(SearchStage::group_search)) return;
    search_groups(exchanged, kSearchedFrom * soonest);
  }

  // Searches groups by true cuts, from the most able ways to begin: all for a while, then those longer that came
  // furthest.
  void search_groups(const std::vector<GroupExchange>& exchanged, double from) {
    struct Attempt {
      double finish = kNever, lacks = 0;
      std::size_t start = 0;
    };
    double soonest = kNever;
    const auto devices = static_cast<double>(shallow_.size());
    const auto attempt = [&](std::size_t i, double changes) {
      std::vector<std::vector<Group>> groups = exchanged[i].regions();
      std::vector<double> sizes;
      for (std::size_t r = 0; r < groups.size(); ++r) sizes.push_back(exchanged[i].share_of(r));
      GroupSearch search({work_, box_, box_.m() >= box_.n(), 1 - share_, server_, pause_}, preferred_,
                         std::move(groups), sizes, from);
      const double finish = search.improve({from, wanted_, kWorseSearched / devices, changes * devices});
      if (finish < kNever) soonest = std::min(soonest, arrange(search.regions(), &search));
      return Attempt{finish, search.lacks(), i};
    };
    std::vector<Attempt> order;
    for (std::size_t i = 0; i < std::min(kSearched, exchanged.size()) && soonest > wanted_; ++i) {
      order.push_back(attempt(i, kSearchChanges));
    }
    std::sort(order.begin(), order.end(), [](const Attempt& a, const Attempt& b) {
      return a.finish != b.finish ? a.finish < b.finish : a.lacks != b.lacks ? a.lacks < b.lacks : a.start < b.start;
    });
    std::erase_if(order, [](const Attempt& a) { return a.lacks > kHopeless; });
    for (std::size_t i = 0; i < std::min(kSearchedLonger, order.size()) && soonest > wanted_; ++i) {
      attempt(order[i].start, kMoreSearchChanges);
    }
    if (!order.empty() && soonest > wanted_) attempt(order.front().start, 2 * kMoreSearchChanges);
  }

  // Groups of like depth, about `size` devices to each.
  void fill(double size) {
    const auto regions = static_cast<std::int64_t>(
        std::clamp(static_cast<double>(shallow_.size()) / (size * std::max(planes(), 2.0)), 1.0, 64.0));
    if (regions == filled_) return;
    filled_ = regions;
    Filling filling(preferred_, shallow_, area_ * (1 - share_) / static_cast<double>(regions), regions,
                    blocks_ * kBlockK - box_.k());
    const double finish = least_feasible(
        [&](double t) { return filling.fill(t, regions * blocks_) >= regions * blocks_; }, 2e-3, guess_ * 1.02);
    if (finish == kNever) return;
    static_cast<void>(filling.fill(finish, regions * blocks_));
    std::vector<Group> groups = filling.groups();
    for (const DeviceRates& device : filling.left()) groups.back().devices.push_back(device);
    offer(std::move(groups), regions);
  }

  // Slabs of like capacity, around as many as there should be, in few regions.
  void deal() {
    const std::int64_t members = std::ssize(shallow_);
    for (std::int64_t regions = 1; regions <= (std::ssize(devices_) <= kFewDevices ? 4 : 1); ++regions) {
      const std::int64_t most = std::min(regions * blocks_, members);
      std::int64_t before = 0;
      for (const double factor : {0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0}) {
        const auto ideal = std::llround(planes() * static_cast<double>(regions) * factor);
        const std::int64_t count = std::min<std::int64_t>(std::max<std::int64_t>(ideal, regions), most);
        if (count <= before) continue;
        before = count;
        const double area = area_ * (1 - share_) / static_cast<double>(regions);
        offer(deal_groups(preferred_, shallow_, guess_, count, regions * blocks_, area), regions);
        if (std::ssize(devices_) <= kFewDevices && runs(SearchStage::depth_groups))
          offer(row_groups(preferred_, shallow_, guess_, count, regions * blocks_, area), regions);
      }
    }
  }

  BoxTiling best() {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t i = 0; i < plans_.size(); ++i) order.emplace_back(plans_[i].finish_with(server_, pause_), i);
    std::sort(order.begin(), order.end());
    BoxTiling found{kNever, {}};
    const auto keep = [&](BoxTiling&& tiling) {
      if (finish_of(tiling) < finish_of(found)) found = std::move(tiling);
    };
    const std::int64_t members = std::ssize(shallow_);
    const std::size_t tiled = std::ssize(devices_) <= kFewDevices ? 12 : members <= kDealt || wanted_ > 0 ? 3 : 1;
    for (std::size_t i = 0; i < std::min(tiled, plans_.size()); ++i) {
      Regions& plan = plans_[order[i].second];
      if (wanted_ > 0) keep(plan.tile());
      if (thorough_ && runs(SearchStage::refine)) plan.refine(kEffort, kTries);
      keep(plan.tile());
    }
    if (found.finish > guess_ * 1.05 && runs(SearchStage::flat)) keep(tile_flat(work_, box_, devices_));
    return found;
  }

  /// Devices cut again to refine a plan, and moves that are cut before the search ends.
  static constexpr std::int64_t kEffort = 1000;
  static constexpr std::size_t kTries = 8;

  Work work_;
  fleet::ServerProfile server_;
  GemmBox box_;
  std::span<const DeviceRates> devices_;
  SearchStageSet stages_;
  double guess_, pause_;
  std::int64_t blocks_;
  double area_;
  PreferredShapes preferred_;
  Ways ways_;
  bool thorough_;
  double wanted_;
  std::vector<DeviceRates> whole_, shallow_;
  double share_ = 0;  // of the work that devices would do at the whole depth
  double areas_ = 0;  // that the others could cover together
  std::int64_t filled_ = 0;
  std::vector<Regions> plans_;
  std::vector<std::vector<std::vector<Group>>> starts_;  // regions of groups, before they exchange devices
};

}  // namespace

BoxTiling tile_gemm(const TilingProblem& problem, const Ways& ways) {
  Search search(problem, ways);
  BoxTiling tiling = search.find();
  if (!problem.stages.runs(SearchStage::slabs_alone) || !search.far_by_few(tiling)) return tiling;
  // Few devices that do best at the whole depth may not be able to share a region of their own.
  Ways in_slabs = ways;
  in_slabs.in_slabs = true;
  BoxTiling other = Search(problem, in_slabs).find();
  return search.finish_of(other) < search.finish_of(tiling) ? other : tiling;
}

}  // namespace cleave::plan
