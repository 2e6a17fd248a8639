// The Fleet interface over a star of devices, with churn and the server's own processor.
//
// The star (cleave/timing/star.hpp) knows when streams are through. A queue beside it holds what else happens: churn,
// hangs that are noticed, what the server computes itself. At one time, what happens within devices comes first, then
// churn, then answers in order of tasklet, then kernels.
#include "cleave/sched/simulated_fleet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "by_tasklet.hpp"
#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/timing/event_queue.hpp"
#include "cleave/timing/resources.hpp"
#include "cleave/timing/star.hpp"

namespace cleave::sched {

using timing::event_key;
using timing::EventKey;
using timing::EventPriority;
using timing::is_of;
using timing::kNever;

namespace {

/// A device that answers nothing is noticed by its missing heartbeat after this long, and its blocks are lost.
constexpr Seconds kHeartbeatLimit{1.0};

/// A tasklet on its device.
struct Flight : timing::Stream {
  Tasklet tasklet;
  bool wanted = true;
};

enum class EntryKind : std::uint8_t { own_tasklet_done, kernel_done, hang_noticed, churn };

struct Entry {
  EventKey when;
  Flight* flight = nullptr;  // own_tasklet_done
  std::int64_t subject = 0;  // device, operation or churn event
  std::uint32_t epoch = 0;
  EntryKind kind = EntryKind::churn;
};

std::size_t index_of(DeviceId device) { return static_cast<std::size_t>(device.value); }

}  // namespace

struct SimulatedFleet::Impl final : timing::ResourceObserver {
  timing::Star star;
  fleet::ServerProfile server;
  DType wire;
  fleet::ChurnTrace churn;
  std::vector<std::optional<fleet::InjectedFaults>> faults;
  timing::SerialResource processor;  // the server's
  Seconds processor_taken;
  const model::StepGraph* graph = nullptr;
  std::deque<Flight> pool;
  std::vector<Flight*> unused;
  ByTasklet<Flight*> flights;
  timing::EventQueue<Entry> other_events;
  std::int64_t entries = 0;
  std::uint64_t roster = 1;
  std::deque<Event> pending;
  std::vector<Usage> usage;
  Observer* observer = nullptr;

  Impl(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server_profile, DType wire_type,
       fleet::ChurnTrace trace, std::uint64_t seed)
      : star(std::move(devices), server_profile, seed),
        server(server_profile),
        wire(wire_type),
        churn(std::move(trace)),
        faults(star.size()),
        usage(star.size()) {
    for (std::size_t i = 0; i < churn.size(); ++i) {
      push(churn[i].at, EventPriority::churn,
           {.when = {}, .subject = static_cast<std::int64_t>(i), .kind = EntryKind::churn});
    }
  }

  [[nodiscard]] Seconds now() const { return star.now(); }

  void push(Seconds at, EventPriority priority, Entry entry) { push(at, priority, entries++, entry); }
  // `number`: its place among events of the same time and priority.
  void push(Seconds at, EventPriority priority, std::int64_t number, Entry entry) {
    entry.when = event_key(at, priority, number);
    other_events.push(entry);
  }

  // A panel of a tasklet uses a resource.
  void used(const timing::Stream& stream, Resource resource, Seconds start, Seconds end, Bytes bytes) override {
    observer->span(span_of(static_cast<const Flight&>(stream).tasklet, resource, start, end, bytes));
  }

  Flight& new_flight(const Tasklet& tasklet) {
    if (unused.empty()) unused.push_back(&pool.emplace_back());
    Flight& flight = *unused.back();
    unused.pop_back();
    flight.tasklet = tasklet;
    flight.wanted = true;
    flights.add(tasklet.id, &flight);
    return flight;
  }
  void drop_flight(Flight& flight) {
    flights.remove(flight.tasklet.id);
    unused.push_back(&flight);
  }

  void answer(Flight& flight) {
    if (observer != nullptr) observer->settled(flight.tasklet.id, now(), false);
    pending.push_back({.kind = flight.wanted ? EventKind::done : EventKind::late,
                       .at = now(),
                       .tasklet = flight.tasklet.id,
                       .device = flight.tasklet.piece.device,
                       .op = flight.tasklet.op,
                       .measured = flight.measured});
    drop_flight(flight);
  }

  // Loads that were released while they came, and are down now.
  void settle_ended() {
    for (timing::Stream* const stream : star.take_ended()) {
      if (observer != nullptr) observer->settled(TaskletId(stream->id), now(), false);
      drop_flight(static_cast<Flight&>(*stream));
    }
  }

  void leave(DeviceId device) {
    const std::size_t index = index_of(device);
    if (!star.present(index)) return;
    const Seconds unnoticed = star.hung(index) ? now() - star.hung_at(index) : Seconds(0);
    ++roster;
    const std::vector<timing::Stream*> lost = star.leave(index);
    if (observer != nullptr) {
      for (const timing::Stream* stream : lost) observer->settled(TaskletId(stream->id), now(), true);
      observer->changed(device, DeviceChange::left, now(), 1.0);
    }
    for (timing::Stream* stream : lost) drop_flight(static_cast<Flight&>(*stream));
    pending.push_back(
        {.kind = EventKind::left, .at = now(), .tasklet = {}, .device = device, .op = {}, .unnoticed = unnoticed});
  }

  void join(DeviceId device) {
    if (star.present(index_of(device))) return;
    star.join(index_of(device));
    ++roster;
    if (observer != nullptr) observer->changed(device, DeviceChange::joined, now(), 1.0);
    pending.push_back({.kind = EventKind::joined, .at = now(), .tasklet = {}, .device = device, .op = {}});
  }

  void apply(const fleet::ChurnEvent& event) {
    const std::size_t index = index_of(event.device);
    if (event.device.value < 0 || index >= star.size()) return;
    const auto tell = [&](DeviceChange change, double factor) {
      if (observer != nullptr) observer->changed(event.device, change, now(), factor);
    };
    switch (event.kind) {
      case fleet::ChurnKind::leave: leave(event.device); break;
      case fleet::ChurnKind::join:
        if (star.hung(index)) leave(event.device);  // what it held before it hung is lost
        join(event.device);
        break;
      case fleet::ChurnKind::slow:
        star.slow(index, event.factor);
        tell(DeviceChange::slowed, event.factor);
        break;
      case fleet::ChurnKind::hang:
        if (!star.present(index) || star.hung(index)) break;
        star.hang(index);
        push(now() + kHeartbeatLimit, EventPriority::churn,
             {.when = {}, .subject = event.device.value, .epoch = star.epoch(index), .kind = EntryKind::hang_noticed});
        break;
      case fleet::ChurnKind::faulty:
        faults[index] = fleet::InjectedFaults{event.fault, event.factor};
        tell(DeviceChange::faulty, 1.0);
        break;
    }
  }

  void serve(const Entry& entry) {
    switch (entry.kind) {
      case EntryKind::own_tasklet_done:
        if (entry.flight->wanted) {
          pending.push_back({.kind = EventKind::done,
                             .at = now(),
                             .tasklet = entry.flight->tasklet.id,
                             .device = kServerDevice,
                             .op = entry.flight->tasklet.op});
        }
        drop_flight(*entry.flight);
        break;
      case EntryKind::kernel_done:
        pending.push_back({.kind = EventKind::kernel_done,
                           .at = now(),
                           .tasklet = {},
                           .device = kServerDevice,
                           .op = OpId(entry.subject)});
        break;
      case EntryKind::hang_noticed: {
        const auto index = static_cast<std::size_t>(entry.subject);
        if (star.hung(index) && star.epoch(index) == entry.epoch) leave(DeviceId(entry.subject));
        break;
      }
      case EntryKind::churn: apply(churn[static_cast<std::size_t>(entry.subject)]); break;
    }
  }

  // The server computes a block itself.
  void compute(Flight& flight, Flops flops) {
    const Seconds time = flops / server.compute;
    const Seconds end = processor.reserve(now(), time) + time;
    processor_taken += time;
    if (observer != nullptr) {
      observer->span(span_of(flight.tasklet, Resource::compute, end - time, end, Bytes(0)));
      observer->settled(flight.tasklet.id, end, false);
    }
    push(end, EventPriority::answer, flight.tasklet.id.value,
         {.when = {}, .flight = &flight, .kind = EntryKind::own_tasklet_done});
  }
};

SimulatedFleet::SimulatedFleet(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, DType wire,
                               fleet::ChurnTrace churn, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(std::move(devices), server, wire, std::move(churn), seed)) {}
SimulatedFleet::~SimulatedFleet() = default;

Seconds SimulatedFleet::now() const { return impl_->now(); }
std::uint64_t SimulatedFleet::roster() const { return impl_->roster; }

std::span<const Usage> SimulatedFleet::usage() const {
  for (std::size_t i = 0; i < impl_->star.size(); ++i) impl_->usage[i] = impl_->star.usage(i);
  return impl_->usage;
}

Seconds SimulatedFleet::server_usage() const { return impl_->processor_taken; }

std::vector<plan::DeviceState> SimulatedFleet::devices() const {
  std::vector<plan::DeviceState> states;
  for (std::size_t i = 0; i < impl_->star.size(); ++i) {
    // A device that hangs looks like any other until its deadline passes.
    if (impl_->star.present(i)) states.push_back(impl_->star.state(i));
  }
  return states;
}

std::vector<fleet::DeviceProfile> SimulatedFleet::all_devices() const {
  std::vector<fleet::DeviceProfile> profiles;
  for (std::size_t i = 0; i < impl_->star.size(); ++i) profiles.push_back(impl_->star.declared(i));
  return profiles;
}

std::vector<plan::DeviceState> SimulatedFleet::devices_ahead_of(const Priority& priority) const {
  std::vector<plan::DeviceState> states;
  for (std::size_t i = 0; i < impl_->star.size(); ++i) {
    if (impl_->star.present(i)) states.push_back(impl_->star.state_ahead_of(i, priority));
  }
  return states;
}

void SimulatedFleet::set_observer(Observer* observer) {
  impl_->observer = observer;
  impl_->star.watch(observer != nullptr && observer->wants_spans() ? impl_.get() : nullptr);
}

void SimulatedFleet::begin_step(const model::StepGraph& graph) {
  impl_->graph = &graph;
  impl_->flights.for_each([](Flight* flight) { flight->tasklet.op = OpId(); });  // late: of a graph that is gone
  if (impl_->observer != nullptr) impl_->observer->begin(graph, impl_->now());
}

void SimulatedFleet::submit(const Tasklet& tasklet) {
  Impl& self = *impl_;
  const plan::TaskletPlan& piece = tasklet.piece;
  const bool own = piece.device == kServerDevice;
  const std::size_t device = index_of(piece.device);
  if (!own) {
    CLEAVE_ASSERT(piece.device.value >= 0 && device < self.star.size(), "no device {}", piece.device.value);
    self.star.prefetch(device);
    if (tasklet.stays_on_device() && !self.star.present(device)) return;  // it has left, and will be planned anew
  }
  const plan::Work work = tasklet.is_run() ? plan::Work{} : plan::work_of(self.graph->operation(tasklet.op), self.wire);
  Flight& flight = self.new_flight(tasklet);
  if (self.observer != nullptr) self.observer->submitted(tasklet);
  if (own) return self.compute(flight, tasklet.is_run() ? tasklet.run.flops() : plan::volume_of(work, piece).flops);
  flight.id = tasklet.id.value;
  flight.panels = tasklet.is_run() ? timing::PanelSequence::alike(tasklet.run) : plan::panel_sequence(work, piece);
  if (tasklet.is_witness()) flight.panels.answer_with(kDigestPayload.value());
  flight.bytes_down = piece.bytes_down;
  flight.bytes_up = piece.bytes_up;
  flight.flops = tasklet.is_run() ? tasklet.run.flops() : plan::volume_of(work, piece).flops;
  flight.resident = piece.resident;
  flight.priority = tasklet.priority();
  flight.background = tasklet.background;
  flight.stays = tasklet.stays_on_device();
  flight.uses = flight.stays ? -1 : tasklet.columns.value;
  self.star.submit(device, flight);
}

void SimulatedFleet::start(const model::Operation& kernel) {
  Impl& self = *impl_;
  const Seconds time = plan::kernel_time(kernel, self.server);
  const Seconds end = self.processor.reserve(self.now(), time) + time;
  self.processor_taken += time;
  if (self.observer != nullptr) {
    self.observer->span({.device = kServerDevice,
                         .resource = Resource::kernel,
                         .start = end - time,
                         .end = end,
                         .op = kernel.id,
                         .tasklet = {},
                         .bytes = Bytes(0)});
  }
  self.push(end, EventPriority::kernel, {.when = {}, .subject = kernel.id.value, .kind = EntryKind::kernel_done});
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
  // What was not begun is not sent.
  if (device == kServerDevice || !self.star.drop(index_of(device), flight)) return;
  if (self.observer != nullptr) self.observer->settled(tasklet, self.now(), true);
  self.drop_flight(flight);
}

void SimulatedFleet::release(TaskletId columns, DeviceId device) {
  Impl& self = *impl_;
  timing::Stream* const over = self.star.release(index_of(device), columns.value);
  if (over == nullptr) return;
  if (self.observer != nullptr) self.observer->settled(columns, self.now(), false);
  self.drop_flight(static_cast<Flight&>(*over));
}

Event SimulatedFleet::next_event(Seconds deadline) {
  Impl& self = *impl_;
  for (;;) {
    self.settle_ended();
    const EventKey of_devices = self.star.next(), of_others = self.other_events.next();
    const EventKey next = std::min(of_devices, of_others);
    const bool at_once = next.at <= self.now() && is_of(next, EventPriority::within_device);
    if (!self.pending.empty() && !at_once) break;
    if (next == kNever || next.at > deadline) {
      self.star.move_to(deadline);
      return {.kind = EventKind::timeout, .at = self.now(), .tasklet = {}, .device = {}, .op = {}};
    }
    if (of_devices < of_others) {
      if (timing::Stream* const answered = self.star.serve()) self.answer(static_cast<Flight&>(*answered));
    } else {
      const Entry entry = self.other_events.top();
      self.other_events.pop();
      self.star.move_to(entry.when.at);
      self.serve(entry);
    }
  }
  const Event event = self.pending.front();
  self.pending.pop_front();
  return event;
}

Seconds SimulatedFleet::next_at() const {
  return impl_->pending.empty() ? std::min(impl_->star.next(), impl_->other_events.next()).at : impl_->now();
}

void SimulatedFleet::remove_device(DeviceId device) { impl_->leave(device); }
void SimulatedFleet::return_device(DeviceId device) { impl_->join(device); }
std::optional<fleet::InjectedFaults> SimulatedFleet::injected_faults(DeviceId device) const {
  return impl_->faults[index_of(device)];
}

}  // namespace cleave::sched
