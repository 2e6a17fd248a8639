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

enum class Happens : std::uint8_t { down_free, up_begins, done };

struct Event {
  double at = 0;
  std::int32_t sequence = 0;  // ties are served in order of making
  std::int32_t station = 0, tasklet = 0;
  Happens what = Happens::down_free;
  bool operator>(const Event& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
};

struct Result {
  double computed = 0, bytes = 0;
  std::int32_t tasklet = 0;
  bool last = false;  // of its tasklet
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
        case Happens::up_begins: begin_up(s, event.at); break;
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

  // Both the interface and the link start together; a panel is through when the slower has carried it.
  static double carry(double now, double bytes, double& interface_free, double interface_rate, double link_rate) {
    const double through = bytes / interface_rate, start = std::max(now, interface_free);
    interface_free = start + through;
    return start + std::max(through, bytes / link_rate);
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
    const Panel& panel = panels_[t][station.next_panel++];
    const double end = carry(now, static_cast<double>(panel.down.value()), out_free_, server_.nic_out.value(),
                             profile.downlink.value());
    station.down_taken = true;
    push(end, Happens::down_free, s);
    station.arrival = std::max(station.arrival, panel.down.value() > 0 ? end + profile.latency.value() : now);
    station.processor = std::max(station.arrival, station.processor) + (panel.flops / profile.compute).value();
    const bool last = station.next_panel == panels_[t].size();
    if (panel.up.value() > 0) {
      station.results.push_back({station.processor, static_cast<double>(panel.up.value()), tasklet, last});
      await_up(s);
    }
    if (last) {
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

  void begin_up(std::size_t s, double now) {
    Station& station = stations_[s];
    const Result result = station.results.front();
    station.results.pop_front();
    const fleet::DeviceProfile& profile = station.state->profile;
    station.up_free = carry(now, result.bytes, in_free_, server_.nic_in.value(), profile.uplink.value());
    station.up_due = false;
    await_up(s);
    if (result.last) push(station.up_free + profile.latency.value(), Happens::done, s, result.tasklet);
  }

  std::span<const TaskletPlan> tasklets_;
  fleet::ServerProfile server_;
  std::vector<std::vector<Panel>> panels_;
  std::vector<Station> stations_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> agenda_;
  std::int32_t sequence_ = 0;
  double out_free_ = 0, in_free_ = 0;
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
