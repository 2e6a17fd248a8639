// The discrete-event simulation behind SimulatedFleet.
//
// Agenda entries: a link is free again (down_free, up_free), a panel was computed, a tasklet's last byte reached the
// server, a kernel ended, churn. Entries of a device carry its epoch; those of an earlier epoch (before it left) are
// void.
#include "cleave/sched/simulated_fleet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "agenda.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/resources.hpp"

namespace cleave::sched {

namespace {

/// A device that answers nothing is noticed by its missing heartbeat after this long, and its blocks are lost.
constexpr Seconds kHeartbeatLimit{1.0};

enum class Step : std::uint8_t { down_free, panel_computed, up_free, tasklet_done, kernel_done, hang_noticed, churn };

struct Flight {
  Tasklet tasklet;
  std::vector<plan::Panel> panels;
  bool wanted = true;
  Measured measured{};
  std::int64_t next_panel = 0;  // to come down
  std::int64_t next_up = 0;     // to go up
};

struct Entry {
  Seconds at;
  std::int64_t sequence = 0;
  Flight* flight = nullptr;
  std::int32_t subject = 0;  // device index, operation or churn event
  std::int32_t panel = 0;
  std::uint32_t epoch = 0;
  Step step = Step::churn;
};

struct Up {
  Flight* flight = nullptr;
  std::int64_t panel = 0;
};
Place place_of(const Flight* flight) { return flight->tasklet.place(); }
Place place_of_up(const Up& up) { return up.flight->tasklet.place(); }

struct Device {
  fleet::DeviceProfile declared;
  double factor = 1.0;  // of every rate, when slowed
  bool present = true, hung = false;
  std::optional<fleet::Lying> lying{};
  Seconds hung_at;
  std::uint32_t epoch = 0;
  std::deque<Flight*> down_queue;  // whose panels are still to come down, by place
  bool down_taken = false, up_taken = false;
  Seconds down_free_at, up_free_at;  // while taken
  std::deque<Up> up_queue;
  Seconds arrival;  // of the last panel: a message never overtakes the one before it
  SerialResource processor;
  Bytes memory_taken;
  Seconds down_backlog, compute_backlog, up_backlog;  // at declared rates
  std::vector<Flight*> holds;

  [[nodiscard]] BytesPerSecond downlink() const { return declared.downlink * factor; }
  [[nodiscard]] BytesPerSecond uplink() const { return declared.uplink * factor; }
  [[nodiscard]] FlopsPerSecond compute() const { return declared.compute * factor; }
};

}  // namespace

struct SimulatedFleet::Impl {
  std::vector<Device> devices;
  fleet::ServerProfile server;
  DType wire;
  fleet::ChurnTrace churn;
  Random jitter;
  std::uint64_t messages = 0;
  Seconds now{0};
  SerialResource nic_out, nic_in, processor;
  const model::StepGraph* graph = nullptr;
  std::unordered_map<std::int64_t, Flight> flights;
  Agenda<Entry> agenda;
  std::int64_t sequence = 0;
  std::uint64_t roster = 1;
  std::deque<Event> pending;
  std::vector<Usage> usage;
  Observer* observer = nullptr;

  Impl(std::vector<fleet::DeviceProfile> profiles, fleet::ServerProfile server_profile, DType wire_type,
       fleet::ChurnTrace trace, std::uint64_t seed)
      : server(server_profile), wire(wire_type), churn(std::move(trace)), jitter(seed, Purpose::jitter) {
    for (fleet::DeviceProfile& profile : profiles) {
      Device device;
      device.declared = std::move(profile);
      devices.push_back(std::move(device));
    }
    usage.resize(devices.size());
    for (std::size_t i = 0; i < churn.size(); ++i) {
      push({.at = churn[i].at, .subject = static_cast<std::int32_t>(i), .step = Step::churn});
    }
  }

  void push(Entry entry) {
    entry.sequence = sequence++;
    agenda.push(entry);
  }

  Device& device_at(std::int64_t index) { return devices[static_cast<std::size_t>(index)]; }

  Seconds latency_of(const Device& device) {
    Seconds latency = device.declared.latency;
    if (device.declared.jitter.value() > 0) latency += device.declared.jitter * jitter.uniform(messages++);
    return latency;
  }

  void tell(const Tasklet& tasklet, Resource resource, Seconds start, Seconds end, Bytes bytes) const {
    observer->span(span_of(tasklet, resource, start, end, bytes));
  }

  // The tasklet whose panel comes down next: the most urgent one that is in memory or finds room there. While one waits
  // for room, those behind it that are not in yet wait too, so that it is not overtaken for ever.
  static std::deque<Flight*>::iterator next_down(Device& device) {
    bool waiting = false;
    for (auto it = device.down_queue.begin(); it != device.down_queue.end(); ++it) {
      const Flight& flight = **it;
      if (flight.next_panel > 0) return it;
      if (waiting) continue;
      if (device.memory_taken.value() == 0 ||
          device.memory_taken + flight.tasklet.piece.resident <= device.declared.memory)
        return it;
      waiting = true;
    }
    return device.down_queue.end();
  }

  // Starts the next panel down a link that is free, if memory allows its tasklet in.
  void pump_down(std::int32_t index) {
    Device& device = device_at(index);
    if (!device.present || device.hung || device.down_taken) return;
    const auto chosen = next_down(device);
    if (chosen == device.down_queue.end()) return;
    Flight& flight = **chosen;
    if (flight.next_panel == 0) {
      device.memory_taken += flight.tasklet.piece.resident;
      Usage& used = usage[static_cast<std::size_t>(index)];
      used.memory_peak = std::max(used.memory_peak, device.memory_taken);
    }
    const std::int64_t number = flight.next_panel++;
    const plan::Panel& panel = flight.panels[static_cast<std::size_t>(number)];

    const Seconds nic_time = panel.down / server.nic_out, link_time = panel.down / device.downlink();
    const Seconds start = nic_out.reserve(now, nic_time);
    const Seconds end = std::max(start + nic_time, start + link_time);
    Usage& used = usage[static_cast<std::size_t>(index)];
    used.down += link_time;
    used.bytes_down += panel.down;
    device.down_backlog -= panel.down / device.declared.downlink;
    flight.measured.down += link_time;
    device.down_taken = true;
    device.down_free_at = end;
    push({.at = end, .subject = index, .epoch = device.epoch, .step = Step::down_free});
    if (observer != nullptr && panel.down.value() > 0) {
      tell(flight.tasklet, Resource::down, start, end, panel.down);
      tell(flight.tasklet, Resource::server_out, start, start + nic_time, panel.down);
    }

    const Seconds arrival = panel.down.value() > 0 ? std::max(device.arrival, end + latency_of(device)) : now;
    device.arrival = std::max(device.arrival, arrival);
    const Seconds work = panel.flops / device.compute();
    const Seconds computed = device.processor.reserve(device.arrival, work) + work;
    used.compute += work;
    device.compute_backlog -= panel.flops / device.declared.compute;
    flight.measured.compute += work;
    if (observer != nullptr) tell(flight.tasklet, Resource::compute, computed - work, computed, Bytes(0));
    push({.at = computed,
          .flight = &flight,
          .subject = index,
          .panel = static_cast<std::int32_t>(number),
          .epoch = device.epoch,
          .step = Step::panel_computed});
    if (flight.next_panel == static_cast<std::int64_t>(flight.panels.size())) device.down_queue.erase(chosen);
  }

  void pump_up(std::int32_t index) {
    Device& device = device_at(index);
    if (device.up_taken || device.up_queue.empty()) return;
    const Up up = device.up_queue.front();
    device.up_queue.pop_front();
    Flight& flight = *up.flight;
    flight.next_up = up.panel + 1;
    const plan::Panel& panel = flight.panels[static_cast<std::size_t>(up.panel)];
    const Seconds nic_time = panel.up / server.nic_in, link_time = panel.up / device.uplink();
    const Seconds start = nic_in.reserve(now, nic_time);
    const Seconds end = start + std::max(nic_time, link_time);
    Usage& used = usage[static_cast<std::size_t>(index)];
    used.up += link_time;
    used.bytes_up += panel.up;
    device.up_backlog -= panel.up / device.declared.uplink;
    flight.measured.up += link_time;
    device.up_taken = true;
    device.up_free_at = end;
    push({.at = end, .subject = index, .epoch = device.epoch, .step = Step::up_free});
    if (observer != nullptr) {
      tell(flight.tasklet, Resource::up, start, end, panel.up);
      tell(flight.tasklet, Resource::server_in, start, start + nic_time, panel.up);
    }
    if (up.panel + 1 == static_cast<std::int64_t>(flight.panels.size())) {
      push({.at = end + latency_of(device),
            .flight = &flight,
            .subject = index,
            .epoch = device.epoch,
            .step = Step::tasklet_done});
    }
  }

  static Measured measured_of(const Flight& flight) {
    Measured measured = flight.measured;
    for (const plan::Panel& panel : flight.panels) {
      measured.bytes_down += panel.down;
      measured.bytes_up += panel.up;
      measured.flops = measured.flops + panel.flops;
    }
    return measured;
  }

  void finish(std::int32_t index, Flight& flight) {
    Device& device = device_at(index);
    const TaskletId id = flight.tasklet.id;
    device.memory_taken -= flight.tasklet.piece.resident;
    std::erase(device.holds, &flight);
    if (observer != nullptr) observer->settled(id, now, false);
    ++usage[static_cast<std::size_t>(index)].tasklets;
    pending.push_back({.kind = flight.wanted ? EventKind::done : EventKind::late,
                       .at = now,
                       .tasklet = id,
                       .device = device.declared.id,
                       .op = flight.tasklet.op,
                       .measured = measured_of(flight)});
    flights.erase(id.value);
    pump_down(index);
  }

  void leave(std::int64_t index) {
    Device& device = device_at(index);
    if (!device.present) return;
    device.present = false;
    ++device.epoch;
    ++roster;
    if (observer != nullptr) {
      for (const Flight* flight : device.holds) observer->settled(flight->tasklet.id, now, true);
      observer->changed(device.declared.id, DeviceChange::left, now, 1.0);
    }
    for (const Flight* flight : device.holds) flights.erase(flight->tasklet.id.value);
    device.holds.clear();
    device.down_queue.clear();
    device.up_queue.clear();
    device.down_taken = device.up_taken = false;
    device.memory_taken = Bytes(0);
    device.down_backlog = device.compute_backlog = device.up_backlog = Seconds(0);
    device.processor = SerialResource{};
    pending.push_back({.kind = EventKind::left,
                       .at = now,
                       .tasklet = {},
                       .device = device.declared.id,
                       .op = {},
                       .unnoticed = device.hung ? now - device.hung_at : Seconds(0)});
    device.hung = false;
  }

  void join(std::int64_t index) {
    Device& device = device_at(index);
    if (device.present) return;
    device.present = true;
    device.hung = false;
    ++roster;
    if (observer != nullptr) observer->changed(device.declared.id, DeviceChange::joined, now, 1.0);
    pending.push_back({.kind = EventKind::joined, .at = now, .tasklet = {}, .device = device.declared.id, .op = {}});
  }

  void apply(const fleet::ChurnEvent& event) {
    if (event.device.value < 0 || event.device.value >= static_cast<std::int64_t>(devices.size())) return;
    Device& device = device_at(event.device.value);
    switch (event.kind) {
      case fleet::ChurnKind::leave: leave(event.device.value); break;
      case fleet::ChurnKind::join:
        if (device.hung) leave(event.device.value);  // what it held before it hung is lost
        join(event.device.value);
        break;
      case fleet::ChurnKind::slow:
        device.factor = event.factor;
        if (observer != nullptr) observer->changed(event.device, DeviceChange::slowed, now, event.factor);
        break;
      case fleet::ChurnKind::hang:
        if (!device.present || device.hung) break;
        device.hung = true;
        device.hung_at = now;
        ++device.epoch;
        push({.at = now + kHeartbeatLimit,
              .subject = static_cast<std::int32_t>(event.device.value),
              .epoch = device.epoch,
              .step = Step::hang_noticed});
        break;
      case fleet::ChurnKind::lie:
        device.lying = fleet::Lying{event.lie, event.factor};
        if (observer != nullptr) observer->changed(event.device, DeviceChange::lies, now, 1.0);
        break;
    }
  }

  void serve(const Entry& entry) {
    const bool of_device = entry.step == Step::down_free || entry.step == Step::panel_computed ||
                           entry.step == Step::up_free || entry.step == Step::tasklet_done;
    if (of_device && entry.subject >= 0 && device_at(entry.subject).epoch != entry.epoch) return;
    switch (entry.step) {
      case Step::down_free:
        device_at(entry.subject).down_taken = false;
        pump_down(entry.subject);
        break;
      case Step::panel_computed: {
        Device& device = device_at(entry.subject);
        const Up up{entry.flight, entry.panel};
        if (up.flight->panels[static_cast<std::size_t>(up.panel)].up.value() > 0) {
          device.up_queue.insert(std::ranges::upper_bound(device.up_queue, place_of_up(up), {}, place_of_up), up);
          pump_up(entry.subject);
        }
        break;
      }
      case Step::up_free:
        device_at(entry.subject).up_taken = false;
        pump_up(entry.subject);
        break;
      case Step::tasklet_done:
        if (entry.subject < 0) {  // computed by the server itself
          const TaskletId id = entry.flight->tasklet.id;
          if (entry.flight->wanted) {
            pending.push_back({.kind = EventKind::done,
                               .at = now,
                               .tasklet = id,
                               .device = kServerDevice,
                               .op = entry.flight->tasklet.op});
          }
          flights.erase(id.value);
        } else {
          finish(entry.subject, *entry.flight);
        }
        break;
      case Step::kernel_done:
        pending.push_back({.kind = EventKind::kernel_done,
                           .at = now,
                           .tasklet = {},
                           .device = kServerDevice,
                           .op = OpId(entry.subject)});
        break;
      case Step::hang_noticed:
        if (device_at(entry.subject).hung && device_at(entry.subject).epoch == entry.epoch) leave(entry.subject);
        break;
      case Step::churn: apply(churn[static_cast<std::size_t>(entry.subject)]); break;
    }
  }
};

SimulatedFleet::SimulatedFleet(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, DType wire,
                               fleet::ChurnTrace churn, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(std::move(devices), server, wire, std::move(churn), seed)) {}
SimulatedFleet::~SimulatedFleet() = default;

Seconds SimulatedFleet::now() const { return impl_->now; }
std::uint64_t SimulatedFleet::roster() const { return impl_->roster; }
std::span<const Usage> SimulatedFleet::usage() const { return impl_->usage; }

std::vector<plan::DeviceState> SimulatedFleet::devices() const {
  std::vector<plan::DeviceState> states;
  for (const Device& device : impl_->devices) {
    // A device that hangs looks like any other until its deadline passes.
    if (!device.present) continue;
    states.push_back({device.declared, device.down_backlog, device.compute_backlog, device.up_backlog});
  }
  return states;
}

std::vector<plan::DeviceState> SimulatedFleet::devices_ahead_of(const Place& place) const {
  const Seconds now = impl_->now;
  const auto left = [now](bool taken, Seconds until) { return taken ? std::max(until - now, Seconds(0)) : Seconds(0); };
  std::vector<plan::DeviceState> states;
  for (const Device& device : impl_->devices) {
    if (!device.present) continue;
    plan::DeviceState state{device.declared, left(device.down_taken, device.down_free_at),
                            left(true, device.processor.free_at()), left(device.up_taken, device.up_free_at)};
    for (const Flight* flight : device.holds) {
      if (flight->tasklet.place() > place) continue;
      const std::vector<plan::Panel>& panels = flight->panels;
      for (auto p = static_cast<std::size_t>(flight->next_panel); p < panels.size(); ++p) {
        state.down_busy += panels[p].down / device.declared.downlink;
        state.compute_busy += panels[p].flops / device.declared.compute;
      }
      for (auto p = static_cast<std::size_t>(flight->next_up); p < panels.size(); ++p) {
        state.up_busy += panels[p].up / device.declared.uplink;
      }
    }
    states.push_back(state);
  }
  return states;
}

void SimulatedFleet::set_observer(Observer* observer) { impl_->observer = observer; }

void SimulatedFleet::begin_step(const model::StepGraph& graph) {
  impl_->graph = &graph;
  for (auto& [id, flight] : impl_->flights) flight.tasklet.op = OpId();  // late: of a graph that is gone
  if (impl_->observer != nullptr) impl_->observer->begin(graph, impl_->now);
}

void SimulatedFleet::submit(const Tasklet& tasklet) {
  Impl& self = *impl_;
  const plan::Work work = plan::work_of(self.graph->operation(tasklet.op), self.wire);
  Flight flight{.tasklet = tasklet, .panels = plan::panels_of(work, tasklet.piece), .wanted = true};
  const std::int64_t id = tasklet.id.value;
  if (tasklet.piece.device == kServerDevice) {
    const Seconds time = plan::volume_of(work, tasklet.piece).flops / self.server.compute;
    const Seconds end = self.processor.reserve(self.now, time) + time;
    if (self.observer != nullptr) {
      self.tell(tasklet, Resource::compute, end - time, end, Bytes(0));
      self.observer->settled(tasklet.id, end, false);
    }
    Flight& kept = self.flights.emplace(id, std::move(flight)).first->second;
    self.push({.at = end, .flight = &kept, .subject = -1, .step = Step::tasklet_done});
    return;
  }
  const auto index = static_cast<std::int32_t>(tasklet.piece.device.value);
  CLEAVE_ASSERT(index >= 0 && index < std::ssize(self.devices), "no device {}", index);
  Device& device = self.device_at(index);
  CLEAVE_ASSERT(device.present, "device {} is not there", index);
  for (const plan::Panel& panel : flight.panels) {
    device.down_backlog += panel.down / device.declared.downlink;
    device.compute_backlog += panel.flops / device.declared.compute;
    device.up_backlog += panel.up / device.declared.uplink;
  }
  Flight* const kept = &self.flights.emplace(id, std::move(flight)).first->second;
  device.holds.push_back(kept);
  device.down_queue.insert(std::ranges::upper_bound(device.down_queue, tasklet.place(), {}, place_of), kept);
  self.pump_down(index);
}

void SimulatedFleet::start(const model::Operation& kernel) {
  Impl& self = *impl_;
  const Seconds time =
      std::max(model::flops_of(kernel) / self.server.compute, model::traffic_of(kernel) / self.server.memory_bandwidth);
  const Seconds end = self.processor.reserve(self.now, time) + time;
  if (self.observer != nullptr) {
    self.observer->span({.device = kServerDevice,
                         .resource = Resource::kernel,
                         .start = end - time,
                         .end = end,
                         .op = kernel.id,
                         .tasklet = {},
                         .bytes = Bytes(0)});
  }
  self.push({.at = end, .subject = static_cast<std::int32_t>(kernel.id.value), .step = Step::kernel_done});
}

void SimulatedFleet::forget(TaskletId tasklet) {
  Impl& self = *impl_;
  std::erase_if(self.pending,
                [&](const Event& event) { return event.kind == EventKind::done && event.tasklet == tasklet; });
  const auto found = self.flights.find(tasklet.value);
  if (found == self.flights.end()) return;
  Flight& flight = found->second;
  flight.wanted = false;
  if (flight.tasklet.piece.device == kServerDevice) return;
  // What was not begun is not sent.
  Device& device = self.device_at(flight.tasklet.piece.device.value);
  const auto queued = std::find(device.down_queue.begin(), device.down_queue.end(), &flight);
  if (queued == device.down_queue.end() || flight.next_panel > 0) return;
  for (const plan::Panel& panel : flight.panels) {
    device.down_backlog -= panel.down / device.declared.downlink;
    device.compute_backlog -= panel.flops / device.declared.compute;
    device.up_backlog -= panel.up / device.declared.uplink;
  }
  if (self.observer != nullptr) self.observer->settled(tasklet, self.now, true);
  device.down_queue.erase(queued);
  std::erase(device.holds, &flight);
  const auto index = static_cast<std::int32_t>(flight.tasklet.piece.device.value);
  self.flights.erase(found);
  self.pump_down(index);
}

Event SimulatedFleet::next_event(Seconds deadline) {
  Impl& self = *impl_;
  while (self.pending.empty()) {
    if (self.agenda.empty() || self.agenda.top().at > deadline) {
      self.now = std::max(self.now, deadline);
      return {.kind = EventKind::timeout, .at = self.now, .tasklet = {}, .device = {}, .op = {}};
    }
    const Entry entry = self.agenda.top();
    self.agenda.pop();
    self.now = std::max(self.now, entry.at);
    self.serve(entry);
  }
  const Event event = self.pending.front();
  self.pending.pop_front();
  return event;
}

void SimulatedFleet::remove_device(DeviceId device) { impl_->leave(device.value); }
void SimulatedFleet::return_device(DeviceId device) { impl_->join(device.value); }
std::optional<fleet::Lying> SimulatedFleet::lies(DeviceId device) const {
  return impl_->devices[static_cast<std::size_t>(device.value)].lying;
}

}  // namespace cleave::sched
