// Few devices: the box is cut in two along any side, and so is each part, until there is a device to a part.
//
// Columns of slabs need several devices to a slab that fit each other; a handful of unlike ones may not. Here the cuts
// form a tree whose leaves are devices. Where each cut lies follows from the tree: both of its sides take as long. The
// tree is found by threshold accepting (Dueck and Scheuer 1990): a cut turns to another side of the box, two devices
// change places, one moves or is left out, and the change stays unless the whole then ends much later; what is much
// becomes less, until nothing is.
#include <algorithm>
#include <array>
#include <cmath>

#include "bisect.hpp"
#include "gemm_costs.hpp"
#include "search/slabs.hpp"
#include "search/threshold_accept.hpp"

namespace cleave::plan {

namespace {

// Set on 8 devices of bench/plan_table (docs/measurements/planner.md).

/// Trees that are tried after each first one, and rounds in which the cuts of one settle.
constexpr int kTrees = 1500, kRounds = 6;

/// A tree that ends later by less than this share is gone on from, at first; in the end none is.
constexpr double kWorse = 0.05;

/// How much longer a tile takes that its device cannot hold.
constexpr double kTooLarge = 4;

// A place of a tree: a device, or a cut with two places below it.
struct Place {
  std::int32_t device = -1;
  std::int32_t low = -1, high = -1;
  std::int32_t axis = 0;  // rows, columns, depth
  double share = 0.5;     // of the low side
  [[nodiscard]] bool leaf() const { return device >= 0; }
  [[nodiscard]] bool unused() const { return !leaf() && low < 0; }
};

struct Tree {
  std::vector<Place> places;
  std::int32_t root = -1;
  double finish = kNever;
};

using Extents = std::array<double, 3>;

class GuillotineTree {
 public:
  GuillotineTree(const Work& work, const GemmBox& box, std::span<const DeviceRates> devices)
      : work_(work), box_(box), devices_(devices) {}

  BoxTiling find() {
    for (std::int32_t axis = 0; axis < 3; ++axis) {
      tree_ = begin(axis);
      tries_ = 0;
      threshold_accept(*this, draws_, Schedule{kWorse});
    }
    BoxTiling tiling{best_.finish < kNever ? 0 : kNever, {}};
    if (tiling.finish == 0) cut(best_, best_.root, box_, tiling);
    return tiling;
  }

  // As threshold_accept() asks.
  double advance() { return static_cast<double>(tries_++) / kTrees; }
  bool propose(Draws& /*draws*/) {
    tried_ = tree_;
    change(tried_);
    settle(tried_);
    return true;
  }
  // As a share of the finish.
  [[nodiscard]] double loss(double /*worse*/) const {
    return tried_.finish <= tree_.finish ? 0 : tried_.finish / tree_.finish - 1;
  }
  void keep() {
    tree_ = std::move(tried_);
    if (tree_.finish < best_.finish) best_ = tree_;
  }
  void undo() {}

 private:
  // Devices in their order, cut along each side in turn.
  Tree begin(std::int32_t axis) {
    Tree tree;
    tree.root = grow(tree, 0, std::ssize(devices_), axis);
    settle(tree);
    return tree;
  }
  static std::int32_t grow(Tree& tree, std::int64_t first, std::int64_t last, std::int32_t axis) {
    Place place;
    place.axis = axis % 3;
    if (last - first == 1) {
      place.device = static_cast<std::int32_t>(first);
    } else {
      const std::int64_t middle = first + (last - first) / 2;
      place.low = grow(tree, first, middle, axis + 1);
      place.high = grow(tree, middle, last, axis + 1);
    }
    tree.places.push_back(place);
    return static_cast<std::int32_t>(std::ssize(tree.places)) - 1;
  }

  std::int32_t draw(std::int32_t end) { return static_cast<std::int32_t>(draws_.below(static_cast<std::size_t>(end))); }

  // Turns a cut, has two devices change places, or moves one of them to another place or out.
  void change(Tree& tree) {
    const auto count = static_cast<std::int32_t>(std::ssize(tree.places));
    const std::int32_t at = draw(count), other = draw(count);
    Place& place = tree.places[index(at)];
    if (place.unused()) return;
    if (!place.leaf()) {
      place.axis = (place.axis + 1 + draw(2)) % 3;
    } else if (tree.places[index(other)].leaf() && draw(2) == 0) {
      std::swap(place.device, tree.places[index(other)].device);
    } else if (at != tree.root && take_out(tree, at)) {
      if (draw(16) > 0) put_in(tree, at, other);
    } else if (at != tree.root) {
      put_in(tree, at, other);
    }
  }

  static std::size_t index(std::int32_t at) { return static_cast<std::size_t>(at); }

  static std::int32_t above(const Tree& tree, std::int32_t at) {
    for (std::size_t i = 0; i < tree.places.size(); ++i) {
      if (tree.places[i].low == at || tree.places[i].high == at) return static_cast<std::int32_t>(i);
    }
    return -1;
  }
  static void replace(Tree& tree, std::int32_t at, std::int32_t by, std::int32_t except) {
    if (tree.root == at) {
      tree.root = by;
      return;
    }
    for (std::size_t i = 0; i < tree.places.size(); ++i) {
      if (static_cast<std::int32_t>(i) == except) continue;
      if (tree.places[i].low == at) tree.places[i].low = by;
      if (tree.places[i].high == at) tree.places[i].high = by;
    }
  }
  // Takes a device out, and the cut above it, whose place is then unused; false where it is out already.
  static bool take_out(Tree& tree, std::int32_t leaf) {
    const std::int32_t cut = above(tree, leaf);
    if (cut < 0) return false;
    Place& place = tree.places[index(cut)];
    const std::int32_t rest = place.low == leaf ? place.high : place.low;
    place.low = place.high = -1;
    replace(tree, cut, rest, cut);
    return true;
  }
  // Puts a device that is out beside another place; where that is out too, it stays out.
  void put_in(Tree& tree, std::int32_t leaf, std::int32_t beside) {
    if (beside == leaf || (beside != tree.root && above(tree, beside) < 0)) return;
    const auto unused =
        std::find_if(tree.places.begin(), tree.places.end(), [](const Place& place) { return place.unused(); });
    const auto cut = static_cast<std::int32_t>(unused - tree.places.begin());
    replace(tree, beside, cut, cut);
    *unused = {-1, leaf, beside, draw(3), 0.5};
  }

  // Moves the cuts until both sides of each take as long; sets the finish, and the shares that gave it.
  void settle(Tree& tree) {
    const Extents whole{static_cast<double>(box_.m()), static_cast<double>(box_.n()), static_cast<double>(box_.k())};
    std::vector<Place> best;
    tree.finish = kNever;
    for (int round = 0; round < kRounds; ++round) {
      next_ = tree.places;
      const double finish = measure(tree, tree.root, whole);
      if (finish < tree.finish) {
        tree.finish = finish;
        best = tree.places;
      }
      tree.places.swap(next_);
    }
    if (!best.empty()) tree.places = std::move(best);
  }

  // The finish of a place; where its cuts should rather be goes to next_.
  double measure(const Tree& tree, std::int32_t at, const Extents& extents) {
    const Place& place = tree.places[index(at)];
    if (place.leaf()) return time_of(devices_[index(place.device)], extents);
    Extents low = extents, high = extents;
    low[index(place.axis)] *= place.share;
    high[index(place.axis)] *= 1 - place.share;
    const double below = measure(tree, place.low, low), beyond = measure(tree, place.high, high);
    const double ratio = place.share / (1 - place.share) * std::clamp(beyond / below, 0.2, 5.0);
    next_[index(at)].share = std::clamp(ratio / (1 + ratio), 1e-3, 1 - 1e-3);
    return std::max(below, beyond);
  }

  // Alone, results of a tile leave in time as Reach has it.
  [[nodiscard]] double time_of(const DeviceRates& device, const Extents& e) const {
    const auto element = static_cast<double>(size_of(work_.wire));
    const bool whole = e[2] >= static_cast<double>(box_.k()) * (1 - 1e-9);
    const auto partial = static_cast<double>(size_of(partial_sum_type(work_.wire)));
    const double area = e[0] * e[1];
    const double down = (e[0] + e[1]) * e[2] * element / device.down, flops = 2 * area * e[2] / device.flops;
    const double up = area * (whole ? element : partial) / device.up, slower = std::max(flops, up);
    double time = std::max({device.down_at + down, device.flops_at + flops, device.up_at + up});
    if (down < 2 * slower) {
      time = std::max(time, device.up_at + (slower + down * down / (4 * slower)) / device.wavefront);
    }
    const Tiling2D plane{std::llround(e[0]), std::llround(e[1]), e[2] * element, partial, 2 * e[2], partial};
    const Reach reach = reach_of(plane, device.by(time));
    return std::min(e[0], e[1]) <= reach.shorter || area <= reach.resident ? time : kTooLarge * time;
  }

  // In whole elements and K blocks.
  void cut(const Tree& tree, std::int32_t at, const GemmBox& box, BoxTiling& tiling) const {
    const Place& place = tree.places[index(at)];
    if (place.leaf()) {
      const DeviceRates& device = devices_[index(place.device)];
      const auto m = static_cast<double>(box.m()), n = static_cast<double>(box.n()), k = static_cast<double>(box.k());
      tiling.finish = std::max(tiling.finish, time_of(device, {m, n, k}));
      tiling.tiles.push_back({device.index, box});
      return;
    }
    GemmBox low = box, high = box;
    const auto part = [&](std::int64_t total) -> std::int64_t {
      return std::llround(place.share * static_cast<double>(total));
    };
    switch (place.axis) {
      case 0: low.m1 = high.m0 = box.m0 + part(box.m()); break;
      case 1: low.n1 = high.n0 = box.n0 + part(box.n()); break;
      default: low.k1 = high.k0 = std::min(box.k1, box.k0 + kBlockK * part(k_blocks(box.k()))); break;
    }
    if (std::min({low.m(), low.n(), low.k(), high.m(), high.n(), high.k()}) <= 0) {
      tiling.finish = kNever;
      return;
    }
    cut(tree, place.low, low, tiling);
    cut(tree, place.high, high, tiling);
  }

  Work work_;
  GemmBox box_;
  std::span<const DeviceRates> devices_;
  std::vector<Place> next_;
  Draws draws_{2};
  int tries_ = 0;
  Tree tree_, tried_, best_;
};

}  // namespace

BoxTiling tile_by_guillotine_tree(const Work& work, const GemmBox& box, std::span<const DeviceRates> devices) {
  return GuillotineTree(work, box, devices).find();
}

}  // namespace cleave::plan
