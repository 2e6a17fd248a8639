// The lower bound where it matters that blocks are whole: shares of lines that count otherwise, and prices anew.
//
// Any shares and prices give a valid bound. They are searched for one after another on a sample of the devices that are
// worth the prices; the bound itself is then solved for with all of them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bisect.hpp"
#include "bounds/cover_bound.hpp"
#include "bounds/polygon.hpp"

namespace cleave::plan {

namespace {

constexpr std::size_t kSharperSample = 96;

class SharperBound {
 public:
  SharperBound(const Work& work, const GemmBox& box, std::span<const DeviceRates> device_rates,
               const fleet::ServerProfile& server, const BoxBound& bound, double enough)
      : work_(work), box_(box), server_(server), bound_(bound), enough_(enough), all_(device_classes(device_rates)) {
    fastest_ = all_.front().rates;
    for (const DeviceClass& device : all_) {
      fastest_.down = std::max(fastest_.down, device.rates.down);
      fastest_.up = std::max(fastest_.up, device.rates.up);
      fastest_.down_at = std::min(fastest_.down_at, device.rates.down_at);
      fastest_.up_at = std::min(fastest_.up_at, device.rates.up_at);
    }
  }

  double find() {
    CoverWeights plain;
    plain.out_price = bound_.terms.out_price;
    plain.in_price = bound_.terms.in_price;
    sample_ = sample_of(worthy(plain, kRoom * bound_.finish), kSharperSample);
    if (sample_.empty()) return bound_.finish;
    at_ = bound_.finish;
    const double from = finish_of(plain).finish;
    double latest = from * kGain;
    CoverWeights best;
    // Where one way of counting is first, others gain nothing after it.
    for (const bool perimeter_first : {false, true}) {
      if (latest > enough_) break;
      best_ = plain;
      latest_ = at_ = from;
      search(perimeter_first);
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

  void search(bool perimeter_first) {
    for (int round = 0; round < 2; ++round) {
      const double before = latest_;
      if (perimeter_first) raise(&CoverWeights::perimeter_weight);
      raise(&CoverWeights::depth_end_weight);
      if (box_.k() % kBlockK != 0) raise(&CoverWeights::tail_discount);
      raise(&CoverWeights::row_end_weight);
      raise(&CoverWeights::column_end_weight);
      if (!perimeter_first) raise(&CoverWeights::perimeter_weight);
      if (latest_ < before * kGain || latest_ > enough_) return;
      price();
    }
  }

  struct Use {
    double finish = 0, worth = 0, down = 0, up = 0;
  };

  [[nodiscard]] double carries_by(double finish) const { return std::max(0.0, finish - bound_.pause); }

  [[nodiscard]] Use use_by(CoverBound& covers, const CoverWeights& cover, std::span<const DeviceClass> devices,
                           double finish, double precision) const {
    Use use{finish, 0, 0, 0};
    covers.limit(covers.largest(fastest_.by(finish)));
    for (const auto& [rates, count] : devices) {
      const Budget budget = rates.by(finish);
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

  [[nodiscard]] std::vector<DeviceClass> worthy(const CoverWeights& cover, double finish) const {
    CoverBound covers(work_, box_, cover);
    covers.limit(covers.largest(fastest_.by(finish)));
    std::vector<DeviceClass> found;
    for (const DeviceClass& device : all_) {
      const Budget budget = device.rates.by(finish);
      if (budget.any() && covers.best(budget, kRough).value > 0) found.push_back(device);
    }
    return found;
  }

  // By which the sample could do enough, nearly.
  Use finish_of(const CoverWeights& cover) {
    constexpr double kNearly = 2e-4;
    CoverBound covers(work_, box_, cover);
    const double lines = covers.lines();
    double exponent = 2;
    Use use = use_by(covers, cover, sample_, at_, kRough);
    for (int i = 0; i < 8 && std::abs(use.worth / lines - 1) > kNearly; ++i) {
      const double next = use.finish * std::clamp(std::pow(lines / use.worth, 1 / exponent), 0.5, 2.0);
      const Use then = use_by(covers, cover, sample_, next, kRough);
      exponent = std::clamp(std::log(then.worth / use.worth) / std::log(next / use.finish), 0.5, 8.0);
      if (!std::isfinite(exponent)) exponent = 2;
      use = then;
    }
    at_ = use.finish;
    return use;
  }

  Use offer(const CoverWeights& cover) {
    const Use use = finish_of(cover);
    if (use.finish > latest_) {
      latest_ = use.finish;
      best_ = cover;
    }
    return use;
  }

  // The bound rises, then falls, with a share.
  void raise(double CoverWeights::*share) {
    constexpr double kLeast = 0.06, kMost = 0.98;
    const CoverWeights from = best_;
    CoverWeights all = from;  // the prices that go with all of the share
    if (share == &CoverWeights::perimeter_weight && from.out_price > 0) {
      CoverBound covers(work_, box_, from);
      covers.limit(covers.largest(fastest_.by(latest_)));
      all.out_price = covers.worth_of_perimeter();
      all.in_price = 0;
    }
    const auto at = [&](double value) {
      CoverWeights cover = from;
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
    const CoverWeights from = best_;
    if (!(from.out_price > 0) && !(from.in_price > 0)) return;
    const auto at = [&](const Point& factors) {
      CoverWeights cover = from;
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
    constexpr double kLater = 1.03, kSharperPrecision = 1e-5, kSharperRounding = 1e-9;
    CoverBound covers(work_, box_, best_);
    const double latest = kLater * latest_;
    const std::vector<DeviceClass> found = worthy(best_, latest);
    const auto worth = [&](double finish) {
      return use_by(covers, best_, finish <= latest ? std::span<const DeviceClass>(found) : all_, finish, kPrecise)
          .worth;
    };
    return find_rise(worth, covers.lines() * (1 - kSharperRounding), kSharperPrecision, latest_).low;
  }

  const Work& work_;
  GemmBox box_;
  fleet::ServerProfile server_;
  const BoxBound& bound_;
  double enough_;
  std::vector<DeviceClass> all_, sample_;
  DeviceRates fastest_;  // the best of every rate
  CoverWeights best_;
  double latest_ = 0, at_ = 0;
};

}  // namespace

double sharper_bound(const Work& work, const GemmBox& box, std::span<const DeviceRates> device_rates,
                     const fleet::ServerProfile& server, const BoxBound& bound, double enough) {
  return SharperBound(work, box, device_rates, server, bound, enough).find();
}

}  // namespace cleave::plan
