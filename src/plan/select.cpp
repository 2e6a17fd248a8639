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
#include "slabs.hpp"

namespace cleave::plan {

namespace {

/// Finish times of devices and interface this close to each other are equal.
constexpr double kEven = 0.01;
constexpr int kMostTries = 6;

/// Directions are evened out where the finish is beyond the bound by this factor, and they differ by less than that.
constexpr double kGoodEnough = 1.04, kOneSided = 0.5;

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

BoxTiling tile_selected(const Work& work, const GemmBox& box, std::span<const Power> devices,
                        const fleet::ServerProfile& server, const BoxBound& bound) {
  const Terms& terms = bound.terms;
  if (terms.out_price <= 0 && terms.in_price <= 0)
    return tile_gemm(work, box, devices, server, bound, Effort::thorough);

  struct Offer {
    double worth = 0, down = 0, up = 0;
    Power device;
  };
  const Shapes shapes(work, box);
  std::vector<Offer> offers;
  for (const Power& device : devices) {
    const Budget budget = device.by(bound.finish);
    if (!budget.any()) continue;
    Piece piece = shapes.best_piece(budget, terms);
    if (piece.value <= 0) piece = shapes.best_piece(budget, {});
    const double price = terms.out_price * piece.down + terms.in_price * piece.up;
    offers.push_back({piece.lines / price, piece.down, piece.up, device});
  }
  std::stable_sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.worth > b.worth; });

  double down = 0, up = 0;
  std::size_t count = 0;
  const double carries = bound.finish - bound.pause;
  while (count < offers.size() && down <= server.nic_out.value() * carries && up <= server.nic_in.value() * carries) {
    down += offers[count].down;
    up += offers[count].up;
    ++count;
  }

  BoxTiling best{kNever, {}};
  std::size_t best_count = 0;
  BoxBound wanted = bound, best_wanted = bound;
  // Offers one more tiling; returns how much longer the interface takes than the devices, and in than out.
  const auto attempt = [&](std::size_t devices_taken, Effort effort) -> std::pair<double, double> {
    std::vector<Power> chosen;
    for (std::size_t i = 0; i < devices_taken; ++i) chosen.push_back(offers[i].device);
    BoxTiling tiling = tile_gemm(work, box, chosen, server, wanted, effort);
    if (tiling.finish == kNever) return {0, 0};
    const ServerBytes bytes = server_bytes(work, tiling);
    const double own = tiling.finish, shared = bytes.time(server) + bound.pause;
    if (std::max(own, shared) < best.finish) {
      best_count = devices_taken;
      best_wanted = wanted;
      best = std::move(tiling);
      best.finish = std::max(own, shared);
    }
    return {shared / own, bytes.in / server.nic_in.value() / (bytes.out / server.nic_out.value())};
  };
  double tilt = 1;
  const auto settle = [&](int most_tries) {
    std::size_t low = 0, high = offers.size() + 1;  // too few, too many
    for (int tries = 0; tries < most_tries && count > low && count < high; ++tries) {
      const auto [ratio, in_out] = attempt(count, Effort::quick);
      if (ratio == 0) break;
      tilt = in_out;
      (ratio > 1 ? high : low) = count;
      if (std::abs(ratio - 1) < kEven) break;
      const auto next = static_cast<std::size_t>(std::llround(static_cast<double>(count) / ratio));
      const std::size_t middle = low + (high - low) / 2;
      count = next > low && next < high ? next : middle;
    }
  };
  settle(kMostTries);
  if (best.finish == kNever) return tile_gemm(work, box, devices, server, bound, Effort::thorough);
  // Deeper blocks need fewer bytes up and more down.
  const auto uneven = [](double ratio) { return ratio > 1 ? ratio - 1 : 1 / ratio - 1; };
  for (int round = 0; round < 2 && best.finish > kGoodEnough * bound.finish; ++round) {
    if (uneven(tilt) < 2 * kEven || uneven(tilt) > kOneSided) break;
    wanted.terms.deepen *= std::pow(tilt, 0.7);
    count = best_count;
    settle(kMostTries / 2);
  }
  wanted = best_wanted;
  attempt(best_count, Effort::thorough);
  return best;
}

}  // namespace cleave::plan
