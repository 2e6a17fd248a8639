// Fleets of a few sizes, each of the devices that are worth most (docs/stage_layouts.md, "Fewer devices").
#include "stages/fewer_devices.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>
#include <utility>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

// Share of the step: an interface that is busy for less of it adds next to nothing to the forecast (kSharpness in
// forecast.cpp).
constexpr double kBusy = 0.5;
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
    if (2 * power <= kOften && between < all) sizes.push_back(between);
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

// The fleet of the first `size` devices in this order; none where there is no layout for them.
std::optional<StageFleet> fleet_of(const std::vector<fleet::DeviceProfile>& devices, std::span<const std::size_t> order,
                                   std::int64_t size, const FindLayout& find) {
  std::vector<std::size_t> chosen(order.begin(), order.begin() + size);
  std::ranges::sort(chosen);
  StageFleet fewer;
  for (const std::size_t i : chosen) fewer.devices.push_back(devices[i]);
  std::optional<StagePlan> plan = find(fewer.devices);
  if (!plan) return std::nullopt;
  fewer.plan = std::move(*plan);
  return fewer;
}

}  // namespace

std::vector<std::size_t> by_worth(const StageWork& work, std::span<const fleet::DeviceProfile> devices) {
  const std::vector<double> seconds = seconds_of_a_layer(work, devices);
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return seconds[i]; });
  return order;
}

void try_without_weak_ones(const StageWork& work, const FindLayout& find, std::size_t most,
                           std::vector<StageFleet>& fleets) {
  const std::vector<fleet::DeviceProfile> devices = fleets.front().devices;
  const std::vector<double> seconds = seconds_of_a_layer(work, devices);
  const std::vector<std::size_t> order = by_worth(work, devices);
  for (std::size_t size = 1; size <= most && size < devices.size(); ++size) {
    if (seconds[order[size]] < kMuchWeaker * seconds[order[size - 1]]) continue;
    std::optional<StageFleet> fewer = fleet_of(devices, order, static_cast<std::int64_t>(size), find);
    if (fewer) fleets.push_back(std::move(*fewer));
  }
  std::ranges::stable_sort(fleets, {}, [](const StageFleet& of) { return of.plan.forecast; });
}

void leave_out(const StageWork& work, const FindLayout& find, std::vector<StageFleet>& fleets) {
  const std::vector<fleet::DeviceProfile> devices = fleets.front().devices;
  const std::vector<std::size_t> order = by_worth(work, devices);
  const auto all = std::ssize(devices);
  std::set<std::int64_t> tried{all};
  Seconds least = fleets.front().plan.forecast;
  std::int64_t best = all;
  // The forecast of the fleet of this size; none where there is no layout.
  const auto try_size = [&](std::int64_t size) -> std::optional<Seconds> {
    if (size < 1 || size >= all || !tried.insert(size).second) return least;
    std::optional<StageFleet> fewer = fleet_of(devices, order, size, find);
    if (!fewer) return std::nullopt;
    const Seconds time = fewer->plan.forecast;
    if (time < least) {
      least = time;
      best = size;
    }
    fleets.push_back(std::move(*fewer));
    return time;
  };
  int hopeless = 0;
  for (const std::int64_t size : sizes_below(all)) {
    const std::optional<Seconds> time = try_size(size);
    if (!time) break;
    hopeless = *time > least * kHopeless ? hopeless + 1 : 0;
    if (hopeless == kHopelessInARow) break;
  }
  if (best <= kEach) {
    for (std::int64_t size = 2; size < kEach; ++size) (void)try_size(size);
  } else {
    const auto middle = static_cast<double>(best);
    for (const double step : {std::pow(2, 1 / kNear), std::pow(2, -1 / kNear)})
      (void)try_size(std::llround(middle * step));
  }
  std::ranges::stable_sort(fleets, {}, [](const StageFleet& of) { return of.plan.forecast; });
}

}  // namespace cleave::plan::stages
