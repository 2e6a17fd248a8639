// The lower bound: for a finish time T, the most that the devices could do by then, each with its own best block.
//
// T is found where that reaches the work. Prices on the bytes through the server's interface (weak duality: any prices
// give a valid bound) and a sharper count of depths raise it; the best of each are searched for.
#include "cleave/plan/bound.hpp"

#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "fit.hpp"
#include "partition.hpp"
#include "power.hpp"
#include "shapes.hpp"

namespace cleave::plan {

namespace {

constexpr double kPrecision = 1e-5, kRounding = 1e-9;

/// Above so many devices the count of depths is not sharpened: the bound stays valid, and takes seconds less.
constexpr std::size_t kMostSharpened = 20000;

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
  GemmBound(const Work& work, const GemmBox& box, std::span<const Power> powers, const fleet::ServerProfile& server)
      : shapes_(work, box), powers_(powers), server_(server) {
    for (const Power& power : powers) at_ = std::min(at_, power.earliest() > 0 ? 2 * power.earliest() : 1.0);
  }

  BoxBound find() {
    static_cast<void>(solve({}));
    if (best_ == kNever) return {kNever, {}};
    const double unlimited = best_;
    if (powers_.size() <= kMostSharpened) sharpen_cover();
    at_ = unlimited;
    const Terms prices = price_server();
    return {best_, prices};
  }

 private:
  // The time by which, under these terms, enough could be done; raises the bound.
  Tally solve(const Terms& terms) {
    Tally last;
    const auto lines = [&](double finish) {
      last = shapes_.tally(powers_, finish, terms);
      double total = last.lines;  // an unlimited interface has no price
      if (terms.out_price > 0) total += terms.out_price * finish * server_.nic_out.value();
      if (terms.in_price > 0) total += terms.in_price * finish * server_.nic_in.value();
      return total;
    };
    // Blocks of whole depths add up to the work exactly; rounding must not make them fall short.
    const Bracket bracket = find_rise(lines, shapes_.lines() * (1 - kRounding), kPrecision, at_);
    at_ = bracket.low;
    best_ = bracket.high == kNever ? kNever : std::max(best_, bracket.low);
    return last;
  }

  void sharpen_cover() {
    const Tally plain = shapes_.tally(powers_, best_, {});
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
  Terms price_server() {
    Terms terms;
    Tally used = shapes_.tally(powers_, at_, terms);
    for (int round = 0; round < 2; ++round) {
      bool raised = raise_price(terms, terms.out_price, server_.nic_out.value(), used, &Tally::down);
      raised = raise_price(terms, terms.in_price, server_.nic_in.value(), used, &Tally::up) || raised;
      if (!raised) break;
    }
    return terms;
  }

  bool raise_price(Terms& terms, double& price, double rate, Tally& used, double Tally::*bytes) {
    const auto over = [&] { return used.*bytes > rate * at_; };
    if (price == 0 && !over()) return false;
    // In logarithms, around what a byte is worth when all are used alike.
    double centre = shapes_.lines() / (rate * at_), low = centre * 1e-3, high = centre * 10;
    for (int i = 0; i < 12; ++i) {
      price = std::sqrt(low * high);
      used = solve(terms);
      (over() ? low : high) = price;
    }
    return true;
  }

  Shapes shapes_;
  std::span<const Power> powers_;
  fleet::ServerProfile server_;
  double best_ = 0, at_ = 1.0;
};

}  // namespace

BoxBound bound_box(const Work& work, const GemmBox& box, std::span<const Power> powers,
                   const fleet::ServerProfile& server) {
  return GemmBound(work, box, powers, server).find();
}

BoxBound bound_work(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options) {
  const std::vector<Power> powers = powers_of(devices, options.server, 1);
  const Volume whole = volume_of(work, whole_of(work));
  // Every operand comes down, and every result goes up, at least once.
  const double server =
      std::max((whole.down / options.server.nic_out).value(), (whole.up / options.server.nic_in).value());
  BoxBound bound;
  if (work.kind == WorkKind::gemm) {
    bound = bound_box(work, whole_of(work).box, powers, options.server);
  } else {
    bound.finish = pairs_bound(work, powers);
  }
  bound.finish = std::max(bound.finish, server);
  return bound;
}

Seconds lower_bound(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options) {
  try {
    return Seconds(bound_work(work, usable_devices(work, devices, options), options).finish);
  } catch (const InputError&) { return Seconds(kNever); }
}

}  // namespace cleave::plan
