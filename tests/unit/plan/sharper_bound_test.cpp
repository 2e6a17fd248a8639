// The sharper lower bound: how it counts blocks, and that nothing is done before it, by exhaustion where there are few
// devices, and by every plan elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "bounds/cover_bound.hpp"
#include "cleave/plan/bound.hpp"
#include "fit.hpp"
#include "fleets.hpp"
#include "partition.hpp"

namespace cleave::plan {
namespace {

double sharper(const Work& work, const std::vector<DeviceState>& devices, const PlanOptions& options) {
  const std::vector<DeviceState> usable = usable_devices(work, devices, options);
  return sharper_bound(work, whole_of(work).box, device_rates_of(usable, options.server, 1), options.server,
                       bound_work(work, usable, options), std::numeric_limits<double>::infinity());
}

class Draw {
 public:
  explicit Draw(std::uint32_t index) : random_(77, Purpose::test, index) {}
  double real(double low, double high) { return low + (high - low) * random_.uniform(next_++); }
  double spread(double low, double high) { return low * std::pow(high / low, random_.uniform(next_++)); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_.below(next_++, n)); }
  CoverWeights cover() {
    const auto share = [&] { return below(2) == 0 ? 0.0 : real(0, 1); };
    return {share(), share(), share(), share(), share(), 0, 0};
  }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

// Cuts a box at random places into `parts` boxes.
void cut(Draw& draw, const GemmBox& box, std::int64_t parts, std::vector<GemmBox>& boxes) {
  const std::int64_t blocks = k_blocks(box.k());
  const std::int64_t side = draw.below(3);
  const std::int64_t extent = side == 0 ? box.m() : side == 1 ? box.n() : blocks;
  if (parts == 1 || extent < 2) return boxes.push_back(box);
  const std::int64_t at = 1 + draw.below(extent - 1);
  GemmBox low = box, high = box;
  if (side == 0) low.m1 = high.m0 = box.m0 + at;
  if (side == 1) low.n1 = high.n0 = box.n0 + at;
  if (side == 2) low.k1 = high.k0 = box.k0 + at * kBlockK;
  const std::int64_t first = 1 + draw.below(parts - 1);
  cut(draw, low, first, boxes);
  cut(draw, high, parts - first, boxes);
}

TEST(SharperBound, BlocksOfAnyTilingCountAsAllLinesAtLeast) {
  for (std::uint32_t i = 0; i < 400; ++i) {
    Draw draw(i);
    const Work work = gemm_work(2 + draw.below(30), 2 + draw.below(30), 1000 + draw.below(6000));
    const GemmBox box = whole_of(work).box;
    CoverBound covers(work, box, draw.cover());
    std::vector<GemmBox> boxes;
    cut(draw, box, 1 + draw.below(9), boxes);
    std::int64_t largest = 0;
    for (const GemmBox& b : boxes) largest = std::max(largest, b.m() * b.n());
    covers.limit(static_cast<double>(largest));
    double lines = 0;
    for (const GemmBox& b : boxes) {
      lines += covers.counted(static_cast<double>(b.m()), static_cast<double>(b.n()), static_cast<double>(b.k()));
    }
    EXPECT_GE(lines, covers.lines() * (1 - 1e-12)) << i;
  }
  // Five blocks around each other, that no straight cut parts.
  for (std::uint32_t i = 0; i < 50; ++i) {
    Draw draw(i);
    CoverBound covers(gemm_work(3, 3, 768), {0, 3, 0, 3, 0, 768}, draw.cover());
    covers.limit(2);
    EXPECT_GE(4 * covers.counted(1, 2, 768) / 2 + 4 * covers.counted(2, 1, 768) / 2 + covers.counted(1, 1, 768), 9);
  }
}

TEST(SharperBound, NoBlockIsWorthMoreThanTheBest) {
  for (std::uint32_t i = 0; i < 300; ++i) {
    Draw draw(i);
    const Work work = gemm_work(50 + draw.below(3000), 50 + draw.below(3000), 500 + draw.below(20000));
    const GemmBox box = whole_of(work).box;
    CoverWeights cover = draw.cover();
    const double lines = static_cast<double>(box.m() * box.n());
    const Budget budget{draw.spread(1e-3, 1) * 2 * static_cast<double>((box.m() + box.n()) * box.k()),
                        draw.spread(1e-3, 1) * 2 * lines * static_cast<double>(box.k()),
                        draw.spread(1e-3, 1) * 4 * lines, 1e12, kBalancedWavefront};
    if (draw.below(3) > 0) cover.out_price = draw.spread(0.01, 1) * lines / budget.down;
    if (draw.below(3) > 0) cover.in_price = draw.spread(0.01, 1) * lines / budget.up;
    const CoverBound covers(work, box, cover);
    const double best = covers.best(budget, 1e-4).value;
    for (int block = 0; block < 2000; ++block) {
      const std::int64_t blocks = 1 + draw.below(k_blocks(box.k()));
      const auto whole = static_cast<double>(box.k());
      double k = std::min(whole, static_cast<double>(blocks * kBlockK));
      const double missing = static_cast<double>(k_blocks(box.k()) * kBlockK) - whole;
      if (k < whole && draw.below(2) == 0) k -= missing;  // with the last of the blocks
      const double result = k < whole ? 4 : 2;
      double r = std::round(draw.spread(1, static_cast<double>(box.m())));
      double c = draw.spread(1, static_cast<double>(box.n()));
      // At a limit more often than not.
      if (draw.below(2) == 0) {
        c = std::min({static_cast<double>(box.n()), budget.down / (2 * k) - r, budget.up / result / r,
                      budget.flops / (2 * k) / r});
      }
      const double down = 2 * (r + c) * k, up = result * r * c;
      if (c < 1 || down > budget.down || up > budget.up || 2 * r * c * k > budget.flops) continue;
      EXPECT_LE(covers.counted(r, c, k) - cover.out_price * down - cover.in_price * up, best * (1 + 1e-9)) << i;
    }
  }
}

// The least time in which few devices can do a box with a block each: every way to part it, in steps of its units.
class Exhaustion {
 public:
  Exhaustion(const Work& work, std::array<std::int64_t, 2> units, const std::vector<DeviceState>& devices)
      : work_(work), units_(units), devices_(devices) {}

  double least() { return least({units_[0], units_[1], k_blocks(work_.gemm.k), 1}, (1U << devices_.size()) - 1); }

 private:
  using Part = std::array<std::int64_t, 4>;  // units of m and n, blocks, and whether it holds the last block

  double least(const Part& part, unsigned devices) {
    if (devices == 0) return std::numeric_limits<double>::infinity();
    const auto [found, is_new] = known_.try_emplace({part, devices}, std::numeric_limits<double>::infinity());
    if (!is_new) return found->second;
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if ((devices >> i & 1U) != 0) best = std::min(best, alone(part, devices_[i]));
    }
    for (std::size_t side = 0; side < 3; ++side) {
      for (std::int64_t at = 1; at < part[side]; ++at) {
        Part low = part, high = part;
        low[side] = at;
        high[side] = part[side] - at;
        if (side == 2) low[3] = 0;
        for (unsigned some = (devices - 1) & devices; some > 0; some = (some - 1) & devices) {
          const double first = least(low, some);
          if (first < best) best = std::min(best, std::max(first, least(high, devices & ~some)));
        }
      }
    }
    return known_[{part, devices}] = best;
  }

  [[nodiscard]] double alone(const Part& part, const DeviceState& device) const {
    TaskletPlan piece;
    const std::int64_t blocks = k_blocks(work_.gemm.k);
    const std::int64_t k1 = part[3] != 0 ? work_.gemm.k : part[2] * kBlockK;
    const std::int64_t k0 = part[3] != 0 ? (blocks - part[2]) * kBlockK : 0;
    piece.box = {0, work_.gemm.m / units_[0] * part[0], 0, work_.gemm.n / units_[1] * part[1], k0, k1};
    const Volume volume = volume_of(work_, piece);
    return std::max({(volume.down / device.profile.downlink).value(), (volume.flops / device.profile.compute).value(),
                     (volume.up / device.profile.uplink).value()});
  }

  const Work& work_;
  std::array<std::int64_t, 2> units_;
  const std::vector<DeviceState>& devices_;
  std::map<std::pair<Part, unsigned>, double> known_;
};

TEST(SharperBound, NothingIsDoneBeforeItByFewDevices) {
  PlanOptions options;
  options.server.nic_out = options.server.nic_in = fleet::kUnlimitedRate;
  int raised = 0;
  for (std::uint32_t i = 0; i < 60; ++i) {
    Draw draw(i);
    const Work work = gemm_work(480 * (1 + draw.below(8)), 480 * (1 + draw.below(8)), 300 + draw.below(3200));
    std::vector<DeviceState> devices;
    const std::int64_t count = 2 + draw.below(3);
    for (std::int64_t d = 0; d < count; ++d) {
      devices.push_back(
          device(d, draw.spread(1e10, 1e13), std::int64_t{1} << 40, draw.spread(1e7, 1e8), draw.spread(1e7, 1e8)));
    }
    const double bound = sharper(work, devices, options);
    EXPECT_LE(bound, Exhaustion(work, {12, 8}, devices).least() * (1 + 2e-4)) << i;
    if (bound > 1.02 * lower_bound(work, devices, options).value()) ++raised;
  }
  EXPECT_GT(raised, 10);
}

TEST(SharperBound, PlansAreNotBelowIt) {
  for (std::uint32_t i = 0; i < 60; ++i) {
    Draw draw(1000 + i);
    const Work work =
        gemm_work(static_cast<std::int64_t>(draw.spread(50, 20000)), static_cast<std::int64_t>(draw.spread(50, 20000)),
                  static_cast<std::int64_t>(draw.spread(700, 60000)));
    std::vector<DeviceState> devices;
    const auto count = static_cast<std::int64_t>(draw.spread(2, 300));
    for (std::int64_t d = 0; d < count; ++d) {
      devices.push_back(
          device(d, draw.spread(1e12, 1e13), std::int64_t{1} << 32, draw.spread(1e7, 2e8), draw.spread(5e6, 2e8)));
    }
    PlanOptions options;
    options.server.nic_out = options.server.nic_in = BytesPerSecond(draw.spread(1e8, 2e10));
    const double bound = sharper(work, devices, options);
    EXPECT_GE(bound, lower_bound(work, devices, options).value() * (1 - 1e-9)) << i;
    EXPECT_GE(plan_operation(work, devices, options).busy.value(), bound * (1 - 2e-4)) << i;
  }
}

}  // namespace
}  // namespace cleave::plan
