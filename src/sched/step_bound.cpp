// The lower bound of a whole step; docs/simulator.md derives it.
//
// Three things no schedule can avoid: operations that depend on each other run one after another, each for at least its
// own bound (chain); every byte and FLOP is carried by some resource (volumes); and an operation that is hurried moves
// more bytes than one that takes its time, so that the two cannot both be had at their best (exchange).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "cleave/plan/bound.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/scheduler.hpp"
#include "work_hash.hpp"

namespace cleave::sched {

namespace {

/// Prices of the exchange bound that are tried: the downlinks' share of the price, and how often durations are tried.
constexpr int kPrices = 9;
constexpr int kDurations = 40;
constexpr double kDurationRatio = 1.15;
/// Devices are taken together in at most this many classes, each as good as its best member.
constexpr std::size_t kMostClasses = 256;

struct Rates {
  double down = 0, up = 0, compute = 0;
  double count = 1;  // devices of this kind
};

plan::TaskletPlan whole_of(const plan::Work& work) {
  plan::TaskletPlan whole;
  whole.box = {0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
  whole.pairs = {0, work.attention.pairs()};
  return whole;
}

// Devices in order of downlink, neighbours together, each class with the best rates of its members.
std::vector<Rates> classes_of(std::span<const plan::DeviceState> devices, const fleet::ServerProfile& server) {
  std::vector<Rates> all;
  for (const plan::DeviceState& device : devices) {
    all.push_back({std::min(device.profile.downlink, server.nic_out).value(),
                   std::min(device.profile.uplink, server.nic_in).value(), device.profile.compute.value(), 1});
  }
  if (all.size() <= kMostClasses) return all;
  std::sort(all.begin(), all.end(), [](const Rates& a, const Rates& b) { return a.down < b.down; });
  std::vector<Rates> classes;
  const std::size_t per_class = (all.size() + kMostClasses - 1) / kMostClasses;
  for (std::size_t first = 0; first < all.size(); first += per_class) {
    Rates best{0, 0, 0, 0};
    for (std::size_t i = first; i < std::min(all.size(), first + per_class); ++i) {
      best.down = std::max(best.down, all[i].down);
      best.up = std::max(best.up, all[i].up);
      best.compute = std::max(best.compute, all[i].compute);
      best.count += 1;
    }
    classes.push_back(best);
  }
  return classes;
}

// Least r + c of a block of r x c = area, r <= m, c <= n.
double least_strips(double area, double m, double n) {
  const double shorter = std::min({std::sqrt(area), m, n});
  return shorter + area / shorter;
}

// A GEMM as the exchange bound sees it. Volumes are in multiplications, m n k for the whole.
class GemmVolumes {
 public:
  explicit GemmVolumes(const plan::Work& work)
      : m_(static_cast<double>(work.gemm.m)),
        n_(static_cast<double>(work.gemm.n)),
        k_(static_cast<double>(work.gemm.k)),
        element_(static_cast<double>(size_of(work.wire))),
        partial_(static_cast<double>(size_of(partial_sum_type(work.wire)))),
        cut_(k_blocks(work.gemm.k) > 1) {}

  [[nodiscard]] double all() const { return m_ * n_ * k_; }

  // No less than what a device can multiply in `time`, however it mixes depths: a block of area a and depth x takes
  // 2 sqrt(a) x element down and at least a element up, so a x <= down sqrt(up) / 2 in elements, and x <= k.
  [[nodiscard]] double most(const Rates& rates, double time) const {
    const double down = rates.down * time / element_, up = rates.up * time / element_;
    return std::min(
        {cut_ ? std::sqrt(up) * down / 2 : whole_depth(down, up), up * k_, rates.compute * time / 2, all()});
  }

  // No more than the cheapest way to multiply `volume` on one device, at prices per byte down and up. Concave.
  [[nodiscard]] double price(double volume, double down, double up) const {
    const double whole = down * element_ * k_ * least_strips(volume / k_, m_, n_) + up * element_ * volume / k_;
    if (!cut_) return whole;
    // Depth x: 2 down element sqrt(volume x) + up partial volume / x, least where its derivative is zero.
    const double best = std::pow(up * partial_ * std::sqrt(volume) / (down * element_), 2.0 / 3.0);
    const double depth = std::clamp(best, 1.0, k_);
    return std::min(whole, 2 * down * element_ * std::sqrt(volume * depth) + up * partial_ * volume / depth);
  }

 private:
  [[nodiscard]] double whole_depth(double down, double up) const {
    const double strips = down / k_, shorter = std::min({strips / 2, m_, n_});
    return std::min(shorter * std::min(strips - shorter, std::max(m_, n_)), up) * k_;
  }

  double m_, n_, k_, element_, partial_;
  bool cut_;
};

// One shape of operation, and how often it occurs on and off the longest chain.
struct Kind {
  plan::Work work;
  double bound = 0;
  double on_chain = 0, off_chain = 0;
};

// What one operation of a shape costs at least, at given prices, when it may take so long: a falling function of time.
double price_within(const plan::Work& work, double time, std::span<const Rates> classes, double down, double up) {
  if (work.kind != plan::WorkKind::gemm) {
    const plan::Volume volume = plan::volume_of(work, whole_of(work));
    return down * static_cast<double>(volume.down.value()) + up * static_cast<double>(volume.up.value());
  }
  if (work.instances > 1) {
    const auto count = static_cast<double>(work.instances);
    plan::Work one = work;
    one.instances = 1;
    return count * price_within(one, time / count, classes, down, up);
  }
  const GemmVolumes gemm(work);
  std::vector<std::pair<double, double>> most;  // volume of one device, devices
  most.reserve(classes.size());
  for (const Rates& rates : classes) most.emplace_back(gemm.most(rates, time), rates.count);
  // The price is concave in the volume, so on [0, V] no less than the chord; the longest chords are the cheapest.
  std::sort(most.begin(), most.end(), std::greater<>());
  double left = gemm.all(), price = 0;
  for (const auto& [volume, count] : most) {
    if (left <= 0 || volume <= 0) break;
    const double taken = std::min(left, volume * count);
    price += taken * gemm.price(volume, down, up) / volume;
    left -= taken;
  }
  return price;
}

// The exchange bound at one pair of prices whose total, over all links and the whole step T, is T:
//   T >= (1 - mu) sum over the chain of t_i + mu sum over all operations of price_i(t_i)   for every mu in [0, 1],
// whatever the durations t_i; so the least over the durations holds, and the best mu may be chosen.
double exchange_bound(std::span<const Kind> kinds, double kernels_on_chain, std::span<const Rates> classes, double down,
                      double up, double at_least, double at_most) {
  // curves[i][j]: price of kind i within bound_i * ratio^(j+1), so that it holds on the interval before it.
  std::vector<std::vector<double>> curves(kinds.size());
  double off_chain = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    double time = kinds[i].bound;
    for (int j = 0; kinds[i].on_chain > 0 && j < kDurations; ++j) {
      time *= kDurationRatio;
      curves[i].push_back(price_within(kinds[i].work, std::min(time, at_most), classes, down, up));
    }
    if (kinds[i].off_chain > 0)
      off_chain += kinds[i].off_chain * price_within(kinds[i].work, at_most, classes, down, up);
  }
  double best = at_least;
  for (int step = 1; step < 100; ++step) {
    const double mu = step / 100.0;
    double total = (1 - mu) * kernels_on_chain + mu * off_chain;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      double least = std::numeric_limits<double>::infinity(), time = kinds[i].bound;
      for (const double price : curves[i]) {
        least = std::min(least, (1 - mu) * time + mu * price);
        time *= kDurationRatio;
      }
      if (kinds[i].on_chain > 0) {
        // Beyond the last duration tried, the duration alone.
        total += kinds[i].on_chain * std::min(least, (1 - mu) * time);
      }
    }
    best = std::max(best, total);
  }
  return best;
}

}  // namespace

Seconds step_lower_bound(const model::StepGraph& graph, std::span<const plan::DeviceState> devices,
                         const SchedulerOptions& options) {
  const fleet::ServerProfile& server = options.plan.server;
  double compute = 0, downlink = 0, uplink = 0;
  const std::vector<Rates> classes = classes_of(devices, server);
  for (const Rates& rates : classes) {
    compute += rates.count * rates.compute;
    downlink += rates.count * rates.down;
    uplink += rates.count * rates.up;
  }
  const double down_rate = std::min(downlink, server.nic_out.value()),
               up_rate = std::min(uplink, server.nic_in.value());

  // Shapes, their bounds, and the longest chain.
  std::vector<Kind> kinds;
  std::unordered_map<plan::Work, std::size_t, WorkHash> kind_of;
  std::vector<double> own(graph.operations.size()), until(graph.operations.size());
  std::vector<std::size_t> shape(graph.operations.size());
  double kernels = 0, down = 0, up = 0;
  for (const model::Operation& op : graph.operations) {
    const auto i = static_cast<std::size_t>(op.id.value);
    if (!model::runs_on_devices(op.kind)) {
      own[i] = std::max(model::flops_of(op) / server.compute, model::traffic_of(op) / server.memory_bandwidth).value();
      kernels += own[i];
    } else {
      const plan::Work work = plan::work_of(op, options.wire);
      const auto [found, is_new] = kind_of.try_emplace(work, kinds.size());
      if (is_new) {
        // The bisection ends a millionth above the least feasible time.
        const double bound = plan::lower_bound(work, devices, options.plan).value() * (1 - 2e-6);
        kinds.push_back({.work = work, .bound = bound});
      }
      shape[i] = found->second;
      own[i] = kinds[found->second].bound;
      const plan::Volume volume = plan::volume_of(work, whole_of(work));
      down += static_cast<double>(volume.down.value());
      up += static_cast<double>(volume.up.value());
    }
    double start = 0;
    for (const OpId before : op.after) start = std::max(start, until[static_cast<std::size_t>(before.value)]);
    until[i] = start + own[i];
  }
  if (graph.operations.empty()) return Seconds(0);

  auto last = static_cast<std::size_t>(std::max_element(until.begin(), until.end()) - until.begin());
  const double chain = until[last];
  std::vector<bool> on_chain(graph.operations.size(), false);
  for (bool more = true; more;) {
    on_chain[last] = true;
    more = false;
    std::size_t longest = last;
    for (const OpId before : graph.operations[last].after) {
      const auto b = static_cast<std::size_t>(before.value);
      if (!more || until[b] > until[longest]) longest = b;
      more = true;
    }
    last = longest;
  }
  double kernels_on_chain = 0;
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    if (!model::runs_on_devices(graph.operations[i].kind)) {
      if (on_chain[i]) kernels_on_chain += own[i];
    } else {
      (on_chain[i] ? kinds[shape[i]].on_chain : kinds[shape[i]].off_chain) += 1;
    }
  }

  double bound =
      std::max({chain, kernels, model::device_flops(graph).value() / compute, down / down_rate, up / up_rate});
  if (!std::isfinite(bound) || !std::isfinite(down_rate) || !std::isfinite(up_rate)) return Seconds(bound);
  // An operation off the chain may take the whole step, which the bound itself limits: T >= f(T) with f falling, so a T
  // with T < f(T) is impossible, and the bound rises to the last such T.
  for (int price = 1; price < kPrices; ++price) {
    const double share = static_cast<double>(price) / kPrices;
    double low = bound, high = bound * 4;
    for (int i = 0; i < 8; ++i) {
      const double middle = (low + high) / 2;
      const double least =
          exchange_bound(kinds, kernels_on_chain, classes, share / down_rate, (1 - share) / up_rate, bound, middle);
      (middle < least ? low : high) = middle;
    }
    bound = std::max(bound, low);
  }
  return Seconds(bound);
}

}  // namespace cleave::sched
