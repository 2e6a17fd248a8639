// The rules of the simulated fleet for one operation, without its graph, churn or memory of what came before: plan may
// not include sched, and a plan must state the time that the scheduler will see.
#include "predict.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <queue>
#include <unordered_map>

#include "bisect.hpp"
#include "cleave/plan/cost.hpp"

namespace cleave::plan {

namespace {

/// Uplinks that together carry less than this share of what the interface takes in do not wait for each other there:
/// results then need no events.
constexpr double kAmpleShare = 0.15;

enum class Happens : std::uint8_t { down_free, up_begins, done };
constexpr std::uint32_t kKinds = 3;  // of these

__extension__ using Key = unsigned __int128;

// A time that is not negative, then the order of making, then what it is for: keys compare as these do, without
// branches, which in the heaps of a rehearsal nobody could foresee.
Key key_of(double time, std::uint32_t order, std::uint32_t what) {
  return Key{std::bit_cast<std::uint64_t>(time + 0.0)} << 64U | Key{order} << 32U | what;
}
double time_of(Key key) { return std::bit_cast<double>(static_cast<std::uint64_t>(key >> 64U)); }

struct Result {
  double computed = 0;
  std::int32_t tasklet = 0, panel = 0;
};

// One direction of the server's interface: of those that wait, the one with the longest tail is next. When it is free
// is no event of the agenda, which would be twice as long.
struct Gate {
  double free_at = 0;
  std::priority_queue<Key> waiting;  // by tail, of equal ones the first; the station
  std::uint32_t requests = 0;
  void wait(double tail, std::size_t station) {
    waiting.push(key_of(tail, ~requests++, static_cast<std::uint32_t>(station)));
  }
  // When it serves the next of those that wait.
  [[nodiscard]] double next() const { return waiting.empty() ? kNever : free_at; }
};

struct Station {
  const DeviceState* state = nullptr;
  std::deque<std::int32_t> queue;  // tasklets whose panels are still to come down
  std::size_t next_panel = 0;
  bool down_taken = false;
  std::deque<Result> results;          // that wait for the uplink, or are still being computed
  bool up_due = false;                 // the first of them has its event
  std::deque<std::int32_t> finishing;  // tasklets whose last result is under way
  double arrival = 0, processor = 0, up_free = 0;
  std::int64_t memory = 0;
};

class Rehearsal {
 public:
  Rehearsal(const Work& work, std::span<const TaskletPlan> tasklets, std::span<const DeviceState> devices,
            const fleet::ServerProfile& server)
      : tasklets_(tasklets), server_(server) {
    std::unordered_map<DeviceId, const DeviceState*> states;
    for (const DeviceState& device : devices) states.emplace(device.profile.id, &device);
    std::unordered_map<DeviceId, std::size_t> stations;
    panels_.reserve(tasklets.size());
    for (std::size_t t = 0; t < tasklets.size(); ++t) {
      panels_.push_back(panels_of(work, tasklets[t]));
      if (!unlimited()) tails_.push_back(tails_of(panels_.back(), states.at(tasklets[t].device)->profile));
      const auto [found, fresh] = stations.emplace(tasklets[t].device, stations_.size());
      if (fresh) {
        stations_.emplace_back();
        stations_.back().state = states.at(tasklets[t].device);
      }
      stations_[found->second].queue.push_back(static_cast<std::int32_t>(t));
    }
  }

  double run() {
    double uplinks = 0;
    for (const Station& station : stations_) uplinks += station.state->profile.uplink.value();
    in_is_ample_ = uplinks < kAmpleShare * server_.nic_in.value();
    for (std::size_t s = 0; s < stations_.size(); ++s) {
      Station& station = stations_[s];
      station.processor = station.state->compute_busy.value();
      // A link that earlier tasklets still take is free only after them.
      station.up_free = station.state->up_busy.value();
      station.down_taken = station.state->down_busy.value() > 0;
      if (station.down_taken) push(station.state->down_busy.value(), Happens::down_free, s);
      pump_down(s, 0);
    }
    double last = 0;
    for (;;) {
      const double soonest = agenda_.empty() ? kNever : time_of(agenda_.top());
      if (out_.next() <= soonest && out_.next() < kNever) {
        begin_down(next_of(out_), out_.free_at);
        continue;
      }
      if (in_.next() <= soonest && in_.next() < kNever) {
        begin_up(next_of(in_), in_.free_at);
        continue;
      }
      if (agenda_.empty()) return last;
      const double now = soonest;
      const auto what = static_cast<std::uint32_t>(agenda_.top());
      agenda_.pop();
      const std::size_t s = what / kKinds;
      switch (static_cast<Happens>(what % kKinds)) {
        case Happens::down_free:
          stations_[s].down_taken = false;
          pump_down(s, now);
          break;
        case Happens::up_begins: ask_up(s, now); break;
        case Happens::done:
          last = std::max(last, now);
          stations_[s].memory -= tasklets_[static_cast<std::size_t>(stations_[s].finishing.front())].resident.value();
          stations_[s].finishing.pop_front();
          pump_down(s, now);
          break;
      }
    }
  }

 private:
  void push(double at, Happens what, std::size_t station) {
    agenda_.push(
        key_of(at, sequence_++, static_cast<std::uint32_t>(station) * kKinds + static_cast<std::uint32_t>(what)));
  }

  [[nodiscard]] bool unlimited() const {
    return std::isinf(server_.nic_out.value()) && std::isinf(server_.nic_in.value());
  }

  // A message that takes the interface no time does not wait for it.
  static bool has_to_wait(const Gate& gate, double now, Seconds through) {
    return (gate.free_at > now || !gate.waiting.empty()) && through.value() > 0;
  }

  // The station that the interface serves next.
  static std::size_t next_of(Gate& gate) {
    const auto station = static_cast<std::size_t>(static_cast<std::uint32_t>(gate.waiting.top()));
    gate.waiting.pop();
    return station;
  }

  // Both the interface and the link start together; a panel is through when the slower has carried it.
  static double carry(double now, Seconds through, Seconds link_time, Gate& gate) {
    if (through.value() > 0) gate.free_at = now + through.value();
    return now + std::max(through, link_time).value();
  }

  void pump_down(std::size_t s, double now) {
    Station& station = stations_[s];
    if (station.down_taken || station.queue.empty()) return;
    const std::int32_t tasklet = station.queue.front();
    const auto t = static_cast<std::size_t>(tasklet);
    const fleet::DeviceProfile& profile = station.state->profile;
    if (station.next_panel == 0) {
      const std::int64_t resident = tasklets_[t].resident.value();
      if (station.memory > 0 && station.memory + resident > profile.memory.value()) return;
      station.memory += resident;
    }
    station.down_taken = true;
    const bool waits = has_to_wait(out_, now, panels_[t][station.next_panel].down / server_.nic_out);
    if (!waits) return begin_down(s, now);
    out_.wait(tails_[t][station.next_panel].down.value(), s);
  }

  void begin_down(std::size_t s, double now) {
    Station& station = stations_[s];
    const std::int32_t tasklet = station.queue.front();
    const auto t = static_cast<std::size_t>(tasklet);
    const fleet::DeviceProfile& profile = station.state->profile;
    const std::size_t number = station.next_panel++;
    const Panel& panel = panels_[t][number];
    const double end = carry(now, panel.down / server_.nic_out, panel.down / profile.downlink, out_);
    push(end, Happens::down_free, s);
    station.arrival = std::max(station.arrival, panel.down.value() > 0 ? end + profile.latency.value() : now);
    station.processor = std::max(station.arrival, station.processor) + (panel.flops / profile.compute).value();
    if (panel.up.value() > 0) {
      station.results.push_back({station.processor, tasklet, static_cast<std::int32_t>(number)});
      if (in_is_ample_) {
        begin_up(s, std::max(station.processor, station.up_free));
      } else {
        await_up(s);
      }
    }
    if (station.next_panel == panels_[t].size()) {
      station.queue.pop_front();
      station.next_panel = 0;
    }
  }

  // The first result goes up when it is computed and the one before it is through.
  void await_up(std::size_t s) {
    Station& station = stations_[s];
    if (station.up_due || station.results.empty()) return;
    station.up_due = true;
    push(std::max(station.results.front().computed, station.up_free), Happens::up_begins, s);
  }

  void ask_up(std::size_t s, double now) {
    const Result& result = stations_[s].results.front();
    const auto t = static_cast<std::size_t>(result.tasklet), number = static_cast<std::size_t>(result.panel);
    if (!has_to_wait(in_, now, panels_[t][number].up / server_.nic_in)) return begin_up(s, now);
    in_.wait(tails_[t][number].up.value(), s);
  }

  void begin_up(std::size_t s, double now) {
    Station& station = stations_[s];
    const Result result = station.results.front();
    station.results.pop_front();
    const std::vector<Panel>& panels = panels_[static_cast<std::size_t>(result.tasklet)];
    const auto number = static_cast<std::size_t>(result.panel);
    const fleet::DeviceProfile& profile = station.state->profile;
    station.up_free = carry(now, panels[number].up / server_.nic_in, panels[number].up / profile.uplink, in_);
    station.up_due = false;
    await_up(s);
    if (number + 1 < panels.size()) return;
    station.finishing.push_back(result.tasklet);
    push(station.up_free + profile.latency.value(), Happens::done, s);
  }

  std::span<const TaskletPlan> tasklets_;
  fleet::ServerProfile server_;
  std::vector<std::vector<Panel>> panels_;
  std::vector<std::vector<Tail>> tails_;  // where the interface is limited
  std::vector<Station> stations_;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> agenda_;
  std::uint32_t sequence_ = 0;
  Gate out_, in_;
  bool in_is_ample_ = false;
};

}  // namespace

Seconds predict_time(const Work& work, std::span<const TaskletPlan> tasklets, std::span<const DeviceState> devices,
                     const fleet::ServerProfile& server) {
  // Without an interface to share, and with one tasklet each, devices know nothing of each other.
  std::unordered_map<DeviceId, int> counts;
  bool alone = std::isinf(server.nic_out.value()) && std::isinf(server.nic_in.value());
  Seconds last{0};
  for (const TaskletPlan& tasklet : tasklets) {
    alone = alone && ++counts[tasklet.device] == 1;
    last = std::max(last, tasklet.time);
  }
  return alone ? last : Seconds(Rehearsal(work, tasklets, devices, server).run());
}

}  // namespace cleave::plan
