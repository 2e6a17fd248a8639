// The discrete-event simulation behind SimulatedFleet.
//
// A queue holds one moment for each device (simulated_device.hpp): its next answer, or when to look at it again.
// Another queue holds the rest: churn, hangs that are noticed, what the server computes. Where devices share nothing,
// because the server's interface is unlimited, nothing jitters and nobody watches every use of a resource, a device is
// looked at only when it may answer; otherwise at everything that happens within it, in order of time over all devices.
// Both give the same times.
#include "cleave/sched/simulated_fleet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "by_tasklet.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/resources.hpp"
#include "event_queue.hpp"
#include "simulated_device.hpp"

namespace cleave::sched {

namespace {

/// A device that answers nothing is noticed by its missing heartbeat after this long, and its blocks are lost.
constexpr Seconds kHeartbeatLimit{1.0};

enum class Step : std::uint8_t { own_tasklet_done, kernel_done, hang_noticed, churn };

struct Entry {
  EventKey when;
  Flight* flight = nullptr;  // own_tasklet_done
  std::int64_t subject = 0;  // device, operation or churn event
  std::uint32_t epoch = 0;
  Step step = Step::churn;
};

}  // namespace

struct SimulatedFleet::Impl {
  std::vector<SimulatedDevice> simulated_devices;
  DType wire;
  fleet::ChurnTrace churn;
  SharedState shared;
  Seconds now{0};
  SerialResource processor;
  const model::StepGraph* graph = nullptr;
  std::deque<Flight> pool;
  std::vector<Flight*> unused;
  ByTasklet<Flight*> flights;
  IndexedEventQueue device_events;
  EventKey out_free = kNever, in_free = kNever;  // as `device_events` has them
  EventQueue<Entry> other_events;
  std::int64_t entries = 0;
  std::uint64_t roster = 1;
  std::deque<Event> pending;
  std::vector<Usage> usage;
  bool jitters = false;
  bool apart = true;                // devices share nothing
  std::vector<plan::Panel> panels;  // of one flight

  Impl(std::vector<fleet::DeviceProfile> profiles, fleet::ServerProfile server, DType wire_type,
       fleet::ChurnTrace trace, std::uint64_t seed)
      : wire(wire_type),
        churn(std::move(trace)),
        shared{.server = server, .out = {}, .in = {}, .jitter = Random(seed, Purpose::jitter)},
        device_events(profiles.size() + 2),
        usage(profiles.size()) {
    simulated_devices.reserve(profiles.size());
    for (fleet::DeviceProfile& profile : profiles) {
      jitters = jitters || profile.jitter.value() > 0;
      simulated_devices.emplace_back(std::move(profile));
    }
    for (std::size_t i = 0; i < churn.size(); ++i) {
      push(churn[i].at, EventPriority::churn,
           {.when = {}, .subject = static_cast<std::int64_t>(i), .step = Step::churn});
    }
    share();
  }

  // Decides whether devices share anything.
  void share() {
    shared.spans = shared.observer != nullptr && shared.observer->wants_spans();
    shared.unlimited = std::isinf(shared.server.nic_out.value()) && std::isinf(shared.server.nic_in.value());
    apart = shared.unlimited && !jitters && !shared.spans;
    for (std::size_t i = 0; i < simulated_devices.size(); ++i) look_again(i);
  }

  void push(Seconds at, EventPriority priority, Entry entry) {
    entry.when = event_key(at, priority, entries++);
    other_events.push(entry);
  }

  // The simulated as it is now, for whoever does something to it or asks.
  SimulatedDevice& device_now(std::size_t index) {
    SimulatedDevice& simulated = simulated_devices[index];
    if (simulated.next_within().at <= now) simulated.advance(now, shared);
    return simulated;
  }
  SimulatedDevice& device_now(DeviceId device) { return device_now(static_cast<std::size_t>(device.value)); }
  // The simulated as it was when it was last looked at.
  SimulatedDevice& device_of(DeviceId device) { return simulated_devices[static_cast<std::size_t>(device.value)]; }

  // After anything was done to a simulated: when it is its turn again.
  void look_again(std::size_t index) {
    const SimulatedDevice& simulated = simulated_devices[index];
    const EventKey within = apart ? simulated.no_answer_before(now) : simulated.next_within();
    device_events.set(index, std::min(within, simulated.next_answer()));
  }
  // The two directions of the server's interface come after the devices.
  void look_at_ports() {
    const auto look = [&](std::size_t subject, EventKey& known, const ServerPort& port) {
      if (known != port.next()) device_events.set(subject, known = port.next());
    };
    look(simulated_devices.size(), out_free, shared.out);
    look(simulated_devices.size() + 1, in_free, shared.in);
  }
  void look_again(DeviceId device) { look_again(static_cast<std::size_t>(device.value)); }

  Flight& new_flight(const Tasklet& tasklet) {
    if (unused.empty()) unused.push_back(&pool.emplace_back());
    Flight& flight = *unused.back();
    unused.pop_back();
    flight.tasklet = tasklet;
    flight.wanted = true;
    flight.arrived = false;
    flights.add(tasklet.id, &flight);
    return flight;
  }
  void drop_flight(Flight& flight) {
    flights.remove(flight.tasklet.id);
    unused.push_back(&flight);
  }

  void finish(std::size_t index) {
    SimulatedDevice& simulated = device_now(index);
    Flight& flight = simulated.answer(now, shared);
    if (shared.observer != nullptr) shared.observer->settled(flight.tasklet.id, now, false);
    pending.push_back({.kind = flight.wanted ? EventKind::done : EventKind::late,
                       .at = now,
                       .tasklet = flight.tasklet.id,
                       .device = simulated.declared.id,
                       .op = flight.tasklet.op,
                       .measured = flight.measured});
    drop_flight(flight);
  }

  void leave(DeviceId device) {
    if (!device_of(device).present) return;
    SimulatedDevice& simulated = device_now(device);
    const Seconds unnoticed = simulated.hung() ? now - simulated.hung_at : Seconds(0);
    ++roster;
    const std::vector<Flight*> lost = simulated.leave();
    if (shared.observer != nullptr) {
      for (const Flight* flight : lost) shared.observer->settled(flight->tasklet.id, now, true);
      shared.observer->changed(simulated.declared.id, DeviceChange::left, now, 1.0);
    }
    for (Flight* flight : lost) drop_flight(*flight);
    pending.push_back({.kind = EventKind::left,
                       .at = now,
                       .tasklet = {},
                       .device = simulated.declared.id,
                       .op = {},
                       .unnoticed = unnoticed});
    look_again(device);
  }

  void join(DeviceId device) {
    SimulatedDevice& simulated = device_of(device);
    if (simulated.present) return;
    simulated.join();
    ++roster;
    if (shared.observer != nullptr) shared.observer->changed(device, DeviceChange::joined, now, 1.0);
    pending.push_back({.kind = EventKind::joined, .at = now, .tasklet = {}, .device = device, .op = {}});
  }

  void apply(const fleet::ChurnEvent& event) {
    if (event.device.value < 0 || event.device.value >= std::ssize(simulated_devices)) return;
    SimulatedDevice& simulated = device_now(event.device);
    switch (event.kind) {
      case fleet::ChurnKind::leave: leave(event.device); break;
      case fleet::ChurnKind::join:
        if (simulated.hung()) leave(event.device);  // what it held before it hung is lost
        join(event.device);
        break;
      case fleet::ChurnKind::slow:
        simulated.slow(event.factor);
        if (shared.observer != nullptr) shared.observer->changed(event.device, DeviceChange::slowed, now, event.factor);
        break;
      case fleet::ChurnKind::hang:
        if (!simulated.present || simulated.hung()) break;
        simulated.hang(now);
        push(now + kHeartbeatLimit, EventPriority::churn,
             {.when = {}, .subject = event.device.value, .epoch = simulated.epoch, .step = Step::hang_noticed});
        break;
      case fleet::ChurnKind::faulty:
        simulated.faults = fleet::InjectedFaults{event.fault, event.factor};
        if (shared.observer != nullptr) shared.observer->changed(event.device, DeviceChange::faulty, now, 1.0);
        break;
    }
    look_again(event.device);
  }

  void serve(const Entry& entry) {
    switch (entry.step) {
      case Step::own_tasklet_done:
        if (entry.flight->wanted) {
          pending.push_back({.kind = EventKind::done,
                             .at = now,
                             .tasklet = entry.flight->tasklet.id,
                             .device = kServerDevice,
                             .op = entry.flight->tasklet.op});
        }
        drop_flight(*entry.flight);
        break;
      case Step::kernel_done:
        pending.push_back({.kind = EventKind::kernel_done,
                           .at = now,
                           .tasklet = {},
                           .device = kServerDevice,
                           .op = OpId(entry.subject)});
        break;
      case Step::hang_noticed: {
        const SimulatedDevice& simulated = simulated_devices[static_cast<std::size_t>(entry.subject)];
        if (simulated.hung() && simulated.epoch == entry.epoch) leave(DeviceId(entry.subject));
        break;
      }
      case Step::churn: apply(churn[static_cast<std::size_t>(entry.subject)]); break;
    }
  }

  void serve_port(ServerPort& port, void (SimulatedDevice::*begin)(Seconds, SharedState&)) {
    ServerPort::Request request = port.release();
    while (request.device != nullptr && request.device->epoch != request.epoch) request = port.release();
    if (request.device == nullptr) return;
    (request.device->*begin)(now, shared);
    look_again(static_cast<std::size_t>(request.device - simulated_devices.data()));
  }

  // What `device_events` has next: an answer, something within a device, or the interface is free again.
  void serve_next() {
    const std::size_t index = device_events.subject();
    device_events.soon([&](std::size_t subject) {
      if (subject < simulated_devices.size()) simulated_devices[subject].prefetch();
    });
    if (index == simulated_devices.size()) return serve_port(shared.out, &SimulatedDevice::begin_down);
    if (index > simulated_devices.size()) return serve_port(shared.in, &SimulatedDevice::begin_up);
    const EventKey next = device_events.next();
    SimulatedDevice& simulated = simulated_devices[index];
    if (is_of(next, EventPriority::answer)) {
      finish(index);
    } else if (apart) {
      simulated.advance(now, shared);
    } else {
      simulated.serve(shared);
    }
    look_again(index);
  }
};

SimulatedFleet::SimulatedFleet(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, DType wire,
                               fleet::ChurnTrace churn, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(std::move(devices), server, wire, std::move(churn), seed)) {}
SimulatedFleet::~SimulatedFleet() = default;

Seconds SimulatedFleet::now() const { return impl_->now; }
std::uint64_t SimulatedFleet::roster() const { return impl_->roster; }

std::span<const Usage> SimulatedFleet::usage() const {
  for (std::size_t i = 0; i < impl_->simulated_devices.size(); ++i) impl_->usage[i] = impl_->device_now(i).usage;
  return impl_->usage;
}

std::vector<plan::DeviceState> SimulatedFleet::devices() const {
  std::vector<plan::DeviceState> states;
  for (std::size_t i = 0; i < impl_->simulated_devices.size(); ++i) {
    // A device that hangs looks like any other until its deadline passes.
    if (impl_->simulated_devices[i].present) states.push_back(impl_->device_now(i).state());
  }
  return states;
}

std::vector<plan::DeviceState> SimulatedFleet::devices_ahead_of(const Priority& priority) const {
  std::vector<plan::DeviceState> states;
  for (std::size_t i = 0; i < impl_->simulated_devices.size(); ++i) {
    if (impl_->simulated_devices[i].present)
      states.push_back(impl_->device_now(i).state_ahead_of(priority, impl_->now));
  }
  return states;
}

void SimulatedFleet::set_observer(Observer* observer) {
  impl_->shared.observer = observer;
  impl_->share();
}

void SimulatedFleet::begin_step(const model::StepGraph& graph) {
  impl_->graph = &graph;
  impl_->flights.for_each([](Flight* flight) { flight->tasklet.op = OpId(); });  // late: of a graph that is gone
  if (impl_->shared.observer != nullptr) impl_->shared.observer->begin(graph, impl_->now);
}

void SimulatedFleet::submit(const Tasklet& tasklet) {
  Impl& self = *impl_;
  Observer* const observer = self.shared.observer;
  const plan::Work work = tasklet.is_run() ? plan::Work{} : plan::work_of(self.graph->operation(tasklet.op), self.wire);
  const auto present = [&] { return self.device_of(tasklet.piece.device).present; };
  if (tasklet.brings_columns() && !present()) return;  // it has left, and will be planned anew
  const bool own = tasklet.piece.device == kServerDevice;
  if (!own) {
    CLEAVE_ASSERT(tasklet.piece.device.value >= 0 && tasklet.piece.device.value < std::ssize(self.simulated_devices),
                  "no device {}", tasklet.piece.device.value);
    self.device_of(tasklet.piece.device).prefetch();
    CLEAVE_ASSERT(self.device_of(tasklet.piece.device).present, "device {} is not there", tasklet.piece.device.value);
  }
  Flight& flight = self.new_flight(tasklet);
  if (observer != nullptr) observer->submitted(tasklet);
  if (own) {
    const Seconds time = plan::volume_of(work, tasklet.piece).flops / self.shared.server.compute;
    const Seconds end = self.processor.reserve(self.now, time) + time;
    if (observer != nullptr) {
      observer->span(span_of(tasklet, Resource::compute, end - time, end, Bytes(0)));
      observer->settled(tasklet.id, end, false);
    }
    self.push(end, EventPriority::answer, {.when = {}, .flight = &flight, .step = Step::own_tasklet_done});
    return;
  }
  flight.panels = tasklet.is_run() ? plan::PanelSequence(tasklet.run) : plan::PanelSequence(work, tasklet.piece);
  flight.last = flight.panels.last();
  flight.still_flops = tasklet.is_run() ? tasklet.run.flops() : plan::volume_of(work, tasklet.piece).flops;
  if (!self.shared.unlimited) {
    plan::panels_of(flight.panels, self.panels);
    plan::tails_of(self.panels, self.device_of(tasklet.piece.device).declared, flight.tails);
  }
  self.device_now(tasklet.piece.device).submit(flight, self.now, self.shared);
  self.look_again(tasklet.piece.device);
}

void SimulatedFleet::start(const model::Operation& kernel) {
  Impl& self = *impl_;
  const Seconds time = plan::kernel_time(kernel, self.shared.server);
  const Seconds end = self.processor.reserve(self.now, time) + time;
  if (self.shared.observer != nullptr) {
    self.shared.observer->span({.device = kServerDevice,
                                .resource = Resource::kernel,
                                .start = end - time,
                                .end = end,
                                .op = kernel.id,
                                .tasklet = {},
                                .bytes = Bytes(0)});
  }
  self.push(end, EventPriority::kernel, {.when = {}, .subject = kernel.id.value, .step = Step::kernel_done});
}

void SimulatedFleet::forget(TaskletId tasklet) {
  Impl& self = *impl_;
  std::erase_if(self.pending,
                [&](const Event& event) { return event.kind == EventKind::done && event.tasklet == tasklet; });
  Flight* const* const found = self.flights.find(tasklet);
  if (found == nullptr) return;
  Flight& flight = **found;
  flight.wanted = false;
  const DeviceId device = flight.tasklet.piece.device;
  if (device == kServerDevice) return;
  // What was not begun is not sent.
  if (!self.device_now(device).drop(flight, self.now, self.shared)) return;
  if (self.shared.observer != nullptr) self.shared.observer->settled(tasklet, self.now, true);
  self.drop_flight(flight);
  self.look_again(device);
}

void SimulatedFleet::release(TaskletId columns, DeviceId device) {
  Impl& self = *impl_;
  Flight* const over = self.device_now(device).release(columns, self.now, self.shared);
  if (over == nullptr) return;
  if (self.shared.observer != nullptr) self.shared.observer->settled(columns, self.now, false);
  self.drop_flight(*over);
  self.look_again(device);
}

Event SimulatedFleet::next_event(Seconds deadline) {
  Impl& self = *impl_;
  for (;;) {
    self.look_at_ports();
    const EventKey of_devices = self.device_events.next(), of_others = self.other_events.next();
    const EventKey next = std::min(of_devices, of_others);
    const bool at_once = next.at <= self.now && is_of(next, EventPriority::within_device);
    if (!self.pending.empty() && !at_once) break;
    if (next == kNever || next.at > deadline) {
      self.now = std::max(self.now, deadline);
      return {.kind = EventKind::timeout, .at = self.now, .tasklet = {}, .device = {}, .op = {}};
    }
    CLEAVE_ASSERT(next.at >= self.now, "an answer of {} s is noticed at {} s", next.at.value(), self.now.value());
    self.now = std::max(self.now, next.at);
    if (of_devices < of_others) {
      self.serve_next();
    } else {
      const Entry entry = self.other_events.top();
      self.other_events.pop();
      self.serve(entry);
    }
  }
  const Event event = self.pending.front();
  self.pending.pop_front();
  return event;
}

Seconds SimulatedFleet::next_at() const {
  const Impl& self = *impl_;
  return self.pending.empty() ? std::min(self.device_events.next(), self.other_events.next()).at : self.now;
}

void SimulatedFleet::remove_device(DeviceId device) { impl_->leave(device); }
void SimulatedFleet::return_device(DeviceId device) { impl_->join(device); }
std::optional<fleet::InjectedFaults> SimulatedFleet::injected_faults(DeviceId device) const {
  return impl_->device_of(device).faults;
}

}  // namespace cleave::sched
