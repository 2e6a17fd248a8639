// Twice as many devices until they are done in time.
#include "patience.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "cleave/base/error.hpp"
#include "share.hpp"

namespace cleave::sched {

namespace {

/// Patient work is planned to end when this share of the chain's time is over: it does not always go as planned.
constexpr double kInTime = 0.9;
/// A link is never taken for busier with the chain than to leave these shares: there are gaps between its operations.
constexpr double kLeastDown = 0.65, kLeastUp = 0.2;
/// Patient tasklets that a device holds at once: one whose result leaves, and the next.
constexpr std::int64_t kAtOnce = 2;
/// A patient panel takes a link for this share of the time of an operation of the chain, at the rates that patient work
/// is given: the chain has to wait for what is under way.
constexpr double kPanelShare = 0.05;
/// A plan for the whole fleet is as good where the chain ends within this many of its times...
constexpr double kTooLate = 10;
/// ... or where patience saves no more than down to this share of its bytes: they are hurried then beside the chain.
constexpr double kWorthwhile = 0.6;

}  // namespace

Patience::Patience(PlanCache& plans, const Lanes& lanes, const plan::PlanOptions& options)
    : plans_(plans), lanes_(lanes), options_(options) {}

void Patience::begin() {
  chain_.clear();
  until_.clear();
  fewest_.clear();
}

std::vector<Patience::OfChain>::iterator Patience::find(const plan::Work& work, std::optional<std::size_t> lane) {
  return std::ranges::find_if(chain_, [&](const OfChain& part) { return part.work == work && part.lane == lane; });
}

void Patience::expect(const plan::Work& work, std::optional<std::size_t> lane) {
  const auto found = find(work, lane);
  if (found == chain_.end()) {
    chain_.push_back({work, lane, 1});
    version_ = 0;
  } else {
    ++found->count;
  }
}

void Patience::done(const plan::Work& work, std::optional<std::size_t> lane) { --find(work, lane)->count; }

const plan::OperationPlan& Patience::plan_of(const OfChain& part) {
  return part.lane && lanes_.in_use() ? lanes_.plan_of(*part.lane, part.work) : plans_.plan_for(part.work);
}

Seconds Patience::in_hand(DeviceId device, Seconds now) const {
  const auto found = until_.find(device);
  return found == until_.end() ? Seconds(0) : std::max(Seconds(0), found->second - now);
}

Patience::Left Patience::left() {
  Left chain;
  double down = 0, up = 0;
  std::int64_t operations = 0;
  std::map<model::Phase, std::map<std::size_t, Seconds>> in_lanes;  // lanes of a phase work at the same time
  for (const OfChain& part : chain_) {
    if (part.count == 0) continue;
    const plan::OperationPlan& plan = plan_of(part);
    operations += part.count;
    const auto count = static_cast<double>(part.count);
    if (part.lane && lanes_.in_use()) {
      const Lane& lane = lanes_.all()[*part.lane];
      in_lanes[lane.phase][*part.lane] += lane.busy * (count / static_cast<double>(lane.sizes.size()));
    } else {
      chain.time += plan.busy * count;
    }
    down += count * static_cast<double>(plan.bytes_down.value());
    up += count * static_cast<double>(plan.bytes_up.value());
  }
  for (const auto& [phase, lanes] : in_lanes) {
    Seconds longest{0};
    for (const auto& [lane, time] : lanes) longest = std::max(longest, time);
    chain.time += longest;
  }
  if (chain.time.value() <= 0) return chain;
  chain.operation = chain.time / static_cast<double>(operations);
  renew_fleet();
  chain.down = down / (downlink_.value() * chain.time.value());
  chain.up = up / (uplink_.value() * chain.time.value());
  return chain;
}

// For which the bytes of a plan would take all links, one direction after the other.
Seconds Patience::link_time(const plan::OperationPlan& plan) const {
  return plan.bytes_down / downlink_ + plan.bytes_up / uplink_;
}

// Joint rates, and the memory that is left beside the largest tasklet of the chain, whichever it is.
void Patience::renew_fleet() {
  if (version_ == plans_.version()) return;
  version_ = plans_.version();
  fewest_.clear();
  std::unordered_map<DeviceId, Bytes> largest;
  for (const OfChain& part : chain_) {
    for (const plan::TaskletPlan& piece : plan_of(part).tasklets) {
      Bytes& most = largest[piece.device];
      most = std::max(most, piece.resident);
    }
  }
  memory_.clear();
  downlink_ = uplink_ = BytesPerSecond(0);
  for (const plan::DeviceState& device : plans_.devices()) {
    downlink_ += std::min(device.profile.downlink, options_.server.nic_out);
    uplink_ += std::min(device.profile.uplink, options_.server.nic_in);
    const std::int64_t over = (device.profile.memory - largest[device.profile.id]).value();
    memory_[device.profile.id] = Bytes(std::max<std::int64_t>(0, over) / kAtOnce);
  }
  downlink_ = std::min(downlink_, options_.server.nic_out);
  uplink_ = std::min(uplink_, options_.server.nic_in);
}

std::vector<plan::DeviceState> Patience::devices_beside(const Left& chain, Seconds now) {
  renew_fleet();
  std::vector<plan::DeviceState> devices(plans_.devices().begin(), plans_.devices().end());
  for (plan::DeviceState& device : devices) {
    device.profile.downlink = device.profile.downlink * std::max(kLeastDown, 1 - chain.down);
    device.profile.uplink = device.profile.uplink * std::max(kLeastUp, 1 - chain.up);
    device.profile.memory = memory_.at(device.profile.id);
    device.down_busy = device.compute_busy = device.up_busy = in_hand(device.profile.id, now);
  }
  std::vector<double> power(devices.size());
  for (std::size_t d = 0; d < devices.size(); ++d) power[d] = power_of(devices[d], options_.server);
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (devices[a].down_busy != devices[b].down_busy) return devices[a].down_busy < devices[b].down_busy;
    return power[a] > power[b];
  });
  std::vector<plan::DeviceState> sorted;
  sorted.reserve(devices.size());
  for (const std::size_t d : order) sorted.push_back(std::move(devices[d]));
  return sorted;
}

std::optional<plan::OperationPlan> Patience::plan(const plan::Work& work, Seconds now) {
  if (work.kind != plan::WorkKind::gemm || work.instances > 1 || plans_.no_devices() ||
      options_.partition != plan::Partition::automatic) {
    return std::nullopt;
  }
  const Left chain = left();
  const Seconds within = chain.time * kInTime;
  const plan::OperationPlan& hurried = plans_.plan_for(work);
  if (within < hurried.busy * kTooLate) return std::nullopt;
  const std::vector<plan::DeviceState> devices = devices_beside(chain, now);
  options_.longest_panel = chain.operation * kPanelShare;
  // The next ones may need fewer again, for devices are not all alike, but hardly less than a quarter.
  std::size_t& fewest = fewest_.try_emplace(work, 1).first->second;
  for (std::size_t count = std::max<std::size_t>(1, fewest / 4);
       count < devices.size() && devices[count - 1].down_busy < within; count *= 2) {
    try {
      plan::OperationPlan plan = plan::plan_operation(work, std::span(devices).first(count), options_);
      if (plan.time > within) continue;
      if (link_time(plan) > link_time(hurried) * kWorthwhile) break;
      for (const plan::TaskletPlan& piece : plan.tasklets) {
        Seconds& until = until_[piece.device];
        until = std::max(until, now + piece.time);
      }
      fewest = count;
      return plan;
    } catch (const InputError&) {}  // nobody among them can hold the smallest block
  }
  return std::nullopt;
}

}  // namespace cleave::sched
