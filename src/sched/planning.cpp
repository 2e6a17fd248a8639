// Plans that hold as long as the fleet is as it is.
#include "planning.hpp"

#include <algorithm>
#include <ranges>

#include "cleave/base/error.hpp"

namespace cleave::sched {

namespace {

/// A block that was lost so often is computed by the server.
constexpr int kMostReplannings = 8;

}  // namespace

Planning::Planning(Fleet& fleet, const SchedulerOptions& options, WeightCache& weights)
    : fleet_(fleet),
      options_(options),
      weights_(weights),
      plans_(options.plan),
      background_(plans_, partitions_, options.plan) {}

void Planning::begin(const model::StepGraph& graph, const std::vector<int>& urgency, const OperationSet& part) {
  estimates_.renew(true);
  background_.begin();
  if (partitions_.begin(graph, options_.wire, urgency)) planned_for_.reset();
  critical_.assign(graph.operations.size(), false);
  for (const model::Operation& op : graph.operations | std::views::reverse) {
    const auto i = static_cast<std::size_t>(op.id.value);
    critical_[i] = urgency[i] == 0 && model::runs_on_devices(op.kind) && part.contains(op.id);
    if (critical_[i]) background_.expect(plan::work_of(op, options_.wire), partitions_.of(op.id));
  }
}

std::vector<plan::DeviceState> Planning::usable(std::vector<plan::DeviceState> devices) const {
  std::erase_if(devices, [&](const plan::DeviceState& d) { return distrusted_.contains(d.profile.id); });
  const auto left_out = [&](const plan::DeviceState& d) { return breaker_.leaves_out(d.profile.id); };
  if (!std::all_of(devices.begin(), devices.end(), left_out)) std::erase_if(devices, left_out);
  if (options_.learn) estimates_.apply(devices);
  if (partitions_.in_use()) leave_room_for_columns(devices);
  return devices;
}

std::vector<plan::DeviceState> Planning::usable_devices() const { return usable(fleet_.devices()); }

void Planning::renew() {
  breaker_.advance(fleet_.now());
  const Version version{fleet_.roster(), distrusted_.size(), breaker_.version(), estimates_.version()};
  if (version == planned_for_) return;
  planned_for_ = version;
  for (const plan::DeviceState& device : fleet_.devices()) estimates_.know(device.profile);
  partitions_.leave();
  weights_.leave();
  std::vector<plan::DeviceState> devices = usable_devices();
  plans_.renew(devices);
  if (!options_.asynchronous) return;  // one operation at a time has all devices
  partitions_.renew(plans_, options_.plan);
  if (!partitions_.in_use()) return;
  for (const plan::DeviceState& device : devices) {
    weights_.set_room(device.profile.id, plan::room_for_columns(device.profile.memory));
  }
  leave_room_for_columns(devices);
  plans_.renew(std::move(devices));
}

void Planning::choose(ReadySet& ready) {
  renew();
  ready.choose(partitions_, plans_, background_, fleet_.now());
}

void Planning::complete(const model::Operation& op) {
  if (!critical_[static_cast<std::size_t>(op.id.value)]) return;
  background_.done(plan::work_of(op, options_.wire), partitions_.of(op.id));
}

std::vector<plan::TaskletPlan> Planning::again(const plan::Work& work, const std::vector<plan::TaskletPlan>& pieces,
                                               const Priority& priority, int losses) const {
  const std::vector<plan::DeviceState> devices = usable(fleet_.devices_ahead_of(priority));
  const bool all_fail =
      std::ranges::all_of(devices, [&](const plan::DeviceState& d) { return breaker_.leaves_out(d.profile.id); });
  if (!all_fail && losses < kMostReplannings) {
    try {
      return plan::replan(work, pieces, devices, options_.plan);
    } catch (const InputError&) {
      // None of those that are left can hold the smallest block: the server takes it, so that training goes on.
    }
  }
  std::vector<plan::TaskletPlan> own = pieces;
  for (plan::TaskletPlan& piece : own) {
    piece.device = kServerDevice;
    piece.columns_kept = false;
    piece.bytes_down = piece.bytes_up = piece.resident = Bytes(0);
  }
  return own;
}

}  // namespace cleave::sched
