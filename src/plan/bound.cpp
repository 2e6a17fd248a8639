// The lower bound: for a finish time T, the most that the devices could do by then, each with its own best block.
//
// Counted in lines: a line is one element of the result over the whole depth, so the work is m*n lines, and a block of
// area a and depth d is worth a * phi(d) lines. Any phi for which every way of cutting a depth into pieces is worth at
// least one line gives a valid bound; phi(d) = d/k counts volume, and cover() sharpens it where depths are a large part
// of k. The server's interface enters with prices per byte (weak duality: any prices give a valid bound); the best
// prices are searched for.
#include "cleave/plan/bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "bisect.hpp"
#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "fit.hpp"
#include "gemm_costs.hpp"
#include "partition.hpp"
#include "power.hpp"

namespace cleave::plan {

namespace {

constexpr double kPrecision = 1e-5;

/// What a byte through the server's interface costs, in lines, and how depth is counted.
struct Terms {
  double out_price = 0, in_price = 0;
  double cover_share = 0;  ///< of the step function in phi
  double cover_steps = 1;
};

/// What the devices do at best by some time.
struct Tally {
  double lines = 0, down = 0, up = 0;
  std::array<double, 3> cover_gain{};  ///< change of lines per cover_share, for cover_steps 1, 2, 3
};

struct Piece {
  double value = 0, lines = 0, down = 0, up = 0, area = 0, depth = 0;
};

class Relaxation {
 public:
  explicit Relaxation(const Work& work)
      : m_(static_cast<double>(work.gemm.m)),
        n_(static_cast<double>(work.gemm.n)),
        k_(static_cast<double>(work.gemm.k)),
        element_(static_cast<double>(size_of(work.wire))),
        partial_(static_cast<double>(size_of(partial_sum_type(work.wire)))),
        blocks_(k_blocks(work.gemm.k)),
        tail_(static_cast<double>(work.gemm.k - (blocks_ - 1) * kBlockK)),
        shorter_(std::min(m_, n_)) {}

  [[nodiscard]] double lines() const { return m_ * n_; }

  [[nodiscard]] Tally tally(std::span<const Power> powers, double finish, const Terms& terms) const {
    Tally total;
    for (const Power& power : powers) {
      const Budget budget = power.by(finish);
      if (!budget.any()) continue;
      const Piece piece = best_piece(budget, terms);
      if (piece.value <= 0) continue;
      total.lines += piece.value;
      total.down += piece.down;
      total.up += piece.up;
      if (piece.depth < k_) {
        for (int p = 1; p <= 3; ++p) {
          total.cover_gain[static_cast<std::size_t>(p - 1)] += piece.area * (cover(piece.depth, p) - piece.depth / k_);
        }
      }
    }
    return total;
  }

 private:
  // Every cut of a line into two pieces or more is worth at least one line: with s steps, pieces of depth d are at
  // least (floor(s d / k) + 1) / (s + 1), because the floors of numbers that add up to s fall short by less than their
  // count.
  [[nodiscard]] double cover(double depth, double steps) const {
    return (std::floor(steps * depth / k_ + 1e-12) + 1) / (steps + 1);
  }

  // Fewest rows and columns together that span an area.
  [[nodiscard]] double strips_for(double area) const {
    const double side = std::sqrt(area);
    return side <= shorter_ ? 2 * side : shorter_ + area / shorter_;
  }
  [[nodiscard]] double area_within(double strips) const {
    const double side = std::min(strips / 2, shorter_);
    return side * std::min(strips - side, std::max(m_, n_));
  }

  void consider(Piece& best, const Budget& budget, const Terms& terms, double depth, bool whole) const {
    const double result = whole ? element_ : partial_;
    const double area =
        std::min({budget.up / result, budget.flops / (2 * depth), area_within(budget.down / (depth * element_))});
    double worth = whole ? 1.0 : depth / k_;
    if (!whole && terms.cover_share > 0) { worth += terms.cover_share * (cover(depth, terms.cover_steps) - worth); }
    const double down = strips_for(area) * depth * element_, up = area * result;
    const double value = area * worth - terms.out_price * down - terms.in_price * up;
    if (value > best.value) best = {value, area * worth, down, up, area, depth};
  }

  // The whole blocks (and the last, shorter one) on both sides of a depth.
  void consider_near(Piece& best, const Budget& budget, const Terms& terms, double depth) const {
    const double last = static_cast<double>(blocks_ - 1);
    const double low = std::clamp(std::floor(depth / kBlock), 1.0, last);
    consider(best, budget, terms, low * kBlock, false);
    if (low < last) consider(best, budget, terms, (low + 1) * kBlock, false);
    if (tail_ == kBlock) return;
    const double tailed = std::clamp(std::floor((depth - tail_) / kBlock), 0.0, last - 1);
    consider(best, budget, terms, tail_ + tailed * kBlock, false);
    if (tailed < last - 1) consider(best, budget, terms, tail_ + (tailed + 1) * kBlock, false);
  }

  [[nodiscard]] Piece best_piece(const Budget& budget, const Terms& terms) const {
    Piece best;
    consider(best, budget, terms, k_, true);
    if (blocks_ == 1) return best;
    // With growing depth first the uplink (or the extents) limits the area, then the processor, then the downlink.
    const double widest = std::min(budget.up / partial_, m_ * n_);
    const double strips = budget.down / element_;
    const double to_downlink = strips / strips_for(widest), to_processor = budget.flops / (2 * widest);
    const double kink = std::min(to_downlink, to_processor);
    consider_near(best, budget, terms, kink);
    if (terms.cover_share > 0) {
      for (double step = 1; step < terms.cover_steps; ++step) {
        const double depth = std::ceil(step * k_ / terms.cover_steps / kBlock - 1e-9) * kBlock;
        if (depth < k_) consider_near(best, budget, terms, depth);
      }
    }
    if (terms.in_price > 0) {
      // The processor limits between kink and this depth, the downlink beyond it.
      double beyond = kink;
      if (to_processor < to_downlink) {
        const double half = budget.flops / 2;
        beyond = strips * strips / (4 * half);
        if (half / beyond > shorter_ * shorter_) beyond = (strips - half / shorter_) / shorter_;
        const double rate = terms.in_price * partial_;
        if (terms.out_price > 0) {
          double rest = std::pow(rate * std::sqrt(half) / (terms.out_price * element_), 2.0 / 3.0);
          if (half / rest > shorter_ * shorter_) {
            rest = std::sqrt(rate * half / (terms.out_price * element_ * shorter_));
          }
          consider_near(best, budget, terms, std::clamp(rest, kink, std::max(kink, beyond)));
        }
        consider_near(best, budget, terms, beyond);
      }
      double rest = 2 * terms.in_price * partial_ * k_;
      if (strips / rest / 2 > shorter_) rest = std::sqrt(terms.in_price * partial_ * k_ * strips / shorter_);
      consider_near(best, budget, terms, std::max(rest, beyond));
    }
    return best;
  }

  static constexpr double kBlock = static_cast<double>(kBlockK);
  double m_, n_, k_, element_, partial_;
  std::int64_t blocks_;
  double tail_, shorter_;
};

// Pairs are whole, and every one costs the same.
double pairs_bound(const Work& work, std::span<const Power> powers) {
  TaskletPlan pair;
  pair.pairs = {0, 1};
  const Volume cost = volume_of(work, pair);
  const auto done = [&](double finish) {
    double total = 0;
    for (const Power& power : powers) {
      const Budget budget = power.by(finish);
      total +=
          std::floor(std::min({budget.down / static_cast<double>(cost.down.value()), budget.flops / cost.flops.value(),
                               budget.up / static_cast<double>(cost.up.value())}));
    }
    return total >= static_cast<double>(work.attention.pairs());
  };
  return least_feasible(done, kPrecision) * (1 - kPrecision);
}

class GemmBound {
 public:
  GemmBound(const Work& work, std::span<const Power> powers, const fleet::ServerProfile& server)
      : relaxation_(work), powers_(powers), server_(server) {}

  double find() {
    solve({});
    if (best_ == kNever) return best_;
    sharpen_cover();
    price_server();
    return best_;
  }

 private:
  // The time by which, under these terms, enough could be done; raises the bound.
  Tally solve(const Terms& terms) {
    Tally last;
    const auto lines = [&](double finish) {
      last = relaxation_.tally(powers_, finish, terms);
      double total = last.lines;  // an unlimited interface has no price
      if (terms.out_price > 0) total += terms.out_price * finish * server_.nic_out.value();
      if (terms.in_price > 0) total += terms.in_price * finish * server_.nic_in.value();
      return total;
    };
    const Bracket bracket = find_rise(lines, relaxation_.lines(), kPrecision, at_);
    at_ = bracket.low;
    best_ = bracket.high == kNever ? kNever : std::max(best_, bracket.low);
    return last;
  }

  void sharpen_cover() {
    const Tally plain = relaxation_.tally(powers_, best_, {});
    for (int steps = 1; steps <= 3; ++steps) {
      if (plain.cover_gain[static_cast<std::size_t>(steps - 1)] >= 0) continue;
      // The bound rises, then falls, with the share: golden section.
      constexpr double kGolden = 0.6180339887498949;
      const auto at = [&](double share) {
        static_cast<void>(solve({.cover_share = share, .cover_steps = static_cast<double>(steps)}));
        return at_;
      };
      double low = 0, high = 1, a = 1 - kGolden, b = kGolden, f_a = at(a), f_b = at(b);
      for (int i = 0; i < 5; ++i) {
        if (f_a > f_b) {
          high = b;
          b = a;
          f_b = f_a;
          f_a = at(a = high - kGolden * (high - low));
        } else {
          low = a;
          a = b;
          f_a = f_b;
          f_b = at(b = low + kGolden * (high - low));
        }
      }
      static_cast<void>(at(1.0));
    }
  }

  // Raises the price of a direction until the devices that still gain ask for no more than the interface carries.
  void price_server() {
    Terms terms;
    Tally used = relaxation_.tally(powers_, best_, terms);
    for (int round = 0; round < 2; ++round) {
      bool raised = raise_price(terms, terms.out_price, server_.nic_out.value(), used, &Tally::down);
      raised = raise_price(terms, terms.in_price, server_.nic_in.value(), used, &Tally::up) || raised;
      if (!raised) return;
    }
  }

  bool raise_price(Terms& terms, double& price, double rate, Tally& used, double Tally::*bytes) {
    const auto over = [&] { return used.*bytes > rate * at_; };
    if (price == 0 && !over()) return false;
    // In logarithms, around what a byte is worth when all are used alike.
    double centre = relaxation_.lines() / (rate * at_), low = centre * 1e-3, high = centre * 10;
    for (int i = 0; i < 12; ++i) {
      price = std::sqrt(low * high);
      used = solve(terms);
      (over() ? low : high) = price;
    }
    return true;
  }

  Relaxation relaxation_;
  std::span<const Power> powers_;
  fleet::ServerProfile server_;
  double best_ = 0, at_ = 1.0;
};

}  // namespace

Seconds lower_bound(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options) {
  std::vector<DeviceState> usable;
  try {
    usable = usable_devices(work, devices, options);
  } catch (const InputError&) { return Seconds(kNever); }
  const std::vector<Power> powers = powers_of(usable, options.server, 1);
  const Volume whole = volume_of(work, whole_of(work));
  // Every operand comes down, and every result goes up, at least once.
  const double server =
      std::max((whole.down / options.server.nic_out).value(), (whole.up / options.server.nic_in).value());
  const double fleet =
      work.kind == WorkKind::gemm ? GemmBound(work, powers, options.server).find() : pairs_bound(work, powers);
  return Seconds(std::max(fleet, server));
}

}  // namespace cleave::plan
