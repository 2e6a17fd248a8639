// The rules of the simulated fleet for one operation, without its graph, churn or memory of what came before: plan may
// not include sched, and a plan must state the time that the scheduler will see.
#include "predict.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>
#include <unordered_map>

#include "cleave/plan/cost.hpp"

namespace cleave::plan {

namespace {

enum class Happens : std::uint8_t { down_free, up_begins, out_free, in_free, done };

struct Event {
  double at = 0;
  std::int32_t sequence = 0;  // ties are served in order of making
  std::int32_t station = 0, tasklet = 0;
  Happens what = Happens::down_free;
  bool operator>(const Event& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
};

struct Result {
  double computed = 0;
  std::int32_t tasklet = 0, panel = 0;
};

// One direction of the server's interface: of those that wait, the one with the longest tail is next.
struct Gate {
  struct Request {
    double tail = 0;
    std::int32_t sequence = 0, station = 0;
    bool operator<(const Request& o) const { return tail != o.tail ? tail < o.tail : sequence > o.sequence; }
  };
  bool taken = false;
  std::priority_queue<Request> waiting;
};

struct Station {
  const DeviceState* state = nullptr;
  std::deque<std::int32_t> queue;  // tasklets whose panels are still to come down
  std::size_t next_panel = 0;
  bool down_taken = false;
  std::deque<Result> results;  // that wait for the uplink, or are still being computed
  bool up_due = false;         // the first of them has its event
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
    while (!agenda_.empty()) {
      const Event event = agenda_.top();
      agenda_.pop();
      const auto s = static_cast<std::size_t>(event.station);
      switch (event.what) {
        case Happens::down_free:
          stations_[s].down_taken = false;
          pump_down(s, event.at);
          break;
        case Happens::up_begins: ask_up(s, event.at); break;
        case Happens::out_free:
          if (const std::int32_t next = next_of(out_); next >= 0) begin_down(static_cast<std::size_t>(next), event.at);
          break;
        case Happens::in_free:
          if (const std::int32_t next = next_of(in_); next >= 0) begin_up(static_cast<std::size_t>(next), event.at);
          break;
        case Happens::done:
          last = std::max(last, event.at);
          stations_[s].memory -= tasklets_[static_cast<std::size_t>(event.tasklet)].resident.value();
          pump_down(s, event.at);
          break;
      }
    }
    return last;
  }

 private:
  void push(double at, Happens what, std::size_t station, std::int32_t tasklet = 0) {
    agenda_.push({at, sequence_++, static_cast<std::int32_t>(station), tasklet, what});
  }

  [[nodiscard]] bool unlimited() const {
    return std::isinf(server_.nic_out.value()) && std::isinf(server_.nic_in.value());
  }

  // A message that takes the interface no time does not wait for it.
  static bool has_to_wait(const Gate& gate, Seconds through) { return gate.taken && through.value() > 0; }

  // The station that the interface serves next; -1: none waits.
  static std::int32_t next_of(Gate& gate) {
    gate.taken = false;
    if (gate.waiting.empty()) return -1;
    const std::int32_t station = gate.waiting.top().station;
    gate.waiting.pop();
    return station;
  }

  // Both the interface and the link start together; a panel is through when the slower has carried it.
  double carry(std::size_t s, double now, Seconds through, Seconds link_time, Gate& gate, Happens free) {
    if (through.value() > 0) {
      gate.taken = true;
      push(now + through.value(), free, s);
    }
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
    const bool waits = has_to_wait(out_, panels_[t][station.next_panel].down / server_.nic_out);
    if (!waits) return begin_down(s, now);
    out_.waiting.push({tails_[t][station.next_panel].down.value(), sequence_++, static_cast<std::int32_t>(s)});
  }

  void begin_down(std::size_t s, double now) {
    Station& station = stations_[s];
    const std::int32_t tasklet = station.queue.front();
    const auto t = static_cast<std::size_t>(tasklet);
    const fleet::DeviceProfile& profile = station.state->profile;
    const std::size_t number = station.next_panel++;
    const Panel& panel = panels_[t][number];
    const double end =
        carry(s, now, panel.down / server_.nic_out, panel.down / profile.downlink, out_, Happens::out_free);
    push(end, Happens::down_free, s);
    station.arrival = std::max(station.arrival, panel.down.value() > 0 ? end + profile.latency.value() : now);
    station.processor = std::max(station.arrival, station.processor) + (panel.flops / profile.compute).value();
    if (panel.up.value() > 0) {
      station.results.push_back({station.processor, tasklet, static_cast<std::int32_t>(number)});
      await_up(s);
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
    if (!has_to_wait(in_, panels_[t][number].up / server_.nic_in)) return begin_up(s, now);
    in_.waiting.push({tails_[t][number].up.value(), sequence_++, static_cast<std::int32_t>(s)});
  }

  void begin_up(std::size_t s, double now) {
    Station& station = stations_[s];
    const Result result = station.results.front();
    station.results.pop_front();
    const std::vector<Panel>& panels = panels_[static_cast<std::size_t>(result.tasklet)];
    const auto number = static_cast<std::size_t>(result.panel);
    const fleet::DeviceProfile& profile = station.state->profile;
    station.up_free =
        carry(s, now, panels[number].up / server_.nic_in, panels[number].up / profile.uplink, in_, Happens::in_free);
    station.up_due = false;
    await_up(s);
    if (number + 1 == panels.size()) push(station.up_free + profile.latency.value(), Happens::done, s, result.tasklet);
  }

  std::span<const TaskletPlan> tasklets_;
  fleet::ServerProfile server_;
  std::vector<std::vector<Panel>> panels_;
  std::vector<std::vector<Tail>> tails_;  // where the interface is limited
  std::vector<Station> stations_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> agenda_;
  std::int32_t sequence_ = 0;
  Gate out_, in_;
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
