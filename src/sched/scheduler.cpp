// The scheduler's loop: plans and submits operations that are ready, and passes each event to the part it concerns.
#include "cleave/sched/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "by_device.hpp"
#include "cleave/base/error.hpp"
#include "outstanding.hpp"
#include "planning.hpp"
#include "ready_set.hpp"
#include "recovery/recovery.hpp"
#include "residency/weight_cache.hpp"
#include "step_progress.hpp"
#include "stopwatch.hpp"
#include "urgency.hpp"

namespace cleave::sched {

namespace {

constexpr Seconds kForever{std::numeric_limits<double>::infinity()};
/// Turns of what comes when the critical path leaves a link idle begin here.
constexpr std::int64_t kWhenIdle = std::int64_t{1} << 40;
/// KeepGoing is asked again after at most this many events.
constexpr int kTileEventsBetweenQuestions = 64;

}  // namespace

struct Scheduler::Impl {
  Fleet& fleet;
  SchedulerOptions options;
  std::int64_t next_tasklet = 0, next_turn = 0;
  StepReport report;
  ByDevice<bool> contributors;
  std::int64_t kernels = 0;  // under way
  bool rejected = false;     // since KeepGoing was last asked
  Seconds began;
  std::vector<Usage> used_before;
  const model::StepGraph* graph = nullptr;

  WeightCache weight_cache;
  Planning planning;
  StepProgress progress;
  Outstanding outstanding;
  Recovery recovery;
  ReadySet ready_set;
  std::vector<OpId> waiting_for_columns;
  OpId brings_its_own;         // whatever finds room
  OperationSet part;           // that is run
  std::vector<InFlight> idle;  // lost with devices, and not planned again yet
  Seconds silent;              // for so long those were before it was noticed

  Impl(Fleet& f, SchedulerOptions o)
      : fleet(f),
        options(std::move(o)),
        weight_cache(
            [this](OpId first_part, const plan::TaskletPlan& piece) { return send_columns(first_part, piece); },
            [this](TaskletId id, DeviceId device) { fleet.release(id, device); }),
        planning(fleet, options, weight_cache),
        recovery(
            fleet, options, progress, outstanding, planning, report,
            [this](OpId op, const plan::TaskletPlan& piece, int loss, std::optional<std::int64_t> block, int losses) {
              submit(op, piece, loss, block, {}, losses);
            },
            [this](const InFlight& flight) { settle(flight, true); }) {}

  OperationProgress& at(OpId op) { return progress.at(op); }

  void begin(const model::StepGraph& step, OperationSet operations) {
    part = std::move(operations);
    weight_cache.clear();
    graph = &step;
    report = StepReport{};
    report.operations.reserve(part.size());
    idle.clear();
    silent = Seconds(0);
    contributors.clear();
    began = fleet.now();
    const std::span<const Usage> used = fleet.usage();
    used_before.assign(used.begin(), used.end());
    rejected = false;
    kernels = 0;
    outstanding.clear();
    waiting_for_columns.clear();
    brings_its_own = OpId();
    const std::vector<int> urgency = urgencies(step);
    progress.begin(step, urgency, part);
    planning.begin(step, urgency, part);
    recovery.begin(step);
  }

  // Columns are background work until a tasklet waits for them.
  TaskletId send_columns(OpId first_part, const plan::TaskletPlan& piece) {
    Tasklet tasklet{.id = TaskletId(next_tasklet++), .op = first_part, .piece = piece, .turn = kWhenIdle + next_turn++};
    tasklet.columns = tasklet.id;
    ++report.tasklets;
    report.bytes_down += piece.bytes_down;
    fleet.submit(tasklet);
    return tasklet.id;
  }

  // Sends an operation as it is planned; a piece whose columns are not on its device brings its own.
  void submit_all(const model::Operation& op, const plan::Work& work, const plan::OperationPlan& plan) {
    for (const plan::TaskletPlan& piece : plan.tasklets) {
      if (!piece.columns_kept) {
        submit(op.id, piece);
      } else if (const std::optional<TaskletId> kept = weight_cache.use(op.rows.first, piece)) {
        submit(op.id, piece, -1, {}, *kept);
      } else {
        for (const plan::TaskletPlan& own :
             plan::with_own_columns(work, piece, planning.plans().devices(), options.plan)) {
          submit(op.id, own);
        }
      }
    }
    if (planning.partitions().of(op.id)) weight_cache.sent_group(op.rows);
  }

  // Time until the answer to a piece, which is put on its device's account. What is urgent goes ahead of deferrable
  // work.
  Seconds expected_of(const OperationProgress& op, const plan::TaskletPlan& piece) {
    if (op.deferrable) return piece.time;
    const Seconds in_hand = outstanding.take_in_hand(piece);
    return op.urgency == 0 ? in_hand : in_hand + planning.background().in_hand(piece.device, fleet.now());
  }

  // Sends one piece of `op`: a block of its own, recomputed for `loss` after so many `losses`, or another copy of
  // `block`. `kept`: the columns that it uses.
  void submit(OpId op, const plan::TaskletPlan& piece, int loss = -1, std::optional<std::int64_t> block = {},
              TaskletId kept = {}, int losses = 0) {
    const Tasklet tasklet{.id = TaskletId(next_tasklet++),
                          .op = op,
                          .piece = piece,
                          .redone = loss >= 0 || block.has_value(),
                          .urgency = at(op).urgency,
                          .turn = at(op).turn,
                          .columns = kept};
    OperationProgress& of_op = at(op);
    const Seconds expected = std::max(expected_of(of_op, piece), of_op.planned);
    of_op.expected = std::max(of_op.expected, expected);
    if (!block) ++of_op.blocks;
    ++report.tasklets;
    report.bytes_down += piece.bytes_down;
    report.bytes_up += piece.bytes_up;
    outstanding.add({.tasklet = tasklet,
                     .block = block.value_or(tasklet.id.value),
                     .sent = fleet.now(),
                     .expected = expected,
                     .loss = loss,
                     .losses = losses});
    fleet.submit(tasklet);
  }

  // Takes a tasklet off the book; `forgotten`: its answer is no longer wanted.
  void settle(const InFlight& flight, bool forgotten) {
    const Tasklet tasklet = flight.tasklet;
    outstanding.remove(tasklet, !at(tasklet.op).deferrable);
    if (forgotten) fleet.forget(tasklet.id);
    if (tasklet.columns.valid()) weight_cache.done(tasklet.columns);
  }

  [[nodiscard]] bool may_begin() const {
    return progress.any_ready() && (options.asynchronous || progress.begun() == report.operations.size());
  }

  // Groups whose columns find no room yet are put off.
  [[nodiscard]] bool put_off(const model::Operation& op, std::size_t partition) {
    if (op.kind != model::OpKind::gemm || brings_its_own == op.id) return false;
    weight_cache.want_for(op, partition, planning.partitions().all(), *graph, planning.plans().version());
    if (!weight_cache.must_wait(op.rows.first)) return false;
    waiting_for_columns.push_back(op.id);
    return true;
  }

  void take_up_again() {
    std::erase_if(waiting_for_columns, [&](OpId id) {
      if (weight_cache.must_wait(graph->operation(id).rows.first)) return false;
      return progress.make_ready(id);
    });
  }

  void dispatch_ready() {
    take_up_again();
    begin_ready();
    // Where rates change, columns are planned anew, and those of a later operation may have the room that an earlier
    // one's wait for, while it waits for that one. With nothing under way, the first that waits brings its own.
    while (!waiting_for_columns.empty() && kernels == 0 && !outstanding.flights().any()) {
      brings_its_own = waiting_for_columns.front();
      waiting_for_columns.erase(waiting_for_columns.begin());
      progress.make_ready(brings_its_own);
      begin_ready();
    }
  }

  void begin_ready() {
    if (!may_begin()) return;
    planning.renew_rates();
    ready_set.clear();
    while (may_begin()) {
      const OpId id = progress.begin_next(fleet.now(), next_turn++);
      const model::Operation& op = graph->operation(id);
      if (!model::runs_on_devices(op.kind)) {
        ++kernels;
        fleet.start(op);
        continue;
      }
      ready_set.add(id, plan::work_of(op, options.wire), options.asynchronous && at(id).urgency > 0);
    }
    if (ready_set.entries().empty()) return;
    {
      const Stopwatch watch(report.planning);
      planning.choose(ready_set);
    }
    for (const auto& [id, work, may_wait, plan, deferrable] : ready_set.entries()) {
      const model::Operation& op = graph->operation(id);
      at(id).deferrable = deferrable;
      const auto partition = planning.partitions().in_use_by(id);
      if (partition && put_off(op, *partition)) continue;
      at(id).planned = plan->time;
      at(id).lower_bound = (partition ? *plan : planning.plans().plan_for(work)).lower_bound;
      submit_all(op, work, *plan);
      at(id).sent = at(id).blocks;
      const auto on_device = [](const plan::TaskletPlan& piece) { return piece.device != kServerDevice; };
      if (std::ranges::any_of(plan->tasklets, on_device)) recovery.expect(id);
    }
  }

  void complete(OpId id) {
    const OperationProgress& op = at(id);
    fleet.finish(id);
    fleet.retire(id);
    planning.complete(graph->operation(id));
    report.operations.push_back({id, op.start, fleet.now(), op.planned, op.lower_bound});
    recovery.complete(id);
    progress.complete(id);
  }

  void take_answer(const Event& event) {
    const InFlight* const found = outstanding.flights().find(event.tasklet);
    if (found == nullptr) return;  // a late copy
    const InFlight flight = *found;
    const OpId id = flight.tasklet.op;
    if (event.device != kServerDevice) {
      contributors[event.device] = true;
      planning.answered(event.device);
      planning.observe(event.device, event.measured);
    }
    recovery.answered(flight, event.measured);
    for (const TaskletId other : outstanding.flights().others(flight)) {
      settle(*outstanding.flights().find(other), true);
    }
    settle(flight, false);
    if (--at(id).blocks == 0) complete(id);
  }

  void give_up() {
    for (const TaskletId id : outstanding.flights().ids()) settle(*outstanding.flights().find(id), true);
  }

  StepReport& end_report() {
    report.time = fleet.now() - began;
    report.losses = recovery.losses();
    report.devices = contributors.count(true);
    report.energy += energy_since(fleet, used_before, report.time);
    return report;
  }

  void distrust(DeviceId device) {
    rejected = true;
    planning.distrust(device);
    weight_cache.forget(device);
  }

  [[nodiscard]] bool is_complete() const { return report.operations.size() == part.size(); }

  // A device is gone, and perhaps others at the same moment: what they all held is planned again at once.
  void lose(const Event& event) {
    weight_cache.forget(event.device);
    const std::vector<InFlight> held = outstanding.flights().held_by(event.device);
    report.lost += std::ssize(held);
    silent = std::max(silent, event.unnoticed);
    for (const InFlight& flight : recovery.give_up(held)) idle.push_back(flight);
  }
  void redo_lost() {
    if (!idle.empty()) recovery.redo(std::exchange(idle, {}), std::exchange(silent, Seconds(0)));
  }
  std::optional<Event> take_leaving(const Event& first) {
    Event event = first;
    for (; event.kind == EventKind::left; event = fleet.next_event(fleet.now())) lose(event);
    if (event.kind == EventKind::rejected) distrust(event.device);
    redo_lost();
    return event.kind == EventKind::timeout ? std::nullopt : std::optional(event);
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::done: take_answer(event); return;
      case EventKind::late: planning.observe(event.device, event.measured); return;
      case EventKind::kernel_done:
        --kernels;
        complete(event.op);
        return;
      case EventKind::left: {
        if (const std::optional<Event> next = take_leaving(event)) handle(*next);
        return;
      }
      case EventKind::lost: {
        const InFlight* const found = outstanding.flights().find(event.tasklet);
        if (found == nullptr) return;
        ++report.lost;
        if (found->tasklet.columns.valid()) weight_cache.doubt(found->tasklet.columns);
        recovery.redo(recovery.give_up({*found}), Seconds(0));
        return;
      }
      case EventKind::rejected: {
        ++report.rejected;
        distrust(event.device);
        recovery.redo(recovery.give_up(outstanding.flights().held_by(event.device)), Seconds(0));
        return;
      }
      case EventKind::timeout: recovery.pass_deadline(); return;
      case EventKind::joined: return;
    }
  }
};

Scheduler::Scheduler(Fleet& fleet, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(fleet, std::move(options))) {}
Scheduler::~Scheduler() = default;

TaskletId Scheduler::next_tasklet() const { return TaskletId(impl_->next_tasklet); }
void Scheduler::number_from(TaskletId next) { impl_->next_tasklet = next.value; }
std::vector<DeviceId> Scheduler::distrusted() const {
  return {impl_->planning.distrusted().begin(), impl_->planning.distrusted().end()};
}
void Scheduler::distrust(DeviceId device) { impl_->planning.distrust(device); }
bool Scheduler::leaves_out(DeviceId device) const { return impl_->planning.leaves_out(device); }

StepReport Scheduler::run(const model::StepGraph& graph, const KeepGoing& keep_going) {
  Impl& self = *impl_;
  self.begin(graph, OperationSet(graph, true));
  self.fleet.begin_step(graph);
  for (int events = 0; !self.is_complete(); ++events) {
    const bool asks = std::exchange(self.rejected, false) || events % kTileEventsBetweenQuestions == 0;
    if (keep_going && asks && !keep_going()) throw Interrupted{};
    self.dispatch_ready();
    const Seconds until = self.recovery.next_deadline().value_or(kForever);
    // A fleet in real time would wait for ever.
    CLEAVE_ASSERT(self.outstanding.flights().any() || self.kernels > 0,
                  "nothing is under way, and {} of {} operations are complete", self.report.operations.size(),
                  graph.operations.size());
    const Event event = self.fleet.next_event(until);
    CLEAVE_ASSERT(event.kind != EventKind::timeout || (event.at >= until && self.recovery.next_deadline()),
                  "nothing is under way, and {} of {} operations are complete", self.report.operations.size(),
                  graph.operations.size());
    self.handle(event);
  }
  return self.end_report();
}

void Scheduler::begin_part(const model::StepGraph& graph, const OperationSet& part) { impl_->begin(graph, part); }

void Scheduler::advance_part() {
  impl_->redo_lost();
  impl_->dispatch_ready();
}

bool Scheduler::part_is_complete() const { return impl_->is_complete(); }
bool Scheduler::waits_for(TaskletId tasklet) const { return impl_->outstanding.flights().find(tasklet) != nullptr; }
Seconds Scheduler::part_deadline() const { return impl_->recovery.next_deadline().value_or(kForever); }

void Scheduler::take(const Event& event) {
  if (event.kind == EventKind::left) return impl_->lose(event);
  impl_->handle(event);
}

StepReport Scheduler::end_part() { return impl_->end_report(); }

std::int64_t Scheduler::abandon_part() {
  impl_->give_up();
  return std::exchange(impl_->kernels, 0);
}

StepReport Scheduler::abandon() {
  Impl& self = *impl_;
  self.give_up();
  while (self.kernels > 0) {
    const Event event = self.fleet.next_event(kForever);
    if (event.kind == EventKind::kernel_done) --self.kernels;
    if (event.kind == EventKind::left) self.weight_cache.forget(event.device);
    if (event.kind == EventKind::rejected) self.distrust(event.device);
  }
  return self.end_report();
}

namespace {

void add_counts(StepReport& report, const StepReport& other) {
  report.bytes_down += other.bytes_down;
  report.bytes_up += other.bytes_up;
  report.tasklets += other.tasklets;
  report.lost += other.lost;
  report.redone += other.redone;
  report.rejected += other.rejected;
  report.copies += other.copies;
  report.late += other.late;
  report.witnesses += other.witnesses;
  report.server_sums += other.server_sums;
  report.recovery += other.recovery;
  report.planning += other.planning;
}

}  // namespace

void add_abandoned(StepReport& report, const StepReport& abandoned) {
  add_counts(report, abandoned);
  report.time += abandoned.time;
  report.energy += abandoned.energy;
}

void add_part(StepReport& report, const StepReport& part) {
  add_counts(report, part);
  report.operations.insert(report.operations.end(), part.operations.begin(), part.operations.end());
  report.losses.insert(report.losses.end(), part.losses.begin(), part.losses.end());
}

}  // namespace cleave::sched
