// Prices of shapes over durations, flows by Frank and Wolfe's method, and the least T that they allow.
#include "bounds/tradeoff_bound.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace cleave::sched {

namespace {

/// Shares of the price that downlinks are given: kPrices - 1 of them.
constexpr int kPrices = 9;
/// Durations are tried in this ratio.
constexpr double kDurationRatio = 1.15;
/// Weights of the bytes against the critical path that are tried.
constexpr double kWeights[] = {0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.96};
/// Shares of the prices that suit the shapes, beside those of one direction.
constexpr double kMixtures[] = {0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1};
/// Steps towards the best flow.
constexpr int kFlowSteps = 32;
/// After so many, prices and weights that are still below this share of the best bound so far are given up.
constexpr int kEnoughToTell = 6;
constexpr double kHopeless = 0.85;
/// The bound is no more than so many times what is known before.
constexpr double kMost = 4;

// Least r + c / groups of a block of r x c = area, r <= m, c <= n.
double least_strips(double area, double m, double n, double groups) {
  const double rows = std::clamp(std::sqrt(area / groups), std::min(area / n, m), m);
  return rows + area / rows / groups;
}

// Prices of a byte down and up, by class of devices.
struct Price {
  double down = 0, up = 0;
};

/// Shares of a device's price that its downlink is given, when its most in some time is looked for.
constexpr double kShares[] = {0.02, 0.1, 0.2, 0.35, 0.5, 2.0 / 3, 0.8, 0.9, 0.98};

// A GEMM as the trade-off bound sees it. Volumes are in multiplications, m n k for the whole.
class GemmVolumes {
 public:
  GemmVolumes(const plan::Work& work, double groups)
      : groups_(groups),
        m_(static_cast<double>(work.gemm.m)),
        n_(static_cast<double>(work.gemm.n)),
        k_(static_cast<double>(work.gemm.k)),
        element_(static_cast<double>(size_of(work.wire))),
        partial_(static_cast<double>(size_of(partial_sum_type(work.wire)))),
        cut_(k_blocks(work.gemm.k) > 1) {}

  [[nodiscard]] double all() const { return m_ * n_ * k_; }

  // No less than what a device can multiply in `time`, and the share of the price down that shows it: at any prices,
  // what costs more than the links can carry in that time is too much.
  [[nodiscard]] std::pair<double, double> most(const BestOfClass& device, double time) const {
    std::pair<double, double> least{std::min(device.compute * time / 2, all()), 0.5};
    if (groups_ > 1) {
      // B may be there: rows come for all columns, and results leave.
      const double down = device.down * time / element_ * n_, up = device.up * time / element_ * k_;
      if (down < least.first) least = {down, kShares[std::size(kShares) - 1]};
      return up < least.first ? std::pair(up, kShares[0]) : least;
    }
    for (const double share : kShares) {
      const double volume = affordable(share / (device.down * time), (1 - share) / (device.up * time));
      if (volume < least.first) least = {volume, share};
    }
    return least;
  }

  // No more than the cheapest way to multiply `volume` on one device, at prices per byte down and up. Concave. Of
  // columns that several groups share each counts its part: all columns that a device has are no fewer than those
  // that it uses in a group, in the mean over groups.
  [[nodiscard]] double cost(double volume, const Price& price) const {
    const double whole =
        price.down * element_ * k_ * least_strips(volume / k_, m_, n_, groups_) + price.up * element_ * volume / k_;
    if (!cut_) return whole;
    const double depth = std::min(best_depth(volume, price.down, price.up), k_);
    return std::min(
        whole, 2 * price.down * element_ * std::sqrt(volume * depth / groups_) + price.up * partial_ * volume / depth);
  }

 private:
  // A block of depth x and volume v costs 2 down element sqrt(v x / groups) + up partial v / x, least at this depth.
  [[nodiscard]] double best_depth(double volume, double down, double up) const {
    return std::pow(up * partial_ * std::sqrt(volume * groups_) / (down * element_), 2.0 / 3);
  }

  // The volume of a square block of the whole depth that costs 1:  2 down element k r + up result r^2 = 1.
  [[nodiscard]] double square(double strips, double results) const {
    const double side = (std::sqrt(strips * strips + results) - strips) / results;
    return side * side * k_;
  }

  // No less than the largest volume that costs 1.
  [[nodiscard]] double affordable(double down, double up) const {
    const double strips = down * element_ * k_, shorter = std::min(m_, n_);
    double whole = square(strips, up * element_);
    if (whole > shorter * shorter * k_) {
      whole = shorter * k_ * (1 - strips * shorter) / (strips + up * element_ * shorter);
    }
    if (!cut_) return whole;
    // 3 (down element)^(2/3) (up partial)^(1/3) v^(2/3) = 1 where that depth is no more than k.
    double cut = std::pow(3, -1.5) / (down * element_ * std::sqrt(up * partial_));
    if (best_depth(cut, down, up) > k_) cut = square(strips, up * partial_);
    return std::max(whole, cut);
  }

  double groups_, m_, n_, k_, element_, partial_;
  bool cut_;
};

// How much of one instance of a shape each class of devices can do at most, when an operation of `instances` may take
// so long: multiplications of a GEMM, shares of attention.
std::vector<double> most_within(const ShapeBound& shape, double time, std::span<const BestOfClass> classes) {
  const double each = time / static_cast<double>(shape.work.instances);
  std::vector<double> most;
  most.reserve(classes.size());
  if (shape.work.kind == plan::WorkKind::gemm) {
    const GemmVolumes gemm(shape.work, shape.groups);
    for (const BestOfClass& device : classes) most.push_back(gemm.most(device, each).first);
  } else {
    const plan::Volume all = plan::volume_of(shape.work);
    const auto down = static_cast<double>(all.down.value()), up = static_cast<double>(all.up.value());
    for (const BestOfClass& device : classes)
      most.push_back(std::min({device.down * each / down, device.up * each / up, 1.0}));
  }
  return most;
}

// What one operation of a shape costs at least, at given prices, where no class can do more than `most`.
double cost_within(const ShapeBound& shape, std::span<const double> most, std::span<const BestOfClass> classes,
                   std::span<const Price> prices) {
  struct Offer {
    double rate, volume;  // cost of a unit of volume, and how much of it
  };
  std::vector<Offer> offers;
  offers.reserve(classes.size());
  double left = 0;
  if (shape.work.kind == plan::WorkKind::gemm) {
    const GemmVolumes gemm(shape.work, shape.groups);
    left = gemm.all();
    for (std::size_t c = 0; c < classes.size(); ++c) {
      // The cost is concave in the volume, so on [0, V] no less than the chord.
      if (most[c] > 0) offers.push_back({gemm.cost(most[c], prices[c]) / most[c], most[c] * classes[c].count});
    }
  } else {
    const plan::Volume all = plan::volume_of(shape.work);
    const auto down = static_cast<double>(all.down.value()), up = static_cast<double>(all.up.value());
    left = 1;
    for (std::size_t c = 0; c < classes.size(); ++c)
      offers.push_back({prices[c].down * down + prices[c].up * up, most[c] * classes[c].count});
  }
  std::ranges::sort(offers, {}, &Offer::rate);
  double cost = 0;
  for (const Offer& offer : offers) {
    if (left <= 0) break;
    const double taken = std::min(left, offer.volume);
    cost += taken * offer.rate;
    left -= taken;
  }
  return cost * static_cast<double>(shape.work.instances);
}

// The prices that make the time of a shape alone as long as they can: each device counts for what it does of it, and
// each of its links for how much it limits that.
std::vector<Price> prices_for(const ShapeBound& shape, std::span<const BestOfClass> classes) {
  const GemmVolumes gemm(shape.work, shape.groups);
  std::vector<Price> prices;
  double all = 0;
  for (const BestOfClass& device : classes) {
    const auto [volume, share] = gemm.most(device, shape.time);
    prices.push_back({volume * share / device.down, volume * (1 - share) / device.up});
    all += volume * device.count;
  }
  for (Price& price : prices) price = {price.down / all, price.up / all};
  return prices;
}

// Durations of a shape, from[j] to from[j + 1], and what each class can do at most in those.
struct Durations {
  std::vector<double> from;
  std::vector<std::vector<double>> most;
};

Durations durations_of(const ShapeBound& shape, std::span<const BestOfClass> classes, double longest) {
  Durations durations;
  for (double time = shape.time; time < longest && time > 0;) {
    durations.from.push_back(time);
    time *= kDurationRatio;
    // The longest of the interval: a longer one only costs less.
    durations.most.push_back(most_within(shape, time, classes));
  }
  return durations;
}

// What a shape costs at least in each interval of its durations.
struct Curve {
  std::span<const double> from;
  std::vector<double> price;
};

class TradeoffBound {
 public:
  TradeoffBound(const model::StepGraph& graph, std::span<const Node> nodes, std::span<const ShapeBound> shapes,
                std::span<const Durations> durations, std::span<const BestOfClass> classes,
                std::span<const Price> prices, double most)
      : graph_(graph), nodes_(nodes), longest_(nodes.size()), choices_(nodes.size()), most_(most) {
    for (std::size_t s = 0; s < shapes.size(); ++s) {
      Curve& curve = curves_.emplace_back(Curve{durations[s].from, {}});
      for (const std::vector<double>& volumes : durations[s].most)
        curve.price.push_back(cost_within(shapes[s], volumes, classes, prices));
    }
  }

  /// The best bound at this weight, at least `bound`.
  double improve(double weight, double bound) {
    weight_ = weight;
    longest_path([&](std::size_t i) { return nodes_[i].time; });
    std::vector<double> flow(nodes_.size(), 0.0), best;
    for (const std::size_t i : path_) flow[i] = 1;
    double highest = 0;
    for (int step = 1; step <= kFlowSteps; ++step) {
      for (std::size_t i = 0; i < nodes_.size(); ++i) choices_[i] = cheapest(i, flow[i], bound);
      const double value = std::accumulate(choices_.begin(), choices_.end(), 0.0,
                                           [](double sum, const Choice& c) { return sum + c.value; });
      if (value > highest) {
        highest = value;
        best = flow;
      }
      if (step == kEnoughToTell && highest < kHopeless * bound) return bound;
      longest_path([&](std::size_t i) { return choices_[i].duration; });
      const double share = 2.0 / (step + 2.0);
      for (double& y : flow) y *= 1 - share;
      for (const std::size_t i : path_) flow[i] += share;
    }
    if (highest <= bound) return bound;
    // T >= total(T), which falls with T: no T below the one where they meet is possible.
    double low = bound, high = std::min(highest, most_);
    for (int i = 0; i < 10; ++i) {
      const double middle = (low + high) / 2;
      (middle < total(best, middle) ? low : high) = middle;
    }
    return low;
  }

 private:
  struct Choice {
    double value, duration;
  };

  // Least (1 - mu) y t + mu price(t) of an operation over durations t within a step of `step_time`, rounded down.
  [[nodiscard]] Choice cheapest(std::size_t i, double flow, double step_time) const {
    const Node& node = nodes_[i];
    if (node.shape == Node::kKernel) return {(1 - weight_) * flow * node.time, node.time};
    const Curve& curve = curves_[node.shape];
    Choice best{std::numeric_limits<double>::infinity(), node.time};
    for (std::size_t j = 0; j < curve.from.size() && (j == 0 || curve.from[j] < step_time); ++j) {
      const double value = (1 - weight_) * flow * curve.from[j] + weight_ * curve.price[j];
      if (value < best.value) best = {value, curve.from[j]};
    }
    return std::isfinite(best.value) ? best : Choice{(1 - weight_) * flow * node.time, node.time};
  }

  [[nodiscard]] double total(std::span<const double> flow, double step_time) const {
    double sum = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) sum += cheapest(i, flow[i], step_time).value;
    return sum;
  }

  // The path through the DAG whose lengths add up to most, into path_.
  void longest_path(const std::function<double(std::size_t)>& length) {
    path_.clear();
    std::size_t last = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      double start = 0;
      for (const OpId before : graph_.operations[i].after) start = std::max(start, longest_[index(before)]);
      longest_[i] = start + length(i);
      if (longest_[i] > longest_[last]) last = i;
    }
    while (true) {
      path_.push_back(last);
      const std::vector<OpId>& after = graph_.operations[last].after;
      if (after.empty()) return;
      last = index(*std::ranges::max_element(after, {}, [&](OpId op) { return longest_[index(op)]; }));
    }
  }

  static std::size_t index(OpId op) { return static_cast<std::size_t>(op.value); }

  const model::StepGraph& graph_;
  std::span<const Node> nodes_;
  std::vector<Curve> curves_;
  std::vector<double> longest_;
  std::vector<Choice> choices_;
  std::vector<std::size_t> path_;
  double most_, weight_ = 0.5;
};

}  // namespace

double tradeoff_bound(const model::StepGraph& graph, std::span<const Node> nodes, std::span<const ShapeBound> shapes,
                      std::span<const BestOfClass> classes, double down, double up, double at_least) {
  // Sums of prices: over all links together, and for each shape.
  std::vector<std::vector<Price>> candidates;
  for (int price = 1; price < kPrices; ++price) {
    const double share = static_cast<double>(price) / kPrices;
    candidates.emplace_back(classes.size(), Price{share / down, (1 - share) / up});
  }
  std::vector<double> time(shapes.size(), 0.0);
  double total = 0;
  for (const Node& node : nodes) {
    if (node.shape == Node::kKernel || shapes[node.shape].work.kind != plan::WorkKind::gemm || node.time <= 0) continue;
    time[node.shape] += node.time;
    total += node.time;
  }
  std::vector<Price> mixed(classes.size());
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    if (time[s] <= 0) continue;
    const std::vector<Price> own = prices_for(shapes[s], classes);
    for (std::size_t c = 0; c < classes.size(); ++c) {
      mixed[c].down += own[c].down * time[s] / total;
      mixed[c].up += own[c].up * time[s] / total;
    }
  }
  // Between these and either direction alone.
  for (const double share : kMixtures) {
    std::vector<Price> outward = mixed, inward = mixed;
    for (std::size_t c = 0; c < classes.size(); ++c) {
      outward[c] = {share * mixed[c].down + (1 - share) / down, share * mixed[c].up};
      inward[c] = {share * mixed[c].down, share * mixed[c].up + (1 - share) / up};
    }
    if (total > 0) candidates.insert(candidates.end(), {outward, inward});
  }
  std::vector<Durations> durations;
  for (const ShapeBound& shape : shapes) durations.push_back(durations_of(shape, classes, at_least * kMost));
  double bound = at_least;
  for (const std::vector<Price>& prices : candidates) {
    TradeoffBound tradeoff(graph, nodes, shapes, durations, classes, prices, at_least * kMost);
    for (const double weight : kWeights) bound = std::max(bound, tradeoff.improve(weight, bound));
  }
  return bound;
}

}  // namespace cleave::sched
