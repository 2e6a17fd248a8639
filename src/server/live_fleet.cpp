// The fleet in order of arrival: clock `off`.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "answers.hpp"
#include "cleave/base/clock.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/plan/cost.hpp"
#include "exchange.hpp"
#include "executor.hpp"
#include "live_spans.hpp"
#include "rank_fleet.hpp"
#include "rank_fleets.hpp"

namespace cleave::server {

namespace {

using sched::Event;
using sched::EventKind;
using sched::Tasklet;

/// Real time order, as fast as the host can; see cleave/server/fleets.hpp.
class LiveFleet final : public RankFleet {
 public:
  LiveFleet(comm::Transport& transport, Executor& executor, const sched::StepSpec& spec, const FleetTerms& terms)
      : executor_(executor),
        churn_(spec.churn),
        wire_(spec.wire),
        clock_(clock_of(terms)),
        exchange_(
            transport, spec, terms,
            {.pack =
                 [this, &transport](const Tasklet& tasklet, int rank, const comm::MessagePart& part) {
                   return pack(tasklet, part, {&transport, rank});
                 },
             .first_part = [this](const Tasklet& tasklet, Bytes room) { return first_part(executor_, tasklet, room); }},
            executor.profile()),
        usage_(spec.devices.size()),
        spans_(terms.observer, spec.devices.size()) {
    for (const fleet::DeviceProfile& profile : spec.devices) devices_.push_back({.profile = profile});
    for (const DeviceId device : exchange_.take_gone()) device_at(device).present = false;  // since the start
    origin_ = clock_.now();
  }

  [[nodiscard]] Seconds now() const override { return clock_.now() - origin_; }
  [[nodiscard]] std::uint64_t roster() const override { return roster_; }
  [[nodiscard]] std::span<const sched::Usage> usage() const override { return usage_; }
  [[nodiscard]] const std::vector<RankInfo>& ranks() const override { return exchange_.ranks(); }
  [[nodiscard]] const Pace* pace() const override { return nullptr; }
  [[nodiscard]] std::vector<RankInfo> say_goodbye(Seconds at_most) override { return exchange_.say_goodbye(at_most); }

  [[nodiscard]] std::vector<plan::DeviceState> devices_ahead_of(const sched::Priority& /*priority*/) const override {
    return devices();
  }
  [[nodiscard]] std::vector<plan::DeviceState> devices() const override {
    std::vector<plan::DeviceState> states;
    for (const Device& device : devices_) {
      if (device.present) states.push_back({device.profile, device.owed, device.owed, device.owed});
    }
    return states;
  }

  [[nodiscard]] std::vector<fleet::DeviceProfile> all_devices() const override {
    std::vector<fleet::DeviceProfile> profiles;
    for (const Device& device : devices_) profiles.push_back(device.profile);
    return profiles;
  }

  void begin_step(const model::StepGraph& graph) override {
    graph_ = &graph;
    answers_.clear();
    sums_.clear();
    std::erase_if(pending_,
                  [](const Event& e) { return e.kind == EventKind::done || e.kind == EventKind::kernel_done; });
    spans_.begin(graph, now());
    first_of_step_ = TaskletId(last_submitted_.value + 1);
  }

  void begin_stages(const plan::StagePlan& plan) override {
    executor_.begin_stages(plan);
    for (const Device& device : devices_) {
      if (device.present) begin_on(device.profile.id, executor_, exchange_);
    }
  }
  void begin_tiles(std::int32_t stage, bool back) override { executor_.stages().begin_tiles(stage, back); }
  void end_tiles(std::int32_t stage, bool back) override { executor_.stages().end_tiles(stage, back); }

  void submit(const Tasklet& tasklet) override {
    last_submitted_ = tasklet.id;
    sums_.submitted(tasklet);
    if (tasklet.piece.device == kServerDevice) {
      if (tasklet.is_witness()) {
        own_witnesses_.emplace(tasklet.id, tasklet);
        return post(EventKind::done, kServerDevice, tasklet.id, tasklet.op);
      }
      const Seconds begun = now();
      executor_.compute(tasklet);
      spans_.computed_here(tasklet, begun, now());
      post(EventKind::done, kServerDevice, tasklet.id, tasklet.op);
      return;
    }
    if (!tasklet.stays_on_device()) {
      const Seconds time = time_of(tasklet);
      device_at(tasklet.piece.device).owed += time;
      owed_.emplace(tasklet.id, Owed{tasklet.piece.device, time});
    }
    exchange_.submit(tasklet);
  }

  void start(const model::Operation& kernel) override {
    const Seconds begun = now();
    executor_.run(kernel);
    spans_.kernel(kernel.id, begun, now());
    post(EventKind::kernel_done, kServerDevice, {}, kernel.id);
  }

  void finish(OpId op) override { executor_.finish(op); }
  void retire(OpId op) override { executor_.retire(op); }
  void forget(TaskletId tasklet) override {
    own_witnesses_.erase(tasklet);
    sums_.forget(tasklet, exchange_.forget(tasklet), executor_, exchange_);
    answers_.erase(tasklet);
    std::erase_if(pending_, [&](const Event& event) { return event.tasklet == tasklet; });
    spans_.lost(tasklet, now());
  }
  void release(TaskletId columns, DeviceId device) override {
    exchange_.release(columns, device);
    executor_.stages().released(columns);
    spans_.lost(columns, now());
  }

  Event next_event(Seconds deadline) override {
    if (executor_.stops_step()) throw sched::Interrupted{};
    for (;;) {
      apply_churn();
      for (const DeviceId device : exchange_.take_gone()) post(EventKind::left, device);
      for (const DeviceId device : exchange_.take_returned()) post(EventKind::joined, device);
      if (!pending_.empty()) {
        const Event event = pending_.front();
        pending_.pop_front();
        if (changes(event)) return settle(event);
        continue;
      }
      Seconds until = deadline;
      if (next_churn_ < churn_.size()) until = std::min(until, churn_[next_churn_].at);
      if (until <= now() && until == deadline)
        return {.kind = EventKind::timeout, .at = now(), .tasklet = {}, .device = {}, .op = {}};
      const Seconds wait = std::clamp(until - now(), Seconds(0), Seconds(0.2));
      if (std::optional<Answer> answer = exchange_.next(wait)) take(std::move(*answer));
    }
  }

 private:
  struct Device {
    fleet::DeviceProfile profile;
    bool present = true;
    std::optional<fleet::InjectedFaults> faults{};
    Seconds owed{};  // what it has not answered takes of its busiest resources
  };

  Device& device_at(DeviceId id) { return devices_[static_cast<std::size_t>(id.value)]; }
  [[nodiscard]] plan::Work work_of(const Tasklet& tasklet) const {
    return plan::work_of(graph_->operation(tasklet.op), wire_);
  }
  void post(EventKind kind, DeviceId device, TaskletId tasklet = {}, OpId op = {}) {
    pending_.push_back({.kind = kind, .at = now(), .tasklet = tasklet, .device = device, .op = op});
  }

  comm::Frame pack(const Tasklet& tasklet, const comm::MessagePart& part, const Reader& reader) {
    const Seconds begun = now();
    if (tasklet.is_run()) {
      comm::Frame frame =
          executor_.stage_message(tasklet, order_fault(device_at(tasklet.piece.device).faults, tasklet), reader);
      spans_.sent(tasklet, begun, now());
      return frame;
    }
    comm::Frame frame =
        executor_.gather().message(tasklet, part, order_fault(device_at(tasklet.piece.device).faults, tasklet), reader);
    if (part.first == 0) spans_.sent(tasklet, begun, now());
    return frame;
  }

  void take(Answer answer) {
    Device& device = device_at(answer.tasklet.piece.device);
    if (const auto owed = owed_.find(answer.tasklet.id); owed != owed_.end()) {
      device.owed = std::max(Seconds(0), device.owed - owed->second.time);
      owed_.erase(owed);
    }
    // What is emulated as gone, or was forgotten, does not count.
    if (!device.present || answer.kind == Answer::Kind::late) return;
    if (answer.kind == Answer::Kind::result) tell_answer(answer);
    post(EventKind::done, answer.tasklet.piece.device, answer.tasklet.id, answer.tasklet.op);
    answers_.insert_or_assign(answer.tasklet.id, std::move(answer));
  }

  // Devices come and go when the scheduler is told, not before: what it asks of a device between two events must find
  // the device that it knows of. False for what is the case already.
  bool changes(const Event& event) {
    if (event.kind == EventKind::left) return leave(event.device);
    if (event.kind == EventKind::joined) return join(event.device);
    return true;
  }

  // Looks at an answer when its turn has come, not before: a block that was placed and then lost with its device would
  // be added twice where results add up.
  Event settle(Event event) {
    const Seconds begun = now();
    if (const auto own = own_witnesses_.find(event.tasklet); own != own_witnesses_.end()) {
      compare(executor_, own->second, nullptr, event);
      spans_.computed_here(own->second, begun, now());
      own_witnesses_.erase(own);
      return event;
    }
    const auto found = answers_.find(event.tasklet);
    if (found == answers_.end()) return event;
    accept(executor_, found->second, event);
    spans_.placed(found->second.tasklet, begun, now());
    account(found->second.tasklet);
    answers_.erase(found);
    return event;
  }

  void tell_answer(const Answer& answer) {
    const auto header = comm::decode_header(answer.frame.bytes().first(comm::kHeaderBytes), answer.frame.size());
    if (header && answer.tasklet.id >= first_of_step_) spans_.answered(answer.tasklet, *header, now());
  }

  struct Times {
    Seconds down, compute, up;
  };
  // That a tasklet takes of its device's resources, by itself and at declared rates.
  [[nodiscard]] Times times_of(const Tasklet& tasklet) {
    const plan::TaskletPlan& piece = tasklet.piece;
    const fleet::DeviceProfile& profile = device_at(piece.device).profile;
    const Flops flops = tasklet.is_run() ? tasklet.run.each.flops * static_cast<double>(tasklet.run.panels)
                                         : plan::volume_of(work_of(tasklet), piece).flops;
    return {piece.bytes_down / profile.downlink, flops / profile.compute, piece.bytes_up / profile.uplink};
  }
  // Not piece.time, which counts what the device was busy with before.
  [[nodiscard]] Seconds time_of(const Tasklet& tasklet) {
    const Times times = times_of(tasklet);
    return std::max({times.down, times.compute, times.up});
  }

  void account(const Tasklet& tasklet) {
    const plan::TaskletPlan& piece = tasklet.piece;
    sched::Usage& used = usage_[static_cast<std::size_t>(piece.device.value)];
    const Times times = times_of(tasklet);
    used.down += times.down;
    used.up += times.up;
    used.compute += times.compute;
    used.bytes_down += piece.bytes_down;
    used.bytes_up += piece.bytes_up;
    used.memory_peak = std::max(used.memory_peak, piece.resident);
    ++used.streams;
  }

  bool leave(DeviceId id) {
    Device& device = device_at(id);
    if (!device.present) return false;
    device.present = false;
    device.owed = Seconds(0);
    std::erase_if(owed_, [&](const auto& of) { return of.second.device == id; });
    ++roster_;
    forget_all(id, exchange_, answers_);
    std::erase_if(pending_, [&](const Event& event) { return event.kind == EventKind::done && event.device == id; });
    spans_.lost_with(id, now());
    spans_.changed(id, sched::DeviceChange::left, now());
    return true;
  }

  bool join(DeviceId id) {
    Device& device = device_at(id);
    if (device.present || exchange_.is_gone(id)) return false;
    device.present = true;
    ++roster_;
    begin_on(id, executor_, exchange_);
    spans_.changed(id, sched::DeviceChange::joined, now());
    return true;
  }

  void apply_churn() {
    for (; next_churn_ < churn_.size() && churn_[next_churn_].at <= now(); ++next_churn_) {
      const fleet::ChurnEvent& event = churn_[next_churn_];
      if (event.device.value < 0 || event.device.value >= static_cast<std::int64_t>(devices_.size())) continue;
      Device& device = device_at(event.device);
      switch (event.kind) {
        case fleet::ChurnKind::leave:
        case fleet::ChurnKind::hang: post(EventKind::left, event.device); break;
        case fleet::ChurnKind::join: post(EventKind::joined, event.device); break;
        case fleet::ChurnKind::slow:  // its links and processor are not emulated
          spans_.changed(event.device, sched::DeviceChange::slowed, now(), event.factor);
          break;
        case fleet::ChurnKind::faulty:
          device.faults = fleet::InjectedFaults{event.fault, event.factor};
          spans_.changed(event.device, sched::DeviceChange::faulty, now());
          break;
      }
    }
  }

  Executor& executor_;
  fleet::ChurnTrace churn_;
  DType wire_;
  std::size_t next_churn_ = 0;
  Clock& clock_;
  Seconds origin_;
  Exchange exchange_;
  std::vector<Device> devices_;
  std::vector<sched::Usage> usage_;
  LiveSpans spans_;
  const model::StepGraph* graph_ = nullptr;
  std::uint64_t roster_ = 1;
  NodePool nodes_;
  std::pmr::deque<Event> pending_{&nodes_};
  std::map<TaskletId, Tasklet> own_witnesses_;  // in whose place the server stands
  EarlyAnswers answers_{&nodes_};               // whose event is still to come
  struct Owed {
    DeviceId device;
    Seconds time;
  };
  std::pmr::map<TaskletId, Owed> owed_{&nodes_};  // not answered yet
  TaskletId first_of_step_, last_submitted_;
  SentSums sums_;
};

}  // namespace

std::unique_ptr<RankFleet> make_live_fleet(comm::Transport& transport, Executor& executor, const sched::StepSpec& spec,
                                           const FleetTerms& terms) {
  return std::make_unique<LiveFleet>(transport, executor, spec, terms);
}

}  // namespace cleave::server
