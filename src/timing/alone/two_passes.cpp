// The events of one direction, and what each direction makes of a panel that is through.
//
// The order of events at one time is the star's: by the numbers that it would give them. Within a direction they are
// given in the same order as there. Only where a panel is computed at the very time at which some uplink, or the port,
// is free again, the star's order depends on both directions; such a tie is given up.
#include "alone/two_passes.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "alone/tournament.hpp"

namespace cleave::timing {

namespace {

// Numbers of events of the pass up begin here; those of panels that were computed, in the pass down, are below.
constexpr std::uint64_t kPassUp = std::uint64_t{1} << 40U;

// A panel that goes up.
struct Result {
  EventKey computed;
  Bytes bytes;
  std::uint32_t panel = 0;  // among all of its device
  bool last = false;        // of its stream
};

struct Device {
  const DeviceState* state = nullptr;
  std::vector<const Submission*> streams;
  // Coming down:
  PanelSequence panels;       // of the first stream that is not all down
  std::size_t stream = 0;     // its index
  Panel panel;                // the next one
  std::uint32_t made = 0;     // panels so far, of all streams
  Seconds arrival, computed;  // of the last panel
  // Going up:
  std::vector<Result> results;
  std::size_t next = 0;  // of the results
  std::vector<Tail> tails;
};

// Tails at each panel of all streams of a device: they are needed only where some panel waits.
void find_tails(Device& device) {
  std::vector<Panel> panels;
  std::vector<Tail> tails;
  for (const Submission* stream : device.streams) {
    panels.clear();
    for (PanelSequence sequence = stream->panels; sequence.made() < sequence.size();) panels.push_back(sequence.next());
    tails_of(panels, device.state->profile, tails);
    device.tails.insert(device.tails.end(), tails.begin(), tails.end());
  }
}

// The links of all devices in one direction, and the server's port. Way tells of a device its next message, its bytes
// and its tail, and takes note of what is through.
template <class Way>
class Direction {
 public:
  Direction(Way way, std::size_t devices, BytesPerSecond port_rate, std::uint64_t first_number)
      : way_(way), port_rate_(port_rate), asking_(devices), waiting_(devices), number_(first_number) {}

  /// The device's next message asks for the port then.
  void ask(std::size_t device, const EventKey& at) { asking_.set(device, at); }

  /// Until nothing asks any more, where no port is shared: one device after the other.
  void run_apart(std::size_t devices) {
    for (std::size_t device = 0; device < devices; ++device) {
      for (EventKey asks = asking_.key(device); asks != kNever;) asks = send(device, asks.at);
    }
  }

  /// Until nothing asks any more. False: two events came at one time whose order is not known here.
  bool run() {
    for (;;) {
      const EventKey asks = asking_.next();
      if (!waiting_.empty() && port_free_ < asks) {
        const std::size_t device = waiting_.first();
        waiting_.clear(device);
        asking_.set(device, send(device, port_free_.at));
        continue;
      }
      if (asks == kNever) return true;
      if (way_.mixed(port_free_, asks) || way_.mixed(last_, asks)) return false;
      last_ = asks;
      const std::size_t device = asking_.first();
      if (asks < port_free_ && way_.bytes(device) / port_rate_ > Seconds(0)) {
        asking_.clear(device);
        waiting_.set_longest(device, way_.tail(device), number_++);
      } else {
        asking_.set(device, send(device, asks.at));
      }
    }
  }

 private:
  // Both the port and the link start together; a panel is through when the slower has carried it. Returns when the
  // device's next one asks.
  EventKey send(std::size_t device, Seconds now) {
    const Bytes bytes = way_.bytes(device);
    const Seconds port_time = bytes / port_rate_;
    if (port_time.value() > 0) port_free_ = {now + port_time, number_};
    ++number_;
    const EventKey free{now + std::max(port_time, bytes / way_.rate(device)), number_++};
    return way_.after(device, now, free);
  }

  Way way_;
  BytesPerSecond port_rate_;
  Tournament asking_, waiting_;  // messages: those whose link is free at a time, those that wait by longest tail
  EventKey port_free_{Seconds(-1), 0}, last_{Seconds(-1), 0};
  std::uint64_t number_;
};

struct Down {
  std::vector<Device>& devices;
  std::uint64_t& computed;  // panels so far
  bool& known;              // whether the order of the pass up is

  // All numbers of this pass are given in the star's order.
  [[nodiscard]] static bool mixed(const EventKey& /*a*/, const EventKey& /*b*/) { return false; }
  [[nodiscard]] Bytes bytes(std::size_t d) const { return devices[d].panel.down; }
  [[nodiscard]] BytesPerSecond rate(std::size_t d) const { return devices[d].state->profile.downlink; }
  [[nodiscard]] Seconds tail(std::size_t d) const {
    Device& device = devices[d];
    if (device.tails.empty()) find_tails(device);
    return device.tails[device.made].down;
  }

  // The panel that begins now has its link until `free`. Returns when the next one asks.
  EventKey after(std::size_t d, Seconds now, const EventKey& free) const {
    Device& device = devices[d];
    const fleet::DeviceProfile& profile = device.state->profile;
    const Seconds arrival = device.panel.down.value() > 0 ? std::max(device.arrival, free.at + profile.latency) : now;
    device.arrival = std::max(device.arrival, arrival);
    device.computed = std::max(arrival, device.computed) + device.panel.flops / profile.compute;
    if (device.panel.up.value() > 0) {
      known = known && device.computed > now;
      const bool last = device.panels.made() == device.panels.size();
      device.results.push_back({{device.computed, computed++}, device.panel.up, device.made, last});
    }
    ++device.made;
    return next_panel(device) ? free : kNever;
  }

  static bool next_panel(Device& device) {
    while (device.panels.made() == device.panels.size()) {
      if (++device.stream == device.streams.size()) return false;
      device.panels = device.streams[device.stream]->panels;
    }
    device.panel = device.panels.next();
    return true;
  }
};

struct Up {
  std::vector<Device>& devices;
  Seconds& last;

  // One is a panel that was computed in the pass down, the other is of this pass, and both are at one time.
  [[nodiscard]] static bool mixed(const EventKey& a, const EventKey& b) {
    return a.at == b.at && (a.order < kPassUp) != (b.order < kPassUp);
  }
  [[nodiscard]] Bytes bytes(std::size_t d) const { return devices[d].results[devices[d].next].bytes; }
  [[nodiscard]] BytesPerSecond rate(std::size_t d) const { return devices[d].state->profile.uplink; }
  [[nodiscard]] Seconds tail(std::size_t d) const {
    Device& device = devices[d];
    if (device.tails.empty()) find_tails(device);
    return device.tails[device.results[device.next].panel].up;
  }

  EventKey after(std::size_t d, Seconds /*now*/, const EventKey& free) const {
    Device& device = devices[d];
    if (device.results[device.next].last) last = std::max(last, free.at + device.state->profile.latency);
    return ++device.next == device.results.size() ? kNever : asks(device, free);
  }

  // The next result goes up when it is computed and the link is free.
  static EventKey asks(const Device& device, const EventKey& free) {
    const EventKey& computed = device.results[device.next].computed;
    return computed.at <= free.at ? free : computed;
  }
};

}  // namespace

std::optional<Seconds> two_passes(std::span<const Submission> streams, std::span<const DeviceState> states,
                                  const fleet::ServerProfile& server) {
  std::vector<Device> devices;
  std::vector<std::size_t> index(states.size(), states.size());
  for (const Submission& stream : streams) {
    std::size_t& d = index[stream.device];
    if (d == states.size()) {
      d = devices.size();
      devices.emplace_back().state = &states[stream.device];
    }
    devices[d].streams.push_back(&stream);
  }

  std::uint64_t computed = 0;
  bool known = true;
  const Down down{devices, computed, known};
  Direction<Down> out(down, devices.size(), server.nic_out, devices.size());
  for (std::size_t d = 0; d < devices.size(); ++d) {
    Device& device = devices[d];
    std::int64_t panels = 0;
    for (const Submission* stream : device.streams) panels += stream->panels.size();
    device.results.reserve(static_cast<std::size_t>(panels));
    device.computed = device.state->compute_busy;
    device.panels = device.streams.front()->panels;
    if (Down::next_panel(device)) out.ask(d, {device.state->down_busy, d});
  }
  const bool apart = std::isinf(server.nic_out.value()) && std::isinf(server.nic_in.value());
  if (apart) {
    out.run_apart(devices.size());
  } else if (!out.run() || !known) {
    return std::nullopt;
  }

  Seconds last{0};
  Direction<Up> in(Up{devices, last}, devices.size(), server.nic_in, kPassUp + devices.size());
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const Device& device = devices[d];
    if (!device.results.empty()) in.ask(d, Up::asks(device, {device.state->up_busy, kPassUp + d}));
  }
  if (apart) {
    in.run_apart(devices.size());
  } else if (!in.run()) {
    return std::nullopt;
  }
  return last;
}

}  // namespace cleave::timing
