// Rates, latencies and hops of pairs of devices.
#include "network.hpp"

#include <algorithm>
#include <limits>

#include "cleave/plan/cost.hpp"

namespace cleave::rivals {

namespace {
DeviceId id(std::size_t i) { return DeviceId(static_cast<std::int64_t>(i)); }
}  // namespace

double Network::rate(std::size_t i, std::size_t j) const {
  if (!links_->empty()) return links_->at(id(i), id(j)).rate.value();
  return std::min((*devices_)[i].uplink, (*devices_)[j].downlink).value();
}

double Network::latency_s(std::size_t i, std::size_t j) const {
  if (!links_->empty()) return links_->at(id(i), id(j)).latency.value();
  return ((*devices_)[i].latency + (*devices_)[j].latency).value();
}

double Network::slowest_rate(std::span<const std::size_t> from, std::span<const std::size_t> to) const {
  double slowest = std::numeric_limits<double>::infinity();
  if (links_->empty() && from.size() + to.size() > 2) {  // some pair has the slowest uplink, some the slowest downlink
    for (const std::size_t i : from) slowest = std::min(slowest, device(i).uplink.value());
    for (const std::size_t j : to) slowest = std::min(slowest, device(j).downlink.value());
    return slowest;
  }
  for (const std::size_t i : from) {
    for (const std::size_t j : to) {
      if (i != j) slowest = std::min(slowest, rate(i, j));
    }
  }
  return slowest;
}

double Network::longest_latency_s(std::span<const std::size_t> from, std::span<const std::size_t> to) const {
  double longest_s = 0;
  if (links_->empty() && from.size() + to.size() > 2) {
    double there_s = 0;
    for (const std::size_t i : from) longest_s = std::max(longest_s, device(i).latency.value());
    for (const std::size_t j : to) there_s = std::max(there_s, device(j).latency.value());
    return longest_s + there_s;
  }
  for (const std::size_t i : from) {
    for (const std::size_t j : to) {
      if (i != j) longest_s = std::max(longest_s, latency_s(i, j));
    }
  }
  return longest_s;
}

Hop Network::hop(std::size_t i, std::size_t j, double payload) const {
  const double bytes = payload + static_cast<double>(plan::kMessageHeader.value());
  if (!links_->empty()) {
    const double time_s = bytes / rate(i, j);
    return {.send_s = time_s, .receive_s = time_s, .latency_s = latency_s(i, j)};
  }
  return {.send_s = bytes / (*devices_)[i].uplink.value(),
          .receive_s = bytes / (*devices_)[j].downlink.value(),
          .latency_s = latency_s(i, j)};
}

fleet::LinkMatrix slowed_links(const fleet::LinkMatrix& links, std::span<const double> factor) {
  fleet::LinkMatrix slowed = links;
  for (std::int64_t i = 0; i < links.devices(); ++i) {
    for (std::int64_t j = 0; j < links.devices(); ++j) {
      if (i == j) continue;
      fleet::Link link = links.at(DeviceId(i), DeviceId(j));
      link.rate = link.rate * std::min(factor[static_cast<std::size_t>(i)], factor[static_cast<std::size_t>(j)]);
      slowed.set(DeviceId(i), DeviceId(j), link);
    }
  }
  return slowed;
}

}  // namespace cleave::rivals
