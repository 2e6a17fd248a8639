// Devices with little memory do several tasklets, one after another: the box is cut into equal parts, and every part is
// tiled over all devices in turn.
//
// One tile to a device would have to be cut again where memory cannot hold it, and halves of tiles of unlike devices
// fit each other badly. Parts are halved along the side that gains most while that ends the whole earlier.
#include <algorithm>
#include <array>
#include <map>

#include "bisect.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

namespace {

// Set on inputs/sim/small-memory.yaml (bench/search_stages).

/// Finishes this close to the bound need no rounds, and halving must gain as much.
constexpr double kGoodWithoutRounds = 1.1, kLeastGainOfHalving = 0.99;

using Parts = std::array<std::int64_t, 3>;  // along m, n and k

class DealtRounds {
 public:
  explicit DealtRounds(const TilingProblem& problem)
      : problem_(problem), box_(problem.box), extents_{problem.box.m(), problem.box.n(), k_blocks(problem.box.k())} {}

  // The parts that are done earliest; kNever when even the smallest do not fit.
  double halve(double finish) {
    Parts parts{1, 1, 1};
    while (true) {
      Parts best = parts;
      double soonest = kNever, shortest = kNever;
      // One side, or two at once: that may gain where neither does alone.
      for (std::size_t one = 0; one < 3; ++one) {
        for (std::size_t other = one; other < 3; ++other) {
          Parts tried = parts;
          tried[one] *= 2;
          if (other != one) tried[other] *= 2;
          if (tried[one] > extents_[one] || tried[other] > extents_[other]) continue;
          const double at = finish_of(tried);
          // Where none fits yet, the longest side is halved.
          const double length = static_cast<double>(extents_[one] * (one == 2 ? kBlockK : 1));
          const double shortness = other != one ? kNever : static_cast<double>(parts[one]) / length;
          if (at < soonest || (soonest == kNever && at == kNever && shortness < shortest)) {
            best = tried;
            soonest = at;
            shortest = shortness;
          }
        }
      }
      if (best == parts || (finish < kNever && soonest > finish * kLeastGainOfHalving)) break;
      parts = best;
      finish = soonest;
    }
    parts_ = parts;
    return finish;
  }

  [[nodiscard]] BoxTiling tile() const {
    std::map<Parts, BoxTiling> known;  // by extents: parts differ by one row, column or block
    BoxTiling all{0, {}};
    for_each_part([&](const GemmBox& part) {
      const auto [found, is_new] = known.try_emplace({part.m(), part.n(), part.k()});
      if (is_new) {
        found->second = tile_gemm(share_of(part, parts_), {});
        for (BoxTile& tile : found->second.tiles) tile.box = moved(tile.box, part, -1);
      }
      all.finish += found->second.finish;
      for (const BoxTile& tile : found->second.tiles) all.tiles.push_back({tile.device, moved(tile.box, part, 1)});
    });
    return all;
  }

 private:
  static GemmBox moved(GemmBox box, const GemmBox& part, std::int64_t sign) {
    box.m0 += sign * part.m0;
    box.m1 += sign * part.m0;
    box.n0 += sign * part.n0;
    box.n1 += sign * part.n0;
    box.k0 += sign * part.k0;
    box.k1 += sign * part.k0;
    return box;
  }

  [[nodiscard]] TilingProblem share_of(const GemmBox& part, const Parts& parts) const {
    TilingProblem share = problem_;
    share.box = part;
    share.bound.finish /= static_cast<double>(parts[0] * parts[1] * parts[2]);
    share.bound.pause = 0;
    return share;
  }

  // Of all parts, were they as large as the largest. Sides that are halved in another order come to the same parts.
  [[nodiscard]] double finish_of(const Parts& parts) {
    const auto [found, is_new] = finishes_.try_emplace(parts, kNever);
    if (is_new) found->second = find_finish(parts);
    return found->second;
  }
  [[nodiscard]] double find_finish(const Parts& parts) const {
    const auto largest = [&](std::size_t side) { return (extents_[side] + parts[side] - 1) / parts[side]; };
    const GemmBox part{box_.m0, box_.m0 + largest(0),
                       box_.n0, box_.n0 + largest(1),
                       box_.k0, std::min(box_.k1, box_.k0 + largest(2) * kBlockK)};
    const BoxTiling tiling = tile_gemm(share_of(part, parts), {});
    if (!tiling.in_memory || tiling.finish == kNever) return kNever;
    return std::max(tiling.finish, server_bytes(problem_.work, tiling).time(problem_.server)) *
           static_cast<double>(parts[0] * parts[1] * parts[2]);
  }

  template <class Visit>
  void for_each_part(const Visit& visit) const {
    const auto at = [&](std::size_t side, std::int64_t i) { return extents_[side] * i / parts_[side]; };
    for (std::int64_t k = 0; k < parts_[2]; ++k) {
      for (std::int64_t i = 0; i < parts_[0]; ++i) {
        for (std::int64_t j = 0; j < parts_[1]; ++j) {
          visit(GemmBox{box_.m0 + at(0, i), box_.m0 + at(0, i + 1), box_.n0 + at(1, j), box_.n0 + at(1, j + 1),
                        box_.k0 + at(2, k) * kBlockK, std::min(box_.k1, box_.k0 + at(2, k + 1) * kBlockK)});
        }
      }
    }
  }

  TilingProblem problem_;
  GemmBox box_;
  Parts extents_, parts_{1, 1, 1};
  std::map<Parts, double> finishes_;
};

}  // namespace

BoxTiling tile_in_rounds(const TilingProblem& problem) {
  BoxTiling once = tile_selected(problem);
  if (!problem.stages.runs(SearchStage::rounds)) return once;
  if (once.in_memory && once.finish <= kGoodWithoutRounds * problem.bound.finish) return once;
  // A tile that streams holds the strips of its shorter side: at most half of what comes down.
  const bool limited = std::any_of(problem.devices.begin(), problem.devices.end(), [&](const DeviceRates& device) {
    return device.memory < device.by(problem.bound.finish).down / 2;
  });
  if (!limited) return once;
  DealtRounds rounds(problem);
  const double before = once.in_memory ? once.finish : kNever;
  const double finish = rounds.halve(before);
  if (finish >= before) return once;
  return rounds.tile();
}

}  // namespace cleave::plan
