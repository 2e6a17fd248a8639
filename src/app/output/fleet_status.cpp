// Counting and adding up.
#include "output/fleet_status.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace cleave::app {

namespace {

constexpr std::array<const char*, 3> kOfDevice{"downlink", "processor", "uplink"};
constexpr std::array<const char*, 3> kOfServer{"server's interface out", "server's interface in", "server's kernels"};

}  // namespace

FleetStatus::FleetStatus(const std::vector<fleet::DeviceProfile>& devices, sched::Observer* next) : next_(next) {
  for (const fleet::DeviceProfile& device : devices)
    devices_.push_back({.name = fmt::format("{} {}", device.name, device.id.value)});
}

void FleetStatus::begin(const model::StepGraph& graph, Seconds at) {
  begun_.assign(graph.operations.size(), false);
  begun_count_ = 0;
  if (from_ < 0) from_ = at.value();
  if (next_ != nullptr) next_->begin(graph, at);
}

void FleetStatus::span(const sched::Span& span) {
  if (next_ != nullptr) next_->span(span);
  const double length = (span.end - span.start).value();
  until_ = std::max(until_, span.end.value());
  switch (span.resource) {
    case sched::Resource::server_out: server_[0] += length; break;
    case sched::Resource::server_in: server_[1] += length; break;
    case sched::Resource::kernel: server_[2] += length; break;
    default:
      if (known(span.device))
        devices_[static_cast<std::size_t>(span.device.value)].busy[static_cast<std::size_t>(span.resource)] += length;
  }
  begun(span.op);
}

void FleetStatus::submitted(const sched::Tasklet& tasklet) {
  if (next_ != nullptr) next_->submitted(tasklet);
  begun(tasklet.op);
}

void FleetStatus::begun(OpId id) {
  const auto op = static_cast<std::size_t>(id.value);
  if (!told_ || op >= begun_.size() || begun_[op]) return;
  begun_[op] = true;
  told_(++begun_count_, begun_.size());
}

void FleetStatus::settled(TaskletId tasklet, Seconds at, bool lost) {
  if (next_ != nullptr) next_->settled(tasklet, at, lost);
}

void FleetStatus::changed(DeviceId device, sched::DeviceChange change, Seconds at, double factor) {
  if (next_ != nullptr) next_->changed(device, change, at, factor);
  if (!known(device)) return;
  Device& d = devices_[static_cast<std::size_t>(device.value)];
  switch (change) {
    case sched::DeviceChange::left: d.away = true; break;
    case sched::DeviceChange::joined: d.away = false; break;
    case sched::DeviceChange::slowed: d.slow = factor < 1; break;
    case sched::DeviceChange::hung:  // nobody knows before its deadline has passed
    case sched::DeviceChange::faulty: break;
  }
}

std::string FleetStatus::devices() const {
  const auto away = std::count_if(devices_.begin(), devices_.end(), [](const Device& d) { return d.away; });
  const auto slow = std::count_if(devices_.begin(), devices_.end(), [](const Device& d) { return d.slow && !d.away; });
  std::string text = fmt::format("{} up", static_cast<std::int64_t>(devices_.size()) - away);
  if (away > 0) text += fmt::format(", {} away", away);
  if (slow > 0) text += fmt::format(", {} slow", slow);
  return text;
}

std::string FleetStatus::busiest() {
  double most = 0;
  std::string name;
  for (Device& d : devices_) {
    for (std::size_t i = 0; i < d.busy.size(); ++i) {
      if (d.busy[i] > most) {
        most = d.busy[i];
        name = fmt::format("{} of {}", kOfDevice[i], d.name);
      }
    }
    d.busy = {};
  }
  for (std::size_t i = 0; i < server_.size(); ++i) {
    if (server_[i] > most) {
      most = server_[i];
      name = kOfServer[i];
    }
  }
  server_ = {};
  const double elapsed = until_ - from_;
  from_ = until_;
  return most > 0 && elapsed > 0 ? fmt::format("{}, {:.0f} %", name, std::min(100.0, 100 * most / elapsed)) : "none";
}

telemetry::ProgressSettings progress_of_short_work(bool quiet) {
  using Mode = telemetry::ProgressSettings::Mode;
  return {.mode = quiet ? Mode::quiet : Mode::automatic, .first_after = Seconds(2)};
}

}  // namespace cleave::app
