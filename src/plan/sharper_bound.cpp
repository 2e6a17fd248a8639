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

constexpr std::size_t kSample = 64;

class SharperBound {
 public:
  SharperBound(const Work& work, const GemmBox& box, std::span<const Power> powers, const fleet::ServerProfile& server,
               const BoxBound& bound)
      : work_(work), box_(box), server_(server), bound_(bound), all_(alike(powers)) {}

  double find() {
    best_.out_price = bound_.terms.out_price;
    best_.in_price = bound_.terms.in_price;
    sample_ = sample_of(worthy(best_, kRoom * bound_.finish), kSample);
    if (sample_.empty()) return bound_.finish;
    latest_ = at_ = bound_.finish;
    latest_ = finish_of(best_).finish;
    const double plain = latest_;
    for (int round = 0; round < 2; ++round) {
      const double before = latest_;
      raise(&Cover::deep_pins);
      raise(&Cover::row_pins);
      raise(&Cover::column_pins);
      raise(&Cover::edges);
      if (latest_ < plain * kGain) return bound_.finish;
      price();
      if (latest_ < before * kGain) break;
    }
    return std::max(bound_.finish, finish_of_all());
  }

 private:
  /// Devices that are worth their price within this factor of the bound are asked for prices.
  static constexpr double kRoom = 1.05;
  /// Less is no gain.
  static constexpr double kGain = 1.0005;

  struct Use {
    double finish = 0, worth = 0, down = 0, up = 0;
  };

  [[nodiscard]] double carries_by(double finish) const { return std::max(0.0, finish - bound_.pause); }

  [[nodiscard]] Use use_by(const Covers& covers, const Cover& cover, std::span<const Alike> devices,
                           double finish) const {
    Use use{finish, 0, 0, 0};
    for (const auto& [power, count] : devices) {
      const Budget budget = power.by(finish);
      if (!budget.any()) continue;
      const Offer offer = covers.best(budget);
      use.worth += count * offer.value;
      use.down += count * offer.down;
      use.up += count * offer.up;
    }
    if (cover.out_price > 0) use.worth += cover.out_price * carries_by(finish) * server_.nic_out.value();
    if (cover.in_price > 0) use.worth += cover.in_price * carries_by(finish) * server_.nic_in.value();
    return use;
  }

  [[nodiscard]] std::vector<Alike> worthy(const Cover& cover, double finish) const {
    const Covers covers(work_, box_, cover);
    std::vector<Alike> found;
    for (const Alike& device : all_) {
      const Budget budget = device.power.by(finish);
      if (budget.any() && covers.best(budget).value > 0) found.push_back(device);
    }
    return found;
  }

  // By which the sample could do enough, nearly.
  Use finish_of(const Cover& cover) {
    constexpr double kNearly = 2e-4;
    const Covers covers(work_, box_, cover);
    const double lines = covers.lines();
    double power = 2;
    Use use = use_by(covers, cover, sample_, at_);
    for (int i = 0; i < 8 && std::abs(use.worth / lines - 1) > kNearly; ++i) {
      const double next = use.finish * std::clamp(std::pow(lines / use.worth, 1 / power), 0.5, 2.0);
      const Use then = use_by(covers, cover, sample_, next);
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
    constexpr double kLeast = 0.06;
    const Cover from = best_;
    const auto at = [&](double value) {
      Cover cover = from;
      cover.*share = value;
      return offer(cover).finish;
    };
    double step = from.*share > 0 ? 0.5 * from.*share : kLeast;
    const double before = latest_;
    if (at(from.*share + step) <= before) {
      if (!(from.*share > 0)) return;
      step = -step;
      if (at(from.*share + step) <= before) step *= 0.5;
    }
    for (int i = 0; i < 4; ++i) {
      const double last = latest_;
      if (at(std::clamp(best_.*share + step, 0.0, 1.0)) <= last) step *= -0.5;
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
    const Covers covers(work_, box_, best_);
    const double latest = kLater * latest_;
    const std::vector<Alike> found = worthy(best_, latest);
    const auto worth = [&](double finish) {
      return use_by(covers, best_, finish <= latest ? std::span<const Alike>(found) : all_, finish).worth;
    };
    return find_rise(worth, covers.lines() * (1 - kRounding), kPrecision, latest_).low;
  }

  const Work& work_;
  GemmBox box_;
  fleet::ServerProfile server_;
  const BoxBound& bound_;
  std::vector<Alike> all_, sample_;
  Cover best_;
  double latest_ = 0, at_ = 0;
};

}  // namespace

double sharper_bound(const Work& work, const GemmBox& box, std::span<const Power> powers,
                     const fleet::ServerProfile& server, const BoxBound& bound) {
  return SharperBound(work, box, powers, server, bound).find();
}

}  // namespace cleave::plan
