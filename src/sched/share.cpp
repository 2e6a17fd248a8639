// Parts of the fleet in proportion to what each operation needs, strong and weak devices dealt out evenly.
#include "share.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cleave/base/error.hpp"

namespace cleave::sched {

namespace {

// Deals the devices out to parts with these shares of the fleet's power, the strongest first.
std::vector<std::vector<plan::DeviceState>> deal(std::span<const plan::DeviceState> devices,
                                                 std::span<const double> share, const fleet::ServerProfile& server) {
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<double> power(devices.size()), given(share.size(), 0.0);
  for (std::size_t d = 0; d < devices.size(); ++d) power[d] = power_of(devices[d], server);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return power[a] > power[b]; });
  std::vector<std::vector<plan::DeviceState>> parts(share.size());
  for (const std::size_t d : order) {
    std::size_t next = 0;  // the one furthest from its share
    for (std::size_t part = 1; part < share.size(); ++part) {
      if (given[part] / share[part] < given[next] / share[next]) next = part;
    }
    given[next] += power[d];
    parts[next].push_back(devices[d]);
  }
  return parts;
}

// When one operation after another on the same devices is through: results of one leave while the next one's inputs
// come, so that only the last one's tail shows.
Seconds finish_of(std::span<const plan::OperationPlan* const> plans, std::size_t first, std::size_t stride) {
  Seconds busy{0}, tail{0};
  for (std::size_t i = first; i < plans.size(); i += stride) {
    busy += plans[i]->busy;
    tail = plans[i]->time - plans[i]->busy;
  }
  return busy + tail;
}

// For which the bytes of all plans take all links together, in the direction where that is longer.
Seconds link_time(std::span<const plan::OperationPlan* const> plans, std::span<const plan::DeviceState> devices) {
  Bytes down{0}, up{0};
  for (const plan::OperationPlan* plan : plans) {
    down += plan->bytes_down;
    up += plan->bytes_up;
  }
  BytesPerSecond downlink{0}, uplink{0};
  for (const plan::DeviceState& device : devices) {
    downlink += device.profile.downlink;
    uplink += device.profile.uplink;
  }
  return std::max(down / downlink, up / uplink);
}

}  // namespace

double power_of(const plan::DeviceState& device, const fleet::ServerProfile& server) {
  const double down = std::min(device.profile.downlink, server.nic_out).value();
  const double up = std::min(device.profile.uplink, server.nic_in).value();
  const double links = down * std::sqrt(up);
  return std::isfinite(links) ? links : device.profile.compute.value();
}

std::vector<plan::OperationPlan> share_fleet(std::span<const plan::Work> works,
                                             std::span<const plan::OperationPlan* const> whole,
                                             std::span<const plan::DeviceState> devices,
                                             const plan::PlanOptions& options) {
  std::vector<plan::OperationPlan> best;
  // Links that are free sooner serve other operations: what is judged is the finish and what is taken of all links.
  Seconds least = finish_of(whole, 0, 1) + link_time(whole, devices);
  for (std::size_t parts = 2; parts <= std::min(works.size(), devices.size()); ++parts) {
    std::vector<double> share(parts, 0.0);
    for (std::size_t i = 0; i < works.size(); ++i) share[i % parts] += whole[i]->busy.value();
    for (double& s : share) s = std::pow(s, 1.5);  // time falls with the 2/3rd power of the part
    if (!std::all_of(share.begin(), share.end(), [](double s) { return s > 0 && std::isfinite(s); })) break;
    const std::vector<std::vector<plan::DeviceState>> dealt = deal(devices, share, options.server);
    std::vector<plan::OperationPlan> plans;
    std::vector<const plan::OperationPlan*> pointers;
    try {
      for (std::size_t i = 0; i < works.size(); ++i) {
        if (dealt[i % parts].empty()) break;
        plans.push_back(plan::plan_operation(works[i], dealt[i % parts], options));
      }
    } catch (const InputError&) { continue; }  // nobody in a part can hold the smallest block
    if (plans.size() < works.size()) continue;
    for (const plan::OperationPlan& plan : plans) pointers.push_back(&plan);
    Seconds finish{0};
    for (std::size_t part = 0; part < parts; ++part) finish = std::max(finish, finish_of(pointers, part, parts));
    const Seconds cost = finish + link_time(pointers, devices);
    if (cost < least) {
      least = cost;
      best = std::move(plans);
    }
  }
  return best;
}

}  // namespace cleave::sched
