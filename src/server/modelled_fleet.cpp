// The fleet in modelled time order: clocks `virtual` and `wall`.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "answers.hpp"
#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "exchange.hpp"
#include "executor.hpp"
#include "pace.hpp"
#include "rank_fleet.hpp"
#include "rank_fleets.hpp"

namespace cleave::server {

namespace {

using sched::Event;
using sched::EventKind;
using sched::Tasklet;

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
  EarlyAnswers answers_{&nodes_};
  std::map<TaskletId, Tasklet> own_witnesses_;  // in whose place the server stands
  std::set<DeviceId> not_back_;                 // the trace says so, their processes do not: they leave again
  SentSums sums_;
};

}  // namespace

std::unique_ptr<RankFleet> make_modelled_fleet(comm::Transport& transport, Executor& executor,
                                               const sched::StepSpec& spec, const FleetTerms& terms) {
  return std::make_unique<ModelledFleet>(transport, executor, spec, terms);
}

}  // namespace cleave::server
