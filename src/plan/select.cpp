// Which devices take part when the server's interface cannot feed them all.
//
// Fewer devices with larger blocks need fewer bytes for the same work: operands are sent less often. The lower bound
// has priced the interface; devices are ordered by what they could do for those prices, and the first so many of them
// take part that devices and interface are done together.
#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "gemm_costs.hpp"
#include "slabs.hpp"

namespace cleave::plan {

namespace {

/// Finish times of devices and interface this close to each other are equal.
constexpr double kEven = 0.01;
constexpr int kMostTries = 6;

double interface_time(const Work& work, const BoxTiling& tiling, const fleet::ServerProfile& server) {
  double down = 0, up = 0;
  for (const BoxTile& tile : tiling.tiles) {
    const GemmCosts costs = gemm_costs(work, tile.box);
    down += static_cast<double>((tile.box.m() + tile.box.n()) * costs.strip_bytes);
    up += static_cast<double>(tile.box.m() * tile.box.n() * costs.result_bytes);
  }
  return std::max(down / server.nic_out.value(), up / server.nic_in.value());
}

}  // namespace

BoxTiling tile_selected(const Work& work, const GemmBox& box, std::span<const Power> devices,
                        const fleet::ServerProfile& server, const BoxBound& bound) {
  const Terms& terms = bound.terms;
  if (terms.out_price <= 0 && terms.in_price <= 0) return tile_gemm(work, box, devices, bound, Effort::thorough);

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
  while (count < offers.size() && down <= server.nic_out.value() * bound.finish &&
         up <= server.nic_in.value() * bound.finish) {
    down += offers[count].down;
    up += offers[count].up;
    ++count;
  }

  BoxTiling best{kNever, {}};
  std::size_t best_count = 0;
  // Offers one more tiling; returns how much longer the interface takes than the devices.
  const auto attempt = [&](std::size_t devices_taken, Effort effort) {
    std::vector<Power> chosen;
    for (std::size_t i = 0; i < devices_taken; ++i) chosen.push_back(offers[i].device);
    BoxTiling tiling = tile_gemm(work, box, chosen, bound, effort);
    const double own = tiling.finish, shared = interface_time(work, tiling, server);
    if (std::max(own, shared) < best.finish) {
      best_count = devices_taken;
      best = std::move(tiling);
      best.finish = std::max(own, shared);
    }
    return own < kNever ? shared / own : 0.0;
  };
  std::size_t low = 0, high = offers.size() + 1;  // too few, too many
  for (int tries = 0; tries < kMostTries && count > low && count < high; ++tries) {
    const double ratio = attempt(count, Effort::quick);
    if (ratio == 0) break;
    (ratio > 1 ? high : low) = count;
    if (std::abs(ratio - 1) < kEven) break;
    const auto next = static_cast<std::size_t>(std::llround(static_cast<double>(count) / ratio));
    const std::size_t middle = low + (high - low) / 2;
    count = next > low && next < high ? next : middle;
  }
  if (best.finish == kNever) return tile_gemm(work, box, devices, bound, Effort::thorough);
  attempt(best_count, Effort::thorough);
  return best;
}

}  // namespace cleave::plan
