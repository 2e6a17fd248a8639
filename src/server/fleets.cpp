// The fleets in modelled and in real time order.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "exchange.hpp"
#include "executor.hpp"
#include "live_spans.hpp"
#include "pace.hpp"
#include "rank_fleet.hpp"

namespace cleave::server {

std::string_view name_of(ClockMode clock) {
  switch (clock) {
    case ClockMode::virtual_time: return "virtual";
    case ClockMode::wall: return "wall";
    case ClockMode::off: return "off";
  }
  return "";
}

namespace {

using sched::Event;
using sched::EventKind;
using sched::Tasklet;

/// What a witness's answer, or the server's own in its place, means to the scheduler. Who refuses witnesses nothing.
void compare(Executor& executor, const Tasklet& witness, const Answer* answer, Event& event) {
  if (answer != nullptr && answer->kind != Answer::Kind::result) {
    event.kind = EventKind::lost;
    return;
  }
  std::optional<SipTag> digest;
  if (answer != nullptr) {
    const auto header = comm::decode(answer->frame);
    if (header && header->kind == comm::Kind::digest && header->device == witness.piece.device)
      digest = comm::tag_of(answer->frame);
  }
  const PairVerdict verdict = executor.compare(witness, digest);
  event.kind = verdict.wrong.valid() ? EventKind::rejected : EventKind::done;
  if (verdict.wrong.valid()) event.device = verdict.wrong;
  event.also = verdict.also;
}

/// Looks at an answer and, if it is good, puts the block in its place; says what it means to the scheduler.
void accept(Executor& executor, Answer& answer, Event& event) {
  if (answer.tasklet.is_witness()) return compare(executor, answer.tasklet, &answer, event);
  event.kind = EventKind::rejected;
  if (answer.kind == Answer::Kind::lost) event.kind = EventKind::lost;
  if (answer.kind == Answer::Kind::refused && answer.tasklet.is_run()) {
    if (answer.why == comm::Reason::non_finite) {
      const PairVerdict verdict = executor.judge_refusal(answer.tasklet);
      event.device = verdict.wrong;
      event.also = verdict.also;
    } else if (answer.why == comm::Reason::memory) {
      // Sums that leave the range of the usual case take more memory than anybody plans for (docs/numerics.md).
      event.kind = EventKind::lost;
      event.lacks_memory = true;
    }
  }
  const bool of_tiles = answer.kind == Answer::Kind::refused && !answer.tasklet.is_run();
  if (of_tiles && answer.why == comm::Reason::non_finite && !executor.can_compute(answer.tasklet))
    event.kind = EventKind::lost;
  if (answer.kind != Answer::Kind::result) return;
  // Its sender can still write to a frame that is read in place: what is checked and what is kept must be one.
  if (answer.frame.borrowed() && executor.checks(answer.tasklet)) answer.frame = answer.frame.copy();
  // The exchange has decoded the whole frame, checksum included, when it came in.
  const auto header = comm::decode_header(answer.frame.bytes(), answer.frame.size());
  if (!header || header->kind != comm::Kind::result) return;
  comm::ResultView result = comm::view_result(answer.frame, *header);
  result.header.compute = std::min(result.header.compute, answer.took);  // whatever it says
  if (executor.place(answer.tasklet, result) != Verdict::good) return;
  event.kind = EventKind::done;
  if (executor.stages().is_read_later(answer.tasklet)) executor.stages().keep(std::move(answer.frame));
}

/// Tasklets of a step in stages travel whole.
comm::MessagePart first_part(Executor& executor, const Tasklet& tasklet, Bytes room) {
  return tasklet.is_run() ? comm::MessagePart{} : executor.gather().first_part(tasklet, room);
}

/// Sums that a device was sent and nobody wants any more, by tasklet.
class SentSums {
 public:
  void submitted(const Tasklet& tasklet) {
    if (tasklet.errand == sched::Errand::sum && tasklet.piece.device != kServerDevice)
      sums_.emplace(tasklet.id, tasklet);
  }
  void clear() { sums_.clear(); }
  /// A tasklet is forgotten: what was added is taken away again.
  void forget(TaskletId id, bool sent, Executor& executor, Exchange& exchange) {
    const auto found = sums_.find(id);
    if (found == sums_.end()) return;
    const DeviceId device = found->second.piece.device;
    if (sent && !exchange.is_gone(device)) exchange.send(device, executor.stages().take_away(found->second));
    sums_.erase(found);
  }

 private:
  std::map<TaskletId, Tasklet> sums_;  // of this step
};

/// Tells devices that a step in stages begins: whoever takes part, and who joins, whatever runs then: it holds nothing
/// of a step that it took part in before it left.
void begin_on(DeviceId device, Executor& executor, Exchange& exchange) {
  if (executor.stages().was_begun()) exchange.send(device, executor.stages().begin_message(device));
}

/// A device that leaves may go on with what it was asked: nobody waits for that, and it is not sent the rest.
/// `answers`: those that came before their turn, by tasklet.
template <class Answers>
void forget_all(DeviceId device, Exchange& exchange, Answers& answers) {
  exchange.forget_all(device);
  std::erase_if(answers, [&](const auto& early) { return early.second.tasklet.piece.device == device; });
}

/// Modelled time order, in real time (wall) or as fast as the host can (virtual); see cleave/server/fleets.hpp.
class ModelledFleet final : public sched::ForwardingFleet<RankFleet> {
 public:
  ModelledFleet(comm::Transport& transport, Executor& executor, const sched::StepSpec& spec, const FleetTerms& terms)
      : ForwardingFleet(model_),
        executor_(executor),
        exchange_(
            transport, spec, terms,
            {.pack =
                 [this, &transport](const Tasklet& tasklet, int rank, const comm::MessagePart& part) {
                   const FaultOrder fault = order_fault(model_.injected_faults(tasklet.piece.device), tasklet);
                   if (tasklet.is_run()) return executor_.stage_message(tasklet, fault, {&transport, rank});
                   return executor_.gather().message(tasklet, part, fault, {&transport, rank});
                 },
             .first_part = [this](const Tasklet& tasklet, Bytes room) { return first_part(executor_, tasklet, room); }},
            executor.profile()),
        model_(spec.devices, spec.server(), spec.wire, spec.churn, spec.seed),
        clock_(clock_of(terms)) {
    if (terms.clock == ClockMode::wall) pace_.emplace();
    model_.set_observer(terms.observer);
    follow_ranks();
  }

  [[nodiscard]] const std::vector<RankInfo>& ranks() const override { return exchange_.ranks(); }
  [[nodiscard]] const Pace* pace() const override { return pace_ ? &*pace_ : nullptr; }
  [[nodiscard]] std::vector<RankInfo> say_goodbye(Seconds at_most) override { return exchange_.say_goodbye(at_most); }

  void begin_step(const model::StepGraph& graph) override {
    model_.begin_step(graph);
    answers_.clear();
    sums_.clear();
    if (pace_) pace_->begin(clock_.now(), model_.now());
  }
  void begin_stages(const plan::StagePlan& plan) override {
    executor_.begin_stages(plan);
    for (const plan::DeviceState& state : devices()) begin_on(state.profile.id, executor_, exchange_);
  }
  void begin_tiles(std::int32_t stage, bool back) override { executor_.stages().begin_tiles(stage, back); }
  void end_tiles(std::int32_t stage, bool back) override { executor_.stages().end_tiles(stage, back); }
  void submit(const Tasklet& tasklet) override {
    model_.submit(tasklet);
    sums_.submitted(tasklet);
    if (tasklet.piece.device != kServerDevice) return exchange_.submit(tasklet);
    if (tasklet.is_witness()) {
      own_witnesses_.emplace(tasklet.id, tasklet);
    } else {
      executor_.compute(tasklet);
    }
  }
  void start(const model::Operation& kernel) override {
    executor_.run(kernel);
    model_.start(kernel);
  }
  void finish(OpId op) override { executor_.finish(op); }
  void retire(OpId op) override { executor_.retire(op); }
  void forget(TaskletId tasklet) override {
    own_witnesses_.erase(tasklet);
    model_.forget(tasklet);
    sums_.forget(tasklet, exchange_.forget(tasklet), executor_, exchange_);
    answers_.erase(tasklet);
  }
  void release(TaskletId columns, DeviceId device) override {
    model_.release(columns, device);
    exchange_.release(columns, device);
    executor_.stages().released(columns);
  }

  Event next_event(Seconds deadline) override {
    if (executor_.stops_step()) throw sched::Interrupted{};
    for (;;) {
      follow_ranks();
      const Seconds until = pace_ ? std::min(deadline, model_.next_at()) : deadline;
      if (pace_ && !is_due(until)) continue;
      Event event = model_.next_event(until);
      const Seconds due = pace_ ? clock_.now() : Seconds(0);
      int waited_for = 0;
      if (event.kind == EventKind::timeout && until < deadline) continue;
      if (event.kind == EventKind::joined && exchange_.is_gone(event.device)) {
        model_.remove_device(event.device);  // its process does not answer: the trace cannot bring it back
        not_back_.insert(event.device);
        continue;
      }
      // Nobody knew that it was there, and nothing has happened: who waits for something to happen must not be woken.
      if (event.kind == EventKind::left && not_back_.erase(event.device) > 0) continue;
      if (event.kind == EventKind::joined) begin_on(event.device, executor_, exchange_);
      if (event.kind == EventKind::done && event.device != kServerDevice) {
        waited_for = exchange_.rank_of(event.device);
        event = when_answered(event);
      } else if (event.kind == EventKind::done) {
        if (const auto own = own_witnesses_.find(event.tasklet); own != own_witnesses_.end()) {
          compare(executor_, own->second, nullptr, event);
          own_witnesses_.erase(own);
        }
      }
      if (event.kind == EventKind::left) forget_all(event.device, exchange_, answers_);
      if (pace_) {
        const Seconds passed = clock_.now();
        pace_->passed(passed, model_.now(), waited_for, waited_for > 0 ? passed - due : Seconds(0));
      }
      return event;
    }
  }

 private:
  // Ranks that died or fell silent take their devices out of the model; those that speak again bring them back.
  void follow_ranks() {
    for (const DeviceId device : exchange_.take_gone()) model_.remove_device(device);
    for (const DeviceId device : exchange_.take_returned()) model_.return_device(device);
  }

  // Whether real time has come to `modelled`; if not, something else was waited for, at most until then. What never
  // comes is due at once: the model says so itself.
  bool is_due(Seconds modelled) {
    const Seconds left = pace_->left(clock_.now(), modelled);
    if (left.value() <= 0 || !std::isfinite(left.value())) return true;
    hold(exchange_.next(left));
    return false;
  }

  void hold(std::optional<Answer> answer) {
    if (answer && answer->kind != Answer::Kind::late) answers_.insert_or_assign(answer->tasklet.id, std::move(*answer));
  }

  // The model says that the block is there now: waits until it really is.
  Event when_answered(Event event) {
    for (;;) {
      const auto early = answers_.find(event.tasklet);
      if (early != answers_.end()) {
        accept(executor_, early->second, event);
        answers_.erase(early);
        return event;
      }
      std::optional<Answer> answer = exchange_.next(Seconds(0.2));
      if (exchange_.is_gone(event.device) && !answer) {
        model_.remove_device(event.device);
        event.kind = EventKind::left;
        return event;
      }
      hold(std::move(answer));
    }
  }

  Executor& executor_;
  Exchange exchange_;
  sched::SimulatedFleet model_;
  Clock& clock_;
  std::optional<Pace> pace_;
  // Answers that came before their modelled time. They are put in their place when the event says so: a block that was
  // placed and then lost with its device would be added twice where results add up.
  NodePool nodes_;
  std::pmr::map<TaskletId, Answer> answers_{&nodes_};
  std::map<TaskletId, Tasklet> own_witnesses_;  // in whose place the server stands
  std::set<DeviceId> not_back_;                 // the trace says so, their processes do not: they leave again
  SentSums sums_;
};

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
    if (!tasklet.brings_columns()) device_at(tasklet.piece.device).owed += tasklet.piece.time;
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
    Seconds owed{};  // predicted time of what it has not answered
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
    device.owed = std::max(Seconds(0), device.owed - answer.tasklet.piece.time);
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

  void account(const Tasklet& tasklet) {
    const plan::TaskletPlan& piece = tasklet.piece;
    const Device& device = device_at(piece.device);
    sched::Usage& used = usage_[static_cast<std::size_t>(piece.device.value)];
    used.down += piece.bytes_down / device.profile.downlink;
    used.up += piece.bytes_up / device.profile.uplink;
    const Flops flops = tasklet.is_run() ? tasklet.run.each.flops * static_cast<double>(tasklet.run.panels)
                                         : plan::volume_of(work_of(tasklet), piece).flops;
    used.compute += flops / device.profile.compute;
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
  std::map<TaskletId, Tasklet> own_witnesses_;         // in whose place the server stands
  std::pmr::map<TaskletId, Answer> answers_{&nodes_};  // whose event is still to come
  TaskletId first_of_step_, last_submitted_;
  SentSums sums_;
};

/// No devices: the simulated fleet keeps the time, the executor computes.
class LocalFleet final : public sched::ForwardingFleet<> {
 public:
  LocalFleet(Executor& executor, const fleet::ServerProfile& server, DType wire)
      : ForwardingFleet(model_), executor_(executor), model_({}, server, wire) {}

  void submit(const Tasklet& tasklet) override {
    executor_.compute(tasklet);
    model_.submit(tasklet);
  }
  void start(const model::Operation& kernel) override {
    executor_.run(kernel);
    model_.start(kernel);
  }
  void finish(OpId op) override { executor_.finish(op); }
  void retire(OpId op) override { executor_.retire(op); }

 private:
  Executor& executor_;
  sched::SimulatedFleet model_;
};

}  // namespace

std::unique_ptr<RankFleet> make_rank_fleet(comm::Transport& transport, Executor& executor, const sched::StepSpec& spec,
                                           const FleetTerms& terms) {
  executor.set_meanwhile([&transport] { transport.progress(); });  // operands travel while kernels run
  // In real time a device would be late that has all of its sums to make when their time is over.
  if (terms.clock != ClockMode::wall) executor.stages().sum_late();
  if (terms.clock == ClockMode::off) return std::make_unique<LiveFleet>(transport, executor, spec, terms);
  return std::make_unique<ModelledFleet>(transport, executor, spec, terms);
}

std::unique_ptr<sched::Fleet> make_local_fleet(Executor& executor, const fleet::ServerProfile& server) {
  return std::make_unique<LocalFleet>(executor, server, executor.wire());
}

}  // namespace cleave::server
