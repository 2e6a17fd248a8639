// Fleets of a few sizes, each of the devices that are worth most (docs/stage_layouts.md, "Fewer devices").
#include "stages/fewer_devices.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>
#include <utility>

#include "cleave/base/lookahead.hpp"
#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

// Share of the step: an interface that is busy for less of it adds next to nothing to the forecast (kSharpness in
// forecast.cpp).
constexpr double kBusy = 0.55;
// Factor of worth between a device and the next one at which another kind of device begins, such as phones after
// laptops.
constexpr double kMuchWeaker = 2;
// Sizes of fleets that are tried. First powers of two, and up to kOften also of the root of two. Then, near the best of
// them: where it is at most kEach, all sizes up to kEach; otherwise the best size times 2^(1/kNear) and 2^(-1/kNear).
// The sizes do not depend on how many devices there are, so a larger fleet tries what a smaller one does, with better
// devices.
constexpr std::int64_t kOften = 512, kEach = 16;
constexpr double kNear = 4;
// The search goes to smaller sizes until kHopelessInARow of them in a row take kHopeless times as long as the best one.
// One alone may be due to a forecast that is off.
constexpr double kHopeless = 1.5;
constexpr int kHopelessInARow = 2;

// The sizes of the first pass, the largest first.
std::vector<std::int64_t> sizes_below(std::int64_t all) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t power = 1; power < all; power *= 2) {
    sizes.push_back(power);
    const std::int64_t between = std::llround(std::numbers::sqrt2 * static_cast<double>(power));
    if (2 * power <= kOften && between < all && between > power) sizes.push_back(between);
  }
  std::ranges::reverse(sizes);
  return sizes;
}

}  // namespace

bool too_many(const StagePlan& plan, const StageWork& work, const fleet::ServerProfile& server) {
  const double busy =
      std::max(in_bytes(plan.bytes_down) / server.nic_out.value(), in_bytes(plan.bytes_up) / server.nic_in.value());
  std::int64_t replicas = 0;
  for (const Stage& stage : plan.stages) replicas += std::ssize(stage.replicas);
  return busy > kBusy * plan.forecast.value() || replicas > work.batch * std::ssize(plan.stages);
}

namespace {

// Through the server's interface, a stage is sent three boundaries of every sequence (X, X again, dY) and returns two,
// however large it is; and each replica is sent its weights, however quick it is. So the worth of a device is what it
// holds times the rate at which it passes sequences, up to what its processor can do.
// Returns for each device: seconds of its busiest resource for a sequence, per layer of weights that it holds.
std::vector<double> seconds_of_a_layer(const StageWork& work, std::span<const fleet::DeviceProfile> devices) {
  const StageCost layer = typical_layer(work, std::min(kChunkTokens, work.seq));
  const double boundary = in_bytes(layer.boundary(work.seq));
  const double flops = stage_flops(work, layer) / static_cast<double>(work.batch);
  const double beside = static_cast<double>(size_of(work.wire) + sum_bytes(work.wire)) /
                        static_cast<double>(size_of(work.wire));  // sums as well
  const double all = weights_of(work) / in_bytes(layer.weights());
  std::vector<double> seconds;
  for (const fleet::DeviceProfile& device : devices) {
    const double held = std::min(all, in_bytes(device.memory) / (beside * in_bytes(layer.weights())));
    const double passing = boundary * std::max(2 / device.uplink.value(), 3 / device.downlink.value());
    seconds.push_back(std::max(passing / held, flops / device.compute.value()));
  }
  return seconds;
}

// Fleets of the first devices in an order, each size once.
class SmallerFleets {
 public:
  SmallerFleets(const std::vector<fleet::DeviceProfile>& devices, std::span<const std::size_t> order,
                const FindLayout& find, int threads)
      : devices_(devices), order_(order), find_(find), threads_(threads) {}

  // Calls `use` with each size that was not tried before and its fleet, none where there is no layout for it, until
  // `use` returns false. Requires: no size stands in the list twice.
  template <class Use>
  void each(std::vector<std::int64_t> sizes, const Use& use) {
    std::erase_if(sizes,
                  [&](std::int64_t size) { return size < 1 || size >= std::ssize(devices_) || tried_.contains(size); });
    Lookahead<std::optional<StageFleet>> fleets(threads_,
                                                [&](std::size_t i, const auto&) { return of_size(sizes[i]); });
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      tried_.insert(sizes[i]);
      if (!use(sizes[i], fleets.take(i, sizes.size()))) return;
    }
  }

 private:
  [[nodiscard]] std::optional<StageFleet> of_size(std::int64_t size) const {
    std::vector<std::size_t> chosen(order_.begin(), order_.begin() + size);
    std::ranges::sort(chosen);
    StageFleet fewer;
    for (const std::size_t i : chosen) fewer.devices.push_back(devices_[i]);
    std::optional<StagePlan> plan = find_(fewer.devices);
    if (!plan) return std::nullopt;
    fewer.plan = std::move(*plan);
    return fewer;
  }

  const std::vector<fleet::DeviceProfile>& devices_;
  std::span<const std::size_t> order_;
  const FindLayout& find_;
  int threads_;
  std::set<std::int64_t> tried_;
};

}  // namespace

std::vector<std::size_t> by_worth(const StageWork& work, std::span<const fleet::DeviceProfile> devices) {
  const std::vector<double> seconds = seconds_of_a_layer(work, devices);
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return seconds[i]; });
  return order;
}

void try_without_weak_ones(const StageWork& work, std::span<const fleet::DeviceProfile> all, const FindLayout& find,
                           std::size_t most, int threads, std::vector<StageFleet>& fleets) {
  const std::vector<fleet::DeviceProfile> devices(all.begin(), all.end());
  const std::vector<double> seconds = seconds_of_a_layer(work, devices);
  const std::vector<std::size_t> order = by_worth(work, devices);
  std::vector<std::int64_t> sizes;
  for (std::size_t size = 1; size <= most && size < devices.size(); ++size) {
    if (seconds[order[size]] >= kMuchWeaker * seconds[order[size - 1]])
      sizes.push_back(static_cast<std::int64_t>(size));
  }
  SmallerFleets smaller(devices, order, find, threads);
  smaller.each(sizes, [&](std::int64_t, std::optional<StageFleet> fewer) {
    if (fewer) fleets.push_back(std::move(*fewer));
    return true;
  });
  std::ranges::stable_sort(fleets, {}, [](const StageFleet& of) { return of.plan.forecast; });
}

void leave_out(const StageWork& work, const FindLayout& find, int threads, std::vector<StageFleet>& fleets) {
  const std::vector<fleet::DeviceProfile> devices = fleets.front().devices;
  const std::vector<std::size_t> order = by_worth(work, devices);
  const auto all = std::ssize(devices);
  SmallerFleets smaller(devices, order, find, threads);
  Seconds least = fleets.front().plan.forecast;
  std::int64_t best = all;
  const auto add = [&](std::int64_t size, StageFleet fewer) {
    if (fewer.plan.forecast < least) {
      least = fewer.plan.forecast;
      best = size;
    }
    fleets.push_back(std::move(fewer));
  };
  int hopeless = 0;
  smaller.each(sizes_below(all), [&](std::int64_t size, std::optional<StageFleet> fewer) {
    if (!fewer) return false;
    const Seconds time = fewer->plan.forecast;
    add(size, std::move(*fewer));
    hopeless = time > least * kHopeless ? hopeless + 1 : 0;
    return hopeless < kHopelessInARow;
  });
  std::vector<std::int64_t> near;
  if (best <= kEach) {
    for (std::int64_t size = 2; size < kEach; ++size) near.push_back(size);
  } else {
    for (const double step : {std::pow(2, 1 / kNear), std::pow(2, -1 / kNear)})
      near.push_back(std::llround(static_cast<double>(best) * step));
  }
  smaller.each(std::move(near), [&](std::int64_t size, std::optional<StageFleet> fewer) {
    if (fewer) add(size, std::move(*fewer));
    return true;
  });
  std::ranges::stable_sort(fleets, {}, [](const StageFleet& of) { return of.plan.forecast; });
}

}  // namespace cleave::plan::stages
