// The rules of the simulated fleet for one operation, without its graph, churn or memory of what came before: plan may
// not include sched, and a plan must state the time that the scheduler will see.
#include "predict.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <queue>
#include <unordered_map>

#include "bisect.hpp"
#include "cleave/plan/cost.hpp"

namespace cleave::plan {

namespace {

/// Uplinks that together carry less than this share of what the interface takes in do not wait for each other there:
/// results then need no events. It may be more where results come in many panels: those of all devices at once are then
/// little.
constexpr double kAmpleShare = 0.15, kAmpleShareOfMany = 0.3;
constexpr std::int64_t kManyPanels = 96;

// The first of as many ranks as there are places, each of which holds one at most: a change plays the matches of one
// place again, without the moves of a heap and without branches, which nobody could foresee. The last bits of a rank
// give way to its place: times that agree to ten digits count as equal, and of equal ones the first place is first.
class Tournament {
 public:
  explicit Tournament(std::size_t places)
      : leaves_(std::bit_ceil(places)),
        ranks_(2 * leaves_, kNone),
        mask_((std::uint64_t{1} << std::bit_width(places)) - 1) {}
  void set(std::size_t place, std::uint64_t rank) { play(place, (rank & ~mask_) | place); }
  void clear(std::size_t place) { play(place, kNone); }
  [[nodiscard]] bool empty() const { return ranks_[1] == kNone; }
  [[nodiscard]] std::size_t first() const { return static_cast<std::size_t>(ranks_[1] & mask_); }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  void play(std::size_t place, std::uint64_t rank) {
    std::size_t at = leaves_ + place;
    ranks_[at] = rank;
    for (; at > 1; at /= 2) ranks_[at / 2] = rank = std::min(rank, ranks_[at ^ 1U]);
  }

  std::size_t leaves_;
  std::vector<std::uint64_t> ranks_;
  std::uint64_t mask_;
};

// Of times that are not negative: the earliest first. Its complement is the latest first.
std::uint64_t rank_of(double time) { return std::bit_cast<std::uint64_t>(time + 0.0); }

// Beside each other, because a rehearsal reads them tasklet by tasklet in no order that a processor could foresee.
struct Step {
  Panel panel;
  timing::Tail tail;  // where the interface is limited
};

struct Result {
  double computed = 0;
  std::int32_t tasklet = 0, panel = 0;
};

// Taken from the front in the order of arrival; what is taken stays in memory until all are.
template <class T>
class Queue {
 public:
  void push(const T& value) { values_.push_back(value); }
  void pop() {
    if (++first_ < values_.size()) return;
    values_.clear();
    first_ = 0;
  }
  [[nodiscard]] bool empty() const { return first_ == values_.size(); }
  [[nodiscard]] const T& front() const { return values_[first_]; }

 private:
  std::vector<T> values_;
  std::size_t first_ = 0;
};

// One direction of the server's interface: of those that wait, the one with the longest tail is next. When it is free
// is no event of the agenda, which would be twice as long.
struct Gate {
  double free_at = 0;
  Tournament waiting;  // the longest tail
  explicit Gate(std::size_t stations) : waiting(stations) {}
  void wait(double tail, std::size_t station) { waiting.set(station, ~rank_of(tail)); }
  // When it serves the next of those that wait.
  [[nodiscard]] double next() const { return waiting.empty() ? kNever : free_at; }
};

struct Station {
  const DeviceState* state = nullptr;
  Queue<std::int32_t> queue;  // tasklets whose panels are still to come down
  std::size_t next_panel = 0;
  bool down_taken = false;
  Queue<Result> results;          // that wait for the uplink, or are still being computed
  bool up_due = false;            // the first of them has its event
  Queue<std::int32_t> finishing;  // tasklets whose last result is under way
  double arrival = 0, processor = 0, up_free = 0;
  double down_free = 0, up_begins = 0;  // when what the agenda has of it happens
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
    firsts_.reserve(tasklets.size() + 1);
    std::size_t steps = 0;
    for (const TaskletPlan& tasklet : tasklets) steps += static_cast<std::size_t>(tasklet.panels);
    steps_.reserve(steps);
    std::vector<Panel> panels;
    std::vector<timing::Tail> tails;
    for (std::size_t t = 0; t < tasklets.size(); ++t) {
      panels = panels_of(work, tasklets[t]);
      timing::tails_of(panels, states.at(tasklets[t].device)->profile, tails);
      firsts_.push_back(steps_.size());
      for (std::size_t i = 0; i < panels.size(); ++i) steps_.push_back({panels[i], tails[i]});
      const auto [found, fresh] = stations.emplace(tasklets[t].device, stations_.size());
      if (fresh) {
        stations_.emplace_back();
        stations_.back().state = states.at(tasklets[t].device);
      }
      stations_[found->second].queue.push(static_cast<std::int32_t>(t));
    }
    firsts_.push_back(steps_.size());
    out_ = Gate(stations_.size());
    in_ = Gate(stations_.size());
    links_ = Tournament(2 * stations_.size());
  }

  double run() {
    double uplinks = 0;
    for (const Station& station : stations_) uplinks += station.state->profile.uplink.value();
    const auto many = [](const TaskletPlan& tasklet) { return tasklet.panels >= kManyPanels; };
    const bool all_many = std::all_of(tasklets_.begin(), tasklets_.end(), many);
    in_is_ample_ = uplinks < (all_many ? kAmpleShareOfMany : kAmpleShare) * server_.nic_in.value();
    for (std::size_t s = 0; s < stations_.size(); ++s) {
      Station& station = stations_[s];
      station.processor = station.state->compute_busy.value();
      // A link that earlier tasklets still take is free only after them.
      station.up_free = station.state->up_busy.value();
      station.down_taken = station.state->down_busy.value() > 0;
      if (station.down_taken) free_down_at(s, station.state->down_busy.value());
      pump_down(s, 0);
    }
    double last = 0;
    for (;;) {
      const double link = links_.empty() ? kNever : next_link();
      const double done = dones_.empty() ? kNever : dones_.top().first;
      const double soonest = std::min(link, done);
      if (out_.next() <= soonest && out_.next() < kNever) {
        begin_down(next_of(out_), out_.free_at);
      } else if (in_.next() <= soonest && in_.next() < kNever) {
        begin_up(next_of(in_), in_.free_at);
      } else if (soonest == kNever) {
        return last;
      } else if (done < link) {
        last = std::max(last, done);
        finish(dones_.top().second, done);
      } else {
        const std::size_t place = links_.first(), s = place / 2;
        links_.clear(place);
        if (place % 2 == 1) {
          ask_up(s, link);
        } else {
          stations_[s].down_taken = false;
          pump_down(s, link);
        }
      }
    }
  }

 private:
  [[nodiscard]] double next_link() const {
    const Station& station = stations_[links_.first() / 2];
    return links_.first() % 2 == 1 ? station.up_begins : station.down_free;
  }
  void free_down_at(std::size_t s, double at) {
    stations_[s].down_free = at;
    links_.set(2 * s, rank_of(at));
  }

  void finish(std::size_t s, double now) {
    dones_.pop();
    stations_[s].memory -= tasklets_[static_cast<std::size_t>(stations_[s].finishing.front())].resident.value();
    stations_[s].finishing.pop();
    pump_down(s, now);
  }

  [[nodiscard]] const Step& step_of(std::size_t tasklet, std::size_t panel) const {
    return steps_[firsts_[tasklet] + panel];
  }
  [[nodiscard]] std::size_t steps_in(std::size_t tasklet) const { return firsts_[tasklet + 1] - firsts_[tasklet]; }

  // A message that takes the interface no time does not wait for it.
  static bool has_to_wait(const Gate& gate, double now, Seconds through) {
    return (gate.free_at > now || !gate.waiting.empty()) && through.value() > 0;
  }

  // The station that the interface serves next.
  static std::size_t next_of(Gate& gate) {
    const std::size_t station = gate.waiting.first();
    gate.waiting.clear(station);
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
    const Step& step = step_of(t, station.next_panel);
    if (!has_to_wait(out_, now, step.panel.down / server_.nic_out)) return begin_down(s, now);
    out_.wait(step.tail.down.value(), s);
  }

  void begin_down(std::size_t s, double now) {
    Station& station = stations_[s];
    const std::int32_t tasklet = station.queue.front();
    const auto t = static_cast<std::size_t>(tasklet);
    const fleet::DeviceProfile& profile = station.state->profile;
    const std::size_t number = station.next_panel++;
    const Panel& panel = step_of(t, number).panel;
    const double end = carry(now, panel.down / server_.nic_out, panel.down / profile.downlink, out_);
    free_down_at(s, end);
    station.arrival = std::max(station.arrival, panel.down.value() > 0 ? end + profile.latency.value() : now);
    station.processor = std::max(station.arrival, station.processor) + (panel.flops / profile.compute).value();
    if (panel.up.value() > 0) {
      const Result result{station.processor, tasklet, static_cast<std::int32_t>(number)};
      if (in_is_ample_) {
        carry_up(s, result, std::max(station.processor, station.up_free));
      } else {
        station.results.push(result);
        await_up(s);
      }
    }
    if (station.next_panel == steps_in(t)) {
      station.queue.pop();
      station.next_panel = 0;
    }
  }

  // The first result goes up when it is computed and the one before it is through.
  void await_up(std::size_t s) {
    Station& station = stations_[s];
    if (station.up_due || station.results.empty()) return;
    station.up_due = true;
    station.up_begins = std::max(station.results.front().computed, station.up_free);
    links_.set(2 * s + 1, rank_of(station.up_begins));
  }

  void ask_up(std::size_t s, double now) {
    const Result& result = stations_[s].results.front();
    const auto t = static_cast<std::size_t>(result.tasklet), number = static_cast<std::size_t>(result.panel);
    const Step& step = step_of(t, number);
    if (!has_to_wait(in_, now, step.panel.up / server_.nic_in)) return begin_up(s, now);
    in_.wait(step.tail.up.value(), s);
  }

  void begin_up(std::size_t s, double now) {
    Station& station = stations_[s];
    const Result result = station.results.front();
    station.results.pop();
    carry_up(s, result, now);
    station.up_due = false;
    await_up(s);
  }

  void carry_up(std::size_t s, const Result& result, double now) {
    Station& station = stations_[s];
    const auto t = static_cast<std::size_t>(result.tasklet), number = static_cast<std::size_t>(result.panel);
    const Panel& panel = step_of(t, number).panel;
    const fleet::DeviceProfile& profile = station.state->profile;
    station.up_free = carry(now, panel.up / server_.nic_in, panel.up / profile.uplink, in_);
    if (number + 1 < steps_in(t)) return;
    station.finishing.push(result.tasklet);
    dones_.emplace(station.up_free + profile.latency.value(), s);
  }

  std::span<const TaskletPlan> tasklets_;
  fleet::ServerProfile server_;
  std::vector<Step> steps_;          // of all tasklets
  std::vector<std::size_t> firsts_;  // where each tasklet's begin
  std::vector<Station> stations_;
  // The agenda: of each station when its downlink is free and when its uplink is wanted, and where tasklets end.
  Tournament links_{1};
  using Done = std::pair<double, std::size_t>;
  std::priority_queue<Done, std::vector<Done>, std::greater<>> dones_;
  Gate out_{1}, in_{1};
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
