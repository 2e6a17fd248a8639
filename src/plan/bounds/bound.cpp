// The lower bound: for a finish time T, the most that the devices could do by then, each with its own best block.
//
// T is found where that reaches the work. Prices on the bytes through the server's interface (weak duality: any prices
// give a valid bound) and a sharper count of depths raise it; the best of each are searched for.
#include "cleave/plan/bound.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bisect.hpp"
#include "bounds/polygon.hpp"
#include "bounds/shapes.hpp"
#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "device_rates.hpp"
#include "fit.hpp"
#include "partition.hpp"

namespace cleave::plan {

namespace {

constexpr double kPrecision = 1e-5, kRounding = 1e-9;

/// Devices in a sample: their prices are as good as those of all, and take as little time for any fleet.
constexpr std::size_t kSample = 192;

/// So many times what the interface carries is asked for by the devices that set its price.
constexpr double kAmple = 4;

// Pairs are whole, and every one costs the same.
double pairs_bound(const Work& work, std::span<const DeviceRates> device_rates) {
  TaskletPlan pair;
  pair.pairs = {0, 1};
  const Volume cost = volume_of(work, pair);
  const auto done = [&](double finish) {
    double total = 0;
    for (const DeviceRates& rates : device_rates) {
      const Budget budget = rates.by(finish);
      total +=
          std::floor(std::min({budget.down / static_cast<double>(cost.down.value()), budget.flops / cost.flops.value(),
                               budget.up / static_cast<double>(cost.up.value())}));
    }
    return total >= static_cast<double>(work.attention.pairs());
  };
  return least_feasible(done, kPrecision) * (1 - kPrecision);
}

// Terms are searched for on a sample of the devices, because any terms give a valid bound; only the best are solved for
// with all of them.
class GemmBound {
 public:
  GemmBound(const Work& work, const GemmBox& box, std::span<const DeviceRates> device_rates,
            const fleet::ServerProfile& server, double pause)
      : shapes_(work, box),
        all_(device_classes(device_rates)),
        sample_(sample_of(all_, kSample)),
        server_(server),
        pause_(pause) {}

  BoxBound find() {
    double guess = 1;
    for (const DeviceClass& device : sample_) {
      const double earliest = device.rates.earliest();
      guess = std::min(guess, earliest > 0 ? 2 * earliest : 1.0);
    }
    const Bracket first = bracket(sample_, {}, guess, kPrecision);
    if (first.high == kNever) return {kNever, {}, pause_};
    best_ = at_ = first.low;
    sharpen_cover();
    at_ = first.low;
    Terms prices = price_server();
    for (int round = 0; round < 3 && (prices.out_price > 0 || prices.in_price > 0); ++round) {
      // The sample may hold few of those that the interface is for: their own sample sets the prices better.
      const std::vector<DeviceClass> worthy = worthiest(prices);
      if (worthy.size() <= kSample / 2 || 5 * worthy.size() > 4 * all_.size()) break;
      sample_ = sample_of(worthy, kSample);
      best_ = 0;
      const Terms before = std::exchange(prices, price_server());
      const auto close = [](double a, double b) { return a <= 1.05 * b && b <= 1.05 * a; };
      if (close(before.out_price, prices.out_price) && close(before.in_price, prices.in_price)) break;
    }
    return {finish_of_all(), prices, pause_};
  }

 private:
  // What could be done by `finish` under these terms, with what the interface is worth.
  double worth_by(std::span<const DeviceClass> devices, double finish, const Terms& terms, Tally& tally) const {
    tally = shapes_.tally(devices, finish, terms);
    double total = tally.lines;  // an unlimited interface has no price
    if (terms.out_price > 0) total += terms.out_price * carries_by(finish) * server_.nic_out.value();
    if (terms.in_price > 0) total += terms.in_price * carries_by(finish) * server_.nic_in.value();
    return total;
  }

  // Seconds for which the interface can carry what is of use by `finish`.
  [[nodiscard]] double carries_by(double finish) const { return std::max(0.0, finish - pause_); }

  [[nodiscard]] Bracket bracket(std::span<const DeviceClass> devices, const Terms& terms, double guess,
                                double precision) const {
    Tally tally;
    const auto worth = [&](double finish) { return worth_by(devices, finish, terms, tally); };
    // Blocks of whole depths add up to the work exactly; rounding must not make them fall short.
    return find_rise(worth, shapes_.lines() * (1 - kRounding), precision, guess);
  }

  // By a time that is hardly late enough for some to be worth their price, the others need not be asked.
  [[nodiscard]] double finish_of_all() const {
    constexpr double kLater = 1.03;
    std::vector<DeviceClass> worthy;
    for (const DeviceClass& device : all_) {
      const Budget budget = device.rates.by(kLater * best_);
      if (budget.any() && shapes_.best_piece(budget, best_terms_).value > 0) worthy.push_back(device);
    }
    Tally tally;
    const auto worth = [&](double finish) {
      return finish <= kLater * best_ ? worth_by(worthy, finish, best_terms_, tally)
                                      : worth_by(all_, finish, best_terms_, tally);
    };
    return find_rise(worth, shapes_.lines() * (1 - kRounding), kPrecision, best_).low;
  }

  // Devices in order of what they could do for a byte's price, as many as could fill the interface four times.
  [[nodiscard]] std::vector<DeviceClass> worthiest(const Terms& prices) const {
    struct Offer {
      double worth = 0, down = 0, up = 0;
      std::size_t device = 0;
    };
    std::vector<Offer> offers;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const Budget budget = all_[i].rates.by(best_);
      if (!budget.any()) continue;
      Piece piece = shapes_.best_piece(budget, prices);
      if (piece.value <= 0) piece = shapes_.best_piece(budget, {});
      const double price = prices.out_price * piece.down + prices.in_price * piece.up;
      offers.push_back({piece.lines / price, all_[i].count * piece.down, all_[i].count * piece.up, i});
    }
    std::sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.worth > b.worth; });
    double down = 0, up = 0;
    std::vector<DeviceClass> found;
    for (const Offer& offer : offers) {
      if (std::max(down / server_.nic_out.value(), up / server_.nic_in.value()) > kAmple * carries_by(best_)) break;
      down += offer.down;
      up += offer.up;
      found.push_back(all_[offer.device]);
    }
    return found;
  }

  // The time by which, under these terms, the sample could do enough, nearly; remembers the terms that make it latest.
  Tally solve(const Terms& terms) {
    constexpr double kNearly = 3e-4;
    const double lines = shapes_.lines();
    Tally tally;
    double finish = at_, worth = worth_by(sample_, finish, terms, tally), exponent = 2;
    for (int i = 0; i < 8 && std::abs(worth / lines - 1) > kNearly; ++i) {
      const double next = finish * std::clamp(std::pow(lines / worth, 1 / exponent), 0.25, 4.0);
      const double worth_next = worth_by(sample_, next, terms, tally);
      exponent = std::clamp(std::log(worth_next / worth) / std::log(next / finish), 0.5, 8.0);
      if (!std::isfinite(exponent)) exponent = 2;
      finish = next;
      worth = worth_next;
    }
    at_ = finish;
    if (at_ > best_) {
      best_ = at_;
      best_terms_ = terms;
    }
    return tally;
  }

  void sharpen_cover() {
    const Tally plain = shapes_.tally(sample_, best_, {});
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

  // The prices of both directions that make the finish latest.
  Terms price_server() {
    const Tally free = shapes_.tally(sample_, at_, {});
    const bool out = free.down > server_.nic_out.value() * carries_by(at_);
    const bool in = free.up > server_.nic_in.value() * carries_by(at_);
    Terms terms;
    if (!out && !in) return terms;
    best_priced_ = 0;
    if (out && !price_one(&Terms::out_price, &Tally::down, server_.nic_out.value(), &Tally::up, server_.nic_in.value()))
      return priced_;
    if (!out && !price_one(&Terms::in_price, &Tally::up, server_.nic_in.value(), &Tally::down, server_.nic_out.value()))
      return priced_;
    price_both();
    return priced_;
  }

  Tally offer_prices(const Terms& terms) {
    const Tally used = solve(terms);
    if (at_ > best_priced_) {
      best_priced_ = at_;
      priced_ = terms;
    }
    return used;
  }

  // Raises one price until the devices that still gain ask for no more than the interface carries; returns whether they
  // then ask for more than it carries in the other direction.
  bool price_one(double Terms::*price, double Tally::*bytes, double rate, double Tally::*other, double other_rate) {
    const double centre = shapes_.lines() / (rate * std::max(carries_by(at_), 0.01 * at_));
    double low = centre * 1e-3, high = centre * 1.01;
    bool low_over = false, high_over = false;
    for (int i = 0; i < 12 && high > low * 1.02; ++i) {
      Terms terms;
      terms.*price = std::sqrt(low * high);
      const Tally used = offer_prices(terms);
      const bool over = used.*bytes > rate * carries_by(at_);
      (over ? low : high) = terms.*price;
      (over ? low_over : high_over) = used.*other > other_rate * carries_by(at_);
    }
    return low_over || high_over;
  }

  // Prices that make the finish later than these lie on one side of a line through them, because what devices could do
  // at best is a convex function of prices: on the side where less is paid for what they ask for.
  void price_both() {
    constexpr int kCuts = 24;
    // Prices in what the interface is then worth, as a share of all lines.
    const double out_unit = shapes_.lines() / (server_.nic_out.value() * carries_by(best_priced_));
    const double in_unit = shapes_.lines() / (server_.nic_in.value() * carries_by(best_priced_));
    // What the interface is worth is no more than all lines.
    cut_to_best({{0, 0}, {1, 0}, {0, 1}}, kCuts, [&](const Point& worth) {
      const Tally used = offer_prices({.out_price = worth[0] * out_unit, .in_price = worth[1] * in_unit});
      const double carries = carries_by(at_);
      return Point{(server_.nic_out.value() * carries - used.down) * out_unit,
                   (server_.nic_in.value() * carries - used.up) * in_unit};
    });
  }

  Shapes shapes_;
  std::vector<DeviceClass> all_, sample_;
  fleet::ServerProfile server_;
  double pause_;
  double best_ = 0, at_ = 1.0, best_priced_ = 0;
  Terms best_terms_, priced_;
};

}  // namespace

BoxBound bound_box(const Work& work, const GemmBox& box, std::span<const DeviceRates> device_rates,
                   const fleet::ServerProfile& server, double pause) {
  return GemmBound(work, box, device_rates, server, pause).find();
}

BoxBound bound_work(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options) {
  std::vector<DeviceRates> device_rates = device_rates_of(devices, options.server, 1);
  if (work.instances > 1) {  // latencies are paid once, not by each of them
    for (DeviceRates& rates : device_rates) rates.down_at = rates.flops_at = rates.up_at = 0;
  }
  // What the server sends last is under way for a latency, and so is its result; before two have passed no result
  // comes.
  double pause = kNever;
  for (const DeviceState& device : devices) pause = std::min(pause, 2 * device.profile.latency.value());
  const Volume whole = volume_of(work);
  // Every operand comes down, and every result goes up, at least once.
  const double server =
      pause + std::max((whole.down / options.server.nic_out).value(), (whole.up / options.server.nic_in).value());
  BoxBound bound;
  if (work.kind == WorkKind::gemm) {
    bound = bound_box(work, whole_of(work).box, device_rates, options.server, work.instances > 1 ? 0 : pause);
    // The boxes are the same in each of them, so each takes as long.
    if (work.instances > 1) bound.finish *= static_cast<double>(work.instances);
  } else {
    bound.finish = pairs_bound(work, device_rates);
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
