// Which devices take part when the server's interface cannot feed them all.
//
// Fewer devices with larger blocks need fewer bytes for the same work: operands are sent less often. The lower bound
// has priced the interface; devices are ordered by what they could do for those prices, and the first so many of them
// take part that devices and interface are done together.
#include <algorithm>
#include <cmath>
#include <utility>

#include "bisect.hpp"
#include "gemm_costs.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

namespace {

// Limits and efforts were set on the fleets of bench/plan_table whose interface is taken, where no plan is above 1.1 of
// its bound (docs/measurements/planner.md).

/// Finish times of devices and interface this close to each other are equal.
constexpr double kEven = 0.01, kNearlyEven = 0.025;
constexpr int kMostTries = 6;

/// GroupSearch leaves out devices that it does not need, so it is offered this many times as many at first.
constexpr double kMoreToSearch = 1.1;

/// Directions are evened out where the finish is beyond the bound by this factor, and they differ by less than that.
constexpr double kGoodEnough = 1.04, kOneSided = 0.5;

/// Other numbers of devices are tried beyond the bound by this factor.
constexpr double kWorthWidening = 1.07;

/// Up to so many K blocks, some of the work at the whole depth is tried; so many tries that gain nothing are the last.
constexpr std::int64_t kFewBlocks = 32;
constexpr int kMostWorse = 2;

// Finds which devices take part, and how.
class Selection {
 public:
  explicit Selection(const TilingProblem& problem)
      : problem_(problem),
        work_(problem.work),
        box_(problem.box),
        server_(problem.server),
        bound_(problem.bound),
        wanted_(problem.bound),
        best_wanted_(problem.bound) {
    const Shapes shapes(work_, box_);
    for (const DeviceRates& device : problem.devices) {
      const Budget budget = device.by(bound_.finish);
      if (!budget.any()) continue;
      Piece piece = shapes.best_piece(budget, bound_.terms);
      if (piece.value <= 0) piece = shapes.best_piece(budget, {});
      const double price = bound_.terms.out_price * piece.down + bound_.terms.in_price * piece.up;
      offers_.push_back({piece.lines / price, piece.down, piece.up, device});
    }
    std::stable_sort(offers_.begin(), offers_.end(), [](const Offer& a, const Offer& b) { return a.worth > b.worth; });
    double down = 0, up = 0;
    const double carries = bound_.finish - bound_.pause;
    while (count_ < offers_.size() && down <= server_.nic_out.value() * carries &&
           up <= server_.nic_in.value() * carries) {
      down += offers_[count_].down;
      up += offers_[count_].up;
      ++count_;
    }
    first_count_ = count_;
  }

  BoxTiling find() {
    settle(kMostTries);
    if (best_.finish == kNever) return best_;
    if (runs(SearchStage::even_directions)) even_out();
    if (far() && bound_.terms.in_price > 0 && bound_.terms.out_price > 0) try_other_groups();
    // At the whole depth there is but one way.
    const auto at_whole_depth = [&](const BoxTile& tile) { return tile.box.k() == box_.k(); };
    if (!far() && std::all_of(best_.tiles.begin(), best_.tiles.end(), at_whole_depth)) {
      if (near_even_) attempt(count_);
      return best_;
    }
    wanted_ = best_wanted_;
    ways_ = best_ways_;
    ways_.effort = Effort::thorough;
    count_ = near_even_ ? count_ : best_count_;
    if (bound_.wanted > 0) {
      count_ =
          std::min(offers_.size(), static_cast<std::size_t>(std::llround(kMoreToSearch * static_cast<double>(count_))));
    }
    attempt(count_);
    return best_;
  }

 private:
  struct Offer {
    double worth = 0, down = 0, up = 0;
    DeviceRates device;
  };

  [[nodiscard]] bool runs(SearchStage stage) const { return problem_.stages.runs(stage); }
  [[nodiscard]] bool far() const { return best_.finish > kGoodEnough * bound_.finish; }
  static double uneven(double ratio) { return ratio > 1 ? ratio - 1 : 1 / ratio - 1; }

  // Offers one more tiling; returns how much longer the interface takes than the devices. Sets the tilt.
  double attempt(std::size_t count) {
    std::vector<DeviceRates> chosen;
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(offers_[i].device);
    TilingProblem problem = problem_;
    problem.devices = chosen;
    problem.bound = wanted_;
    BoxTiling tiling = tile_gemm(problem, ways_);
    if (tiling.finish == kNever) return 0;
    const ServerBytes bytes = server_bytes(work_, tiling);
    const double own = tiling.finish, shared = bytes.time(server_) + bound_.pause;
    tilt_ = bytes.in / server_.nic_in.value() / (bytes.out / server_.nic_out.value());
    if (std::max(own, shared) < best_.finish) {
      best_count_ = count;
      best_wanted_ = wanted_;
      best_ways_ = ways_;
      best_ = std::move(tiling);
      best_.finish = std::max(own, shared);
    }
    return shared / own;
  }

  // From `count_` to as many devices as are done with the interface.
  void settle(int most_tries) {
    std::size_t low = 0, high = offers_.size() + 1;  // too few, too many
    near_even_ = false;
    for (int tries = 0; tries < most_tries && count_ > low && count_ < high; ++tries) {
      const double ratio = attempt(count_);
      if (ratio == 0) break;
      (ratio > 1 ? high : low) = count_;
      if (uneven(ratio) < kEven) break;
      const auto next = static_cast<std::size_t>(std::llround(static_cast<double>(count_) / ratio));
      const std::size_t middle = low + (high - low) / 2;
      count_ = next > low && next < high ? next : middle;
      // The thorough attempt will be there.
      near_even_ = uneven(ratio) < kNearlyEven && uneven(tilt_) > kOneSided && count_ > low && count_ < high;
      if (near_even_) break;
    }
  }

  // Deeper blocks need fewer bytes up and more down.
  void even_out() {
    for (int round = 0; round < 2 && far(); ++round) {
      if (uneven(tilt_) < 2 * kEven || uneven(tilt_) > kOneSided) return;
      wanted_.terms.deepen *= std::pow(tilt_, 0.7);
      count_ = best_count_;
      settle(kMostTries / 2);
    }
  }

  // Where both directions are taken, whole numbers of slabs do not fit: smaller groups make regions of unlike numbers
  // of them, and some of the work may be done at the whole depth.
  void try_other_groups() {
    for (const double size : {14.0, 9.0}) {
      if (!runs(SearchStage::smaller_groups)) break;
      wanted_ = best_wanted_;
      ways_ = best_ways_;
      ways_.group_size = size;
      count_ = best_count_;
      settle(kMostTries / 2);
    }
    if (runs(SearchStage::more_devices)) widen();
    if (!runs(SearchStage::whole_depths)) return;
    int worse = k_blocks(box_.k()) <= kFewBlocks ? 0 : kMostWorse;
    for (double share = 0.05; share < 0.5 && far() && worse < kMostWorse; share += 0.05) {
      const double before = best_.finish;
      wanted_ = best_wanted_;
      ways_ = best_ways_;
      ways_.whole_share = share;
      count_ = best_count_;
      settle(kMostTries / 2);
      worse = best_.finish < before ? 0 : worse + 1;
    }
  }

  // Where the last of the devices leave some of their links free, a deeper cut may need fewer bytes: more devices than
  // fill the interface, with some of the work at the whole depth where there are few blocks.
  void widen() {
    for (const double share : {0.0, 0.1, 0.2, 0.3, 0.4}) {
      if (share > 0 && k_blocks(box_.k()) > kFewBlocks) return;
      for (const double factor : {1.0, 1.1, 1.2, 1.3, 1.4}) {
        if (best_.finish < kWorthWidening * bound_.finish) return;
        wanted_ = bound_;
        ways_ = {};
        ways_.whole_share = share;
        attempt(std::min(offers_.size(), static_cast<std::size_t>(factor * static_cast<double>(first_count_))));
      }
    }
  }

  TilingProblem problem_;
  const Work& work_;
  GemmBox box_;
  fleet::ServerProfile server_;
  BoxBound bound_;
  std::vector<Offer> offers_;
  std::size_t first_count_ = 0, count_ = 0, best_count_ = 0;
  BoxBound wanted_, best_wanted_;
  Ways ways_, best_ways_;
  BoxTiling best_{kNever, {}};
  double tilt_ = 1;  // how much longer the interface takes in than out
  bool near_even_ = false;
};

}  // namespace

ServerBytes server_bytes(const Work& work, const BoxTiling& tiling) {
  ServerBytes bytes;
  for (const BoxTile& tile : tiling.tiles) {
    const GemmCosts costs = gemm_costs(work, tile.box);
    bytes.out += static_cast<double>((tile.box.m() + tile.box.n()) * costs.strip_bytes);
    bytes.in += static_cast<double>(tile.box.m() * tile.box.n() * costs.result_bytes);
  }
  return bytes;
}

BoxTiling tile_selected(const TilingProblem& problem) {
  if (problem.bound.terms.out_price > 0 || problem.bound.terms.in_price > 0) {
    BoxTiling tiling = Selection(problem).find();
    if (tiling.finish < kNever) return tiling;
  }
  return tile_gemm(problem, {.effort = Effort::thorough});
}

}  // namespace cleave::plan
