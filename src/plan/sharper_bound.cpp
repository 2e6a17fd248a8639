// The lower bound where it matters that blocks are whole: shares of lines that count otherwise, and prices anew.
//
// Any shares and prices give a valid bound. They are searched for one after another on a sample of the devices that are
// worth the prices; the bound itself is then solved for with all of them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bisect.hpp"
#include "covers.hpp"
#include "polygon.hpp"

namespace cleave::plan {

namespace {

constexpr std::size_t kSample = 96;

class SharperBound {
 public:
  SharperBound(const Work& work, const GemmBox& box, std::span<const Power> powers, const fleet::ServerProfile& server,
               const BoxBound& bound, double enough)
      : work_(work), box_(box), server_(server), bound_(bound), enough_(enough), all_(alike(powers)) {
    fastest_ = all_.front().power;
    for (const Alike& device : all_) {
      fastest_.down = std::max(fastest_.down, device.power.down);
      fastest_.up = std::max(fastest_.up, device.power.up);
      fastest_.down_at = std::min(fastest_.down_at, device.power.down_at);
      fastest_.up_at = std::min(fastest_.up_at, device.power.up_at);
    }
  }

  double find() {
    Cover plain;
    plain.out_price = bound_.terms.out_price;
    plain.in_price = bound_.terms.in_price;
    sample_ = sample_of(worthy(plain, kRoom * bound_.finish), kSample);
    if (sample_.empty()) return bound_.finish;
    at_ = bound_.finish;
    const double from = finish_of(plain).finish;
    double latest = from * kGain;
    Cover best;
    // Where one way of counting is first, others gain nothing after it.
    for (const bool edges_first : {false, true}) {
      if (latest > enough_) break;
      best_ = plain;
      latest_ = at_ = from;
      search(edges_first);
      if (latest_ <= latest) continue;
      latest = latest_;
      best = best_;
    }
    if (latest <= from * kGain) return bound_.finish;
    best_ = best;
    latest_ = latest;
    return std::max(bound_.finish, finish_of_all());
  }

 private:
  /// Devices that are worth their price within this factor of the bound are asked for prices.
  static constexpr double kRoom = 1.05;
  /// Less is no gain.
  static constexpr double kGain = 1.0005;

  /// Of what blocks are worth, while terms are searched for, and for the bound itself.
  static constexpr double kRough = 2e-3, kPrecise = 1e-4;

  void search(bool edges_first) {
    for (int round = 0; round < 2; ++round) {
      const double before = latest_;
      if (edges_first) raise(&Cover::edges);
      raise(&Cover::deep_pins);
      if (box_.k() % kBlockK != 0) raise(&Cover::light_tail);
      raise(&Cover::row_pins);
      raise(&Cover::column_pins);
      if (!edges_first) raise(&Cover::edges);
      if (latest_ < before * kGain || latest_ > enough_) return;
      price();
    }
  }

  struct Use {
    double finish = 0, worth = 0, down = 0, up = 0;
  };

  [[nodiscard]] double carries_by(double finish) const { return std::max(0.0, finish - bound_.pause); }

  [[nodiscard]] Use use_by(Covers& covers, const Cover& cover, std::span<const Alike> devices, double finish,
                           double precision) const {
    Use use{finish, 0, 0, 0};
    covers.limit(covers.largest(fastest_.by(finish)));
    for (const auto& [power, count] : devices) {
      const Budget budget = power.by(finish);
      if (!budget.any()) continue;
      const Offer offer = covers.best(budget, precision);
      use.worth += count * offer.value;
      use.down += count * offer.down;
      use.up += count * offer.up;
    }
    if (cover.out_price > 0) use.worth += cover.out_price * carries_by(finish) * server_.nic_out.value();
    if (cover.in_price > 0) use.worth += cover.in_price * carries_by(finish) * server_.nic_in.value();
    return use;
  }

  [[nodiscard]] std::vector<Alike> worthy(const Cover& cover, double finish) const {
    Covers covers(work_, box_, cover);
    covers.limit(covers.largest(fastest_.by(finish)));
    std::vector<Alike> found;
    for (const Alike& device : all_) {
      const Budget budget = device.power.by(finish);
      if (budget.any() && covers.best(budget, kRough).value > 0) found.push_back(device);
    }
    return found;
  }

  // By which the sample could do enough, nearly.
  Use finish_of(const Cover& cover) {
    constexpr double kNearly = 2e-4;
    Covers covers(work_, box_, cover);
    const double lines = covers.lines();
    double power = 2;
    Use use = use_by(covers, cover, sample_, at_, kRough);
    for (int i = 0; i < 8 && std::abs(use.worth / lines - 1) > kNearly; ++i) {
      const double next = use.finish * std::clamp(std::pow(lines / use.worth, 1 / power), 0.5, 2.0);
      const Use then = use_by(covers, cover, sample_, next, kRough);
      power = std::clamp(std::log(then.worth / use.worth) / std::log(next / use.finish), 0.5, 8.0);
      if (!std::isfinite(power)) power = 2;
      use = then;
    }
    at_ = use.finish;
    return use;
  }

  Use offer(const Cover& cover) {
    const Use use = finish_of(cover);
    if (use.finish > latest_) {
      latest_ = use.finish;
      best_ = cover;
    }
    return use;
  }

  // The bound rises, then falls, with a share.
  void raise(double Cover::*share) {
    constexpr double kLeast = 0.06, kMost = 0.98;
    const Cover from = best_;
    Cover all = from;  // the prices that go with all of the share
    if (share == &Cover::edges && from.out_price > 0) {
      Covers covers(work_, box_, from);
      covers.limit(covers.largest(fastest_.by(latest_)));
      all.out_price = covers.worth_of_edges();
      all.in_price = 0;
    }
    const auto at = [&](double value) {
      Cover cover = from;
      cover.*share = value;
      const double moved = (value - from.*share) / (1 - from.*share);
      cover.out_price += moved * (all.out_price - from.out_price);
      cover.in_price += moved * (all.in_price - from.in_price);
      return offer(cover).finish;
    };
    if (from.*share > kMost || latest_ > enough_) return;
    double step = from.*share > 0 ? 0.5 * from.*share : kLeast;
    const double before = latest_;
    if (at(from.*share + step) <= before) {
      if (!(from.*share > 0)) return;
      step = -step;
      if (at(from.*share + step) <= before) step *= 0.5;
    }
    for (int i = 0; i < 5; ++i) {
      const double last = latest_;
      step *= at(std::clamp(best_.*share + step, 0.0, kMost)) > last ? 2 : -0.4;
    }
  }

  // Prices near those that were best so far.
  void price() {
    constexpr double kNear = 0.4;
    constexpr int kCuts = 10;
    const Cover from = best_;
    if (!(from.out_price > 0) && !(from.in_price > 0)) return;
    const auto at = [&](const Point& factors) {
      Cover cover = from;
      cover.out_price *= factors[0];
      cover.in_price *= factors[1];
      const Use use = offer(cover);
      const double carries = carries_by(use.finish);
      return Point{(server_.nic_out.value() * carries - use.down) * from.out_price,
                   (server_.nic_in.value() * carries - use.up) * from.in_price};
    };
    const double low = 1 - kNear, high = 1 + kNear;
    if (from.out_price > 0 && from.in_price > 0) {
      cut_to_best({{low, low}, {high, low}, {high, high}, {low, high}}, kCuts, at);
      return;
    }
    const std::size_t priced = from.out_price > 0 ? 0 : 1;
    double a = low, b = high;
    for (int i = 0; i < kCuts / 2; ++i) {
      const double middle = (a + b) / 2;
      (at({middle, middle})[priced] > 0 ? b : a) = middle;
    }
  }

  [[nodiscard]] double finish_of_all() const {
    constexpr double kLater = 1.03, kPrecision = 1e-5, kRounding = 1e-9;
    Covers covers(work_, box_, best_);
    const double latest = kLater * latest_;
    const std::vector<Alike> found = worthy(best_, latest);
    const auto worth = [&](double finish) {
      return use_by(covers, best_, finish <= latest ? std::span<const Alike>(found) : all_, finish, kPrecise).worth;
    };
    return find_rise(worth, covers.lines() * (1 - kRounding), kPrecision, latest_).low;
  }

  const Work& work_;
  GemmBox box_;
  fleet::ServerProfile server_;
  const BoxBound& bound_;
  double enough_;
  std::vector<Alike> all_, sample_;
  Power fastest_;  // the best of every rate
  Cover best_;
  double latest_ = 0, at_ = 0;
};

}  // namespace

double sharper_bound(const Work& work, const GemmBox& box, std::span<const Power> powers,
                     const fleet::ServerProfile& server, const BoxBound& bound, double enough) {
  return SharperBound(work, box, powers, server, bound, enough).find();
}

}  // namespace cleave::plan
