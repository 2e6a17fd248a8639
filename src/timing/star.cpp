// The events of a star of devices.
//
// An indexed queue holds one event for each device (simulated_device.hpp): its next answer, or when to look at it
// again; and one for each direction of the server's interface. Where devices share nothing, because the server's
// interface is unlimited, nothing jitters and nobody watches every use of a resource, a device is looked at only when
// it may answer; otherwise at everything that happens within it, in order of time over all devices. Both give the same
// times.
#include "cleave/timing/star.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "simulated_device.hpp"

namespace cleave::timing {

struct Star::Impl {
  std::vector<SimulatedDevice> devices;
  SharedState shared;
  Seconds now{0};
  IndexedEventQueue events;                      // the interface's two directions come after the devices
  EventKey out_free = kNever, in_free = kNever;  // as `events` has them
  bool jitters = false;
  bool apart = true;          // devices share nothing
  std::vector<Panel> panels;  // of one stream

  Impl(std::vector<fleet::DeviceProfile> profiles, fleet::ServerProfile server, std::uint64_t seed)
      : shared{.server = server, .out = {}, .in = {}, .jitter = Random(seed, Purpose::jitter)},
        events(profiles.size() + 2) {
    devices.reserve(profiles.size());
    for (fleet::DeviceProfile& profile : profiles) {
      jitters = jitters || profile.jitter.value() > 0;
      devices.emplace_back(std::move(profile));
    }
    shared.unlimited = std::isinf(server.nic_out.value()) && std::isinf(server.nic_in.value());
    watch(nullptr);
  }

  void watch(ResourceObserver* observer) {
    shared.observer = observer;
    apart = shared.unlimited && !jitters && observer == nullptr;
    for (std::size_t i = 0; i < devices.size(); ++i) look_again(i);
  }

  // The device, brought forward to the present time, for calls that change or read it.
  SimulatedDevice& device_now(std::size_t index) {
    SimulatedDevice& device = devices[index];
    if (device.next_within().at <= now) device.advance(now, shared);
    return device;
  }

  // After anything was done to a device: when it is its turn again.
  void look_again(std::size_t index) {
    const SimulatedDevice& device = devices[index];
    const EventKey within = apart ? device.no_answer_before(now) : device.next_within();
    events.set(index, std::min(within, device.next_answer()));
  }

  EventKey next() {
    const auto look = [&](std::size_t subject, EventKey& known, const ServerPort& port) {
      if (known != port.next()) events.set(subject, known = port.next());
    };
    look(devices.size(), out_free, shared.out);
    look(devices.size() + 1, in_free, shared.in);
    return events.next();
  }

  void serve_port(ServerPort& port, void (SimulatedDevice::*begin)(Seconds, SharedState&)) {
    ServerPort::Request request = port.release();
    while (request.device != nullptr && request.device->epoch != request.epoch) request = port.release();
    if (request.device == nullptr) return;
    (request.device->*begin)(now, shared);
    look_again(static_cast<std::size_t>(request.device - devices.data()));
  }

  // An answer, something within a device, or the interface is free again.
  Stream* serve() {
    const EventKey next = events.next();
    CLEAVE_ASSERT(next.at >= now, "what happens at {} s is noticed at {} s", next.at.value(), now.value());
    now = std::max(now, next.at);
    const std::size_t index = events.subject();
    events.soon([&](std::size_t subject) {
      if (subject < devices.size()) devices[subject].prefetch();
    });
    if (index == devices.size()) {
      serve_port(shared.out, &SimulatedDevice::begin_down);
      return nullptr;
    }
    if (index > devices.size()) {
      serve_port(shared.in, &SimulatedDevice::begin_up);
      return nullptr;
    }
    Stream* answered = nullptr;
    if (is_of(next, EventPriority::answer)) {
      answered = &device_now(index).answer(now, shared);
    } else if (apart) {
      devices[index].advance(now, shared);
    } else {
      devices[index].serve(shared);
    }
    look_again(index);
    return answered;
  }
};

Star::Star(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(std::move(devices), server, seed)) {}
Star::Star(Star&&) noexcept = default;
Star& Star::operator=(Star&&) noexcept = default;
Star::~Star() = default;

std::size_t Star::size() const { return impl_->devices.size(); }
Seconds Star::now() const { return impl_->now; }
const fleet::DeviceProfile& Star::declared(std::size_t device) const { return impl_->devices[device].declared; }

void Star::submit(std::size_t device, Stream& stream) {
  Impl& self = *impl_;
  CLEAVE_ASSERT(self.devices[device].present, "device {} is not there", device);
  stream.measured = Measured{};
  stream.last = stream.panels.last();
  stream.still_down = stream.bytes_down;
  stream.still_up = stream.bytes_up;
  stream.still_flops = stream.flops;
  stream.computed = Seconds(0);  // of an earlier use: one that was lost may have been computed later than now
  stream.arrived = stream.released = false;
  if (!self.shared.unlimited) {
    self.panels.clear();
    for (PanelSequence panels = stream.panels; panels.made() < panels.size();) self.panels.push_back(panels.next());
    tails_of(self.panels, self.devices[device].declared, stream.tails);
  }
  self.device_now(device).submit(stream, self.now, self.shared);
  self.look_again(device);
}

bool Star::drop(std::size_t device, Stream& stream) {
  if (!impl_->device_now(device).drop(stream, impl_->now, impl_->shared)) return false;
  impl_->look_again(device);
  return true;
}

Stream* Star::release(std::size_t device, std::int64_t id) {
  Stream* const over = impl_->device_now(device).release(id, impl_->now, impl_->shared);
  if (over != nullptr) impl_->look_again(device);
  return over;
}

std::vector<Stream*> Star::take_ended() { return std::exchange(impl_->shared.ended, {}); }

void Star::reserve(std::size_t device, Bytes bytes) {
  impl_->device_now(device).reserve(bytes, impl_->now, impl_->shared);
  impl_->look_again(device);
}

void Star::occupy(std::size_t device, Seconds down, Seconds compute, Seconds up) {
  const Seconds now = impl_->now;
  const auto until = [&](Seconds time) { return time.value() > 0 ? now + time : Seconds(0); };
  impl_->devices[device].occupy(until(down), until(compute), until(up), impl_->shared);
  impl_->look_again(device);
}

EventKey Star::next() { return impl_->next(); }
Stream* Star::serve() { return impl_->serve(); }
void Star::move_to(Seconds at) { impl_->now = std::max(impl_->now, at); }

Stream* Star::next_answer(Seconds deadline) {
  for (EventKey next = impl_->next(); next != kNever && next.at <= deadline; next = impl_->next()) {
    if (Stream* const answered = impl_->serve()) return answered;
  }
  if (std::isfinite(deadline.value())) move_to(deadline);
  return nullptr;
}

bool Star::present(std::size_t device) const { return impl_->devices[device].present; }
bool Star::hung(std::size_t device) const { return impl_->devices[device].hung(); }
Seconds Star::hung_at(std::size_t device) const { return impl_->devices[device].hung_at; }
std::uint32_t Star::epoch(std::size_t device) const { return impl_->devices[device].epoch; }

void Star::slow(std::size_t device, double factor) {
  impl_->device_now(device).slow(factor);
  impl_->look_again(device);
}

void Star::hang(std::size_t device) {
  impl_->device_now(device).hang(impl_->now);
  impl_->look_again(device);
}

std::vector<Stream*> Star::leave(std::size_t device) {
  std::vector<Stream*> lost = impl_->device_now(device).leave(impl_->now);
  impl_->look_again(device);
  return lost;
}

void Star::join(std::size_t device) {
  impl_->devices[device].join();
  impl_->look_again(device);
}

DeviceState Star::state(std::size_t device) { return impl_->device_now(device).state(); }

DeviceState Star::state_ahead_of(std::size_t device, const Priority& priority) {
  return impl_->device_now(device).state_ahead_of(priority, impl_->now);
}

Usage Star::usage(std::size_t device) { return impl_->device_now(device).usage_by(impl_->now); }
void Star::watch(ResourceObserver* observer) { impl_->watch(observer); }
void Star::prefetch(std::size_t device) const { impl_->devices[device].prefetch(); }

}  // namespace cleave::timing
