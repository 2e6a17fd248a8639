// Twice as many devices until they are done in time.
#include "background_scheduler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "cleave/base/error.hpp"
#include "share.hpp"

namespace cleave::sched {

namespace {

/// Deferrable work is planned to end when this share of the critical path's time is over: it does not always go as
/// planned.
constexpr double kBackgroundInTime = 0.9;
/// A link is never taken for busier with the critical path than to leave these shares: there are gaps between its
/// operations.
constexpr double kLeastDown = 0.65, kLeastUp = 0.2;
/// Deferrable tasklets that a device holds at once: one whose result leaves, and the next.
constexpr std::int64_t kAtOnce = 2;
/// A deferrable panel takes a link for this share of the time of an operation of the critical path, at the rates that
/// deferrable work is given: the critical path has to wait for what is under way.
constexpr double kPanelShare = 0.05;
/// A plan for the whole fleet is as good where the critical path ends within this many of its times...
constexpr double kTooLate = 10;
/// ... or where giving way saves no more than down to this share of its bytes: they are hurried then beside the
/// critical path.
constexpr double kWorthwhile = 0.6;
/// Plans of a shape that all move so many times what is worthwhile are not recomputed, while what is left of the links
/// differs by no more than the second, and panels by no more than the third: it would come to the same.
constexpr double kFarTooMuch = 1.2, kSameRates = 1.25, kSamePanels = 1.25;

bool close(double a, double b, double ratio) { return a <= b * ratio && b <= a * ratio; }

}  // namespace

BackgroundScheduler::BackgroundScheduler(PlanCache& plans, const DevicePartitions& partitions,
                                         const plan::PlanOptions& options)
    : plans_(plans), partitions_(partitions), options_(options) {}

void BackgroundScheduler::begin() {
  critical_path_.clear();
  until_.clear();
  fewest_.clear();
  hopeless_.clear();
}

std::vector<BackgroundScheduler::CriticalPart>::iterator BackgroundScheduler::find(
    const plan::Work& work, std::optional<std::size_t> partition) {
  return std::ranges::find_if(
      critical_path_, [&](const CriticalPart& part) { return part.work == work && part.partition == partition; });
}

void BackgroundScheduler::expect(const plan::Work& work, std::optional<std::size_t> partition) {
  const auto found = find(work, partition);
  if (found == critical_path_.end()) {
    critical_path_.push_back({work, partition, 1});
    version_ = 0;
  } else {
    ++found->count;
  }
}

void BackgroundScheduler::done(const plan::Work& work, std::optional<std::size_t> partition) {
  --find(work, partition)->count;
}

const plan::OperationPlan& BackgroundScheduler::plan_of(const CriticalPart& part) {
  return part.partition && partitions_.in_use() ? partitions_.plan_of(*part.partition, part.work)
                                                : plans_.plan_for(part.work);
}

Seconds BackgroundScheduler::in_hand(DeviceId device, Seconds now) const {
  const auto found = until_.find(device);
  return found == until_.end() ? Seconds(0) : std::max(Seconds(0), found->second - now);
}

BackgroundScheduler::Left BackgroundScheduler::left() {
  Left path;
  double down = 0, up = 0;
  std::int64_t operations = 0;
  std::map<model::Phase, std::map<std::size_t, Seconds>> in_partitions;  // partitions of a phase work at the same time
  for (const CriticalPart& part : critical_path_) {
    if (part.count == 0) continue;
    const plan::OperationPlan& plan = plan_of(part);
    operations += part.count;
    const auto count = static_cast<double>(part.count);
    if (part.partition && partitions_.in_use()) {
      const DevicePartition& partition = partitions_.all()[*part.partition];
      in_partitions[partition.phase][*part.partition] +=
          partition.busy * (count / static_cast<double>(partition.sizes.size()));
    } else {
      path.time += plan.busy * count;
    }
    down += count * static_cast<double>(plan.bytes_down.value());
    up += count * static_cast<double>(plan.bytes_up.value());
  }
  for (const auto& [phase, partitions] : in_partitions) {
    Seconds longest{0};
    for (const auto& [partition, time] : partitions) longest = std::max(longest, time);
    path.time += longest;
  }
  if (path.time.value() <= 0) return path;
  path.operation = path.time / static_cast<double>(operations);
  renew_fleet();
  path.down = down / (downlink_.value() * path.time.value());
  path.up = up / (uplink_.value() * path.time.value());
  return path;
}

// For which the bytes of a plan would take all links, one direction after the other.
Seconds BackgroundScheduler::link_time(const plan::OperationPlan& plan) const {
  return plan.bytes_down / downlink_ + plan.bytes_up / uplink_;
}

// No plan for devices with so much memory moves less: a tasklet that keeps e elements of one operand or of the result
// multiplies no more than sqrt(e) / 2 times for each element that comes or goes (Irony, Toledo, Tiskin 2004). Example:
// 5120 x 5120 x 131072 with 2 bytes on the wire: 35 GB at least with 0.3 MB each, 0.9 GB with 500 MB.
Seconds BackgroundScheduler::least_link_time(const plan::Work& work, Bytes memory) const {
  const auto size = static_cast<double>(size_of(work.wire)), elements = static_cast<double>(memory.value()) / size;
  const double products =
      static_cast<double>(work.gemm.m) * static_cast<double>(work.gemm.n) * static_cast<double>(work.gemm.k);
  const auto bytes = 2 * products / std::sqrt(std::max(1.0, elements)) * size;
  return Seconds(bytes / std::max(downlink_, uplink_).value());
}

// Joint rates, and the memory that is left beside the largest tasklet of the critical path, whichever it is.
void BackgroundScheduler::renew_fleet() {
  if (version_ == plans_.version()) return;
  version_ = plans_.version();
  fewest_.clear();
  hopeless_.clear();
  std::unordered_map<DeviceId, Bytes> largest;
  for (const CriticalPart& part : critical_path_) {
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

double BackgroundScheduler::left_of_down(const Left& path) { return std::max(kLeastDown, 1 - path.down); }
double BackgroundScheduler::left_of_up(const Left& path) { return std::max(kLeastUp, 1 - path.up); }

// Whether plans of this shape were hopeless at much the same rates. Devices that have something in hand come last, so
// others would be asked then.
bool BackgroundScheduler::is_hopeless(const plan::Work& work, const Left& path, Seconds now) const {
  const auto found = hopeless_.find(work);
  if (found == hopeless_.end() || has_in_hand(now)) return false;
  const Left& then = found->second;
  return close(left_of_down(then), left_of_down(path), kSameRates) &&
         close(left_of_up(then), left_of_up(path), kSameRates) &&
         close(then.operation.value(), path.operation.value(), kSamePanels);
}

bool BackgroundScheduler::has_in_hand(Seconds now) const {
  return std::ranges::any_of(until_, [&](const auto& device) { return device.second > now; });
}

std::vector<plan::DeviceState> BackgroundScheduler::devices_beside(const Left& path, Seconds now) {
  renew_fleet();
  std::vector<plan::DeviceState> devices(plans_.devices().begin(), plans_.devices().end());
  for (plan::DeviceState& device : devices) {
    device.profile.downlink = device.profile.downlink * left_of_down(path);
    device.profile.uplink = device.profile.uplink * left_of_up(path);
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

std::optional<plan::OperationPlan> BackgroundScheduler::plan(const plan::Work& work, Seconds now) {
  if (work.kind != plan::WorkKind::gemm || work.instances > 1 || plans_.no_devices() ||
      options_.partition != plan::Partition::automatic) {
    return std::nullopt;
  }
  const Left path = left();
  const Seconds within = path.time * kBackgroundInTime;
  const plan::OperationPlan& hurried = plans_.plan_for(work);
  if (within < hurried.busy * kTooLate) return std::nullopt;
  renew_fleet();
  if (is_hopeless(work, path, now)) return std::nullopt;
  std::vector<plan::DeviceState> devices = devices_beside(path, now);
  // Whose memory is all but taken would be given a million blocks.
  std::erase_if(devices, [&](const plan::DeviceState& device) {
    return least_link_time(work, device.profile.memory) > link_time(hurried) * kWorthwhile;
  });
  options_.longest_panel = path.operation * kPanelShare;
  // The next ones may need fewer again, for devices are not all alike, but hardly less than a quarter.
  std::size_t& fewest = fewest_.try_emplace(work, 1).first->second;
  Seconds least(std::numeric_limits<double>::infinity());  // link time of the plans that were made
  for (std::size_t count = std::max<std::size_t>(1, fewest / 4);
       count < devices.size() && devices[count - 1].down_busy < within; count *= 2) {
    try {
      plan::OperationPlan plan = plan::plan_operation(work, std::span(devices).first(count), options_);
      least = std::min(least, link_time(plan));
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
  if (least > link_time(hurried) * (kWorthwhile * kFarTooMuch) && !has_in_hand(now)) hopeless_[work] = path;
  return std::nullopt;
}

}  // namespace cleave::sched
