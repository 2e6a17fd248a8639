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

enum class Happens : std::uint8_t { down_free, computed, up_free, done };

struct Event {
  double at = 0;
  std::int64_t sequence = 0;  // ties are served in order of making
  Happens what = Happens::down_free;
  std::size_t device = 0, tasklet = 0, panel = 0;
  bool operator>(const Event& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
};

struct Station {
  const DeviceState* state = nullptr;
  std::deque<std::size_t> queue;  // tasklets whose panels are still to come down
  std::size_t next_panel = 0;
  bool down_taken = false, up_taken = false;
  std::deque<std::pair<std::size_t, std::size_t>> results;  // (tasklet, panel) that wait for the uplink
  double arrival = 0, processor = 0;
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
      stations_[found->second].queue.push_back(t);
    }
  }

  double run() {
    for (std::size_t d = 0; d < stations_.size(); ++d) {
      Station& station = stations_[d];
      station.processor = station.state->compute_busy.value();
      // A link that earlier tasklets still take is free only after them.
      station.down_taken = station.state->down_busy.value() > 0;
      station.up_taken = station.state->up_busy.value() > 0;
      if (station.up_taken) push({station.state->up_busy.value(), 0, Happens::up_free, d});
      if (station.down_taken) push({station.state->down_busy.value(), 0, Happens::down_free, d});
      pump_down(d, 0);
    }
    double last = 0;
    while (!agenda_.empty()) {
      const Event event = agenda_.top();
      agenda_.pop();
      Station& station = stations_[event.device];
      switch (event.what) {
        case Happens::down_free:
          station.down_taken = false;
          pump_down(event.device, event.at);
          break;
        case Happens::computed:
          if (panels_[event.tasklet][event.panel].up.value() > 0) {
            station.results.emplace_back(event.tasklet, event.panel);
            pump_up(event.device, event.at);
          }
          break;
        case Happens::up_free:
          station.up_taken = false;
          pump_up(event.device, event.at);
          break;
        case Happens::done:
          last = std::max(last, event.at);
          station.memory -= tasklets_[event.tasklet].resident.value();
          pump_down(event.device, event.at);
          break;
      }
    }
    return last;
  }

 private:
  void push(Event event) {
    event.sequence = sequence_++;
    agenda_.push(event);
  }

  // Both the interface and the link start together; a panel is through when the slower has carried it.
  static double carry(double now, double bytes, double& interface_free, double interface_rate, double link_rate) {
    const double through = bytes / interface_rate, start = std::max(now, interface_free);
    interface_free = start + through;
    return start + std::max(through, bytes / link_rate);
  }

  void pump_down(std::size_t d, double now) {
    Station& station = stations_[d];
    if (station.down_taken || station.queue.empty()) return;
    const std::size_t t = station.queue.front();
    const fleet::DeviceProfile& profile = station.state->profile;
    if (station.next_panel == 0) {
      const std::int64_t resident = tasklets_[t].resident.value();
      if (station.memory > 0 && station.memory + resident > profile.memory.value()) return;
      station.memory += resident;
    }
    const std::size_t number = station.next_panel++;
    const Panel& panel = panels_[t][number];
    const double end = carry(now, static_cast<double>(panel.down.value()), out_free_, server_.nic_out.value(),
                             profile.downlink.value());
    station.down_taken = true;
    push({end, 0, Happens::down_free, d});
    station.arrival = std::max(station.arrival, panel.down.value() > 0 ? end + profile.latency.value() : now);
    station.processor = std::max(station.arrival, station.processor) + (panel.flops / profile.compute).value();
    push({station.processor, 0, Happens::computed, d, t, number});
    if (station.next_panel == panels_[t].size()) {
      station.queue.pop_front();
      station.next_panel = 0;
    }
  }

  void pump_up(std::size_t d, double now) {
    Station& station = stations_[d];
    if (station.up_taken || station.results.empty()) return;
    const auto [t, number] = station.results.front();
    station.results.pop_front();
    const fleet::DeviceProfile& profile = station.state->profile;
    const double end = carry(now, static_cast<double>(panels_[t][number].up.value()), in_free_, server_.nic_in.value(),
                             profile.uplink.value());
    station.up_taken = true;
    push({end, 0, Happens::up_free, d});
    if (number + 1 == panels_[t].size()) push({end + profile.latency.value(), 0, Happens::done, d, t});
  }

  std::span<const TaskletPlan> tasklets_;
  fleet::ServerProfile server_;
  std::vector<std::vector<Panel>> panels_;
  std::vector<Station> stations_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> agenda_;
  std::int64_t sequence_ = 0;
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
