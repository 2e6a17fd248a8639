// The scheduler's loop and its book of blocks.
#include "cleave/sched/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <unordered_map>

#include "background_scheduler.hpp"
#include "by_device.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/plan/bound.hpp"
#include "estimation/rate_estimates.hpp"
#include "flights.hpp"
#include "plan_cache.hpp"
#include "ready_set.hpp"
#include "recovery/breaker.hpp"
#include "recovery/copies.hpp"
#include "recovery/deadline.hpp"
#include "recovery/losses.hpp"
#include "residency/device_partitions.hpp"
#include "residency/weight_cache.hpp"
#include "stopwatch.hpp"
#include "urgency.hpp"

namespace cleave::sched {

namespace {

constexpr Seconds kForever{std::numeric_limits<double>::infinity()};
/// Turns of what comes when the critical path leaves a link idle begin here.
constexpr std::int64_t kWhenIdle = std::int64_t{1} << 40;
/// KeepGoing is asked again after at most this many events.
constexpr int kEventsBetweenQuestions = 64;
/// A block is asked of this many devices at once, at most.
constexpr std::size_t kMostCopies = 3;
/// While more than this share of an operation's blocks is missing, the prediction is wrong, not the devices.
constexpr double kStragglers = 1.0 / 3;

}  // namespace

struct Scheduler::Impl {
  struct Progress {
    std::int64_t waiting_for = 0;  // operations that must be complete first
    std::int64_t blocks = 0;       // in flight
    std::int64_t sent = 0;         // blocks sent at first
    std::int64_t turn = 0;         // in the order in which operations were begun
    int urgency = 0;
    bool deferrable = false;  // planned to end with the critical path
    Seconds start, planned, lower_bound;
    Seconds expected;     // longest time that any of its answers should take
    Seconds due;          // its deadline
    Seconds undisturbed;  // end, had nothing been lost
    bool hit = false;     // by a loss
    std::vector<OpId> releases;
  };
  using Ready = std::pmr::set<std::pair<int, std::int64_t>>;  // (urgency, operation)

  Fleet& fleet;
  SchedulerOptions options;
  std::int64_t next_tasklet = 0, next_turn = 0;
  std::size_t begun = 0;  // operations of this step
  std::set<DeviceId> distrusted;
  Breaker breaker;
  RateEstimates estimates;
  Deadline deadline;
  // Plans are valid for one roster, one set of devices left out and one set of rates.
  using Version = std::tuple<std::uint64_t, std::size_t, std::uint64_t, std::uint64_t>;
  std::optional<Version> planned_for;
  PlanCache plans;
  DevicePartitions partitions;
  BackgroundScheduler background;
  WeightCache weight_cache;

  const model::StepGraph* graph = nullptr;
  NodePool nodes;
  std::vector<Progress> progress;
  Ready ready{&nodes};
  ReadySet ready_set;
  std::vector<OpId> waiting_for_columns;
  Flights flights;
  ByDevice<Seconds> owed;     // predicted time of what a device has in hand, but for deferrable work
  Bytes bytes_out, bytes_in;  // of everything in flight
  std::pmr::set<std::pair<Seconds, OpId>> deadlines{&nodes};
  Losses losses;
  ByDevice<bool> contributors;
  StepReport report;

  Impl(Fleet& f, SchedulerOptions o)
      : fleet(f),
        options(std::move(o)),
        plans(options.plan),
        background(plans, partitions, options.plan),
        weight_cache([this](OpId family, const plan::TaskletPlan& piece) { return send_columns(family, piece); },
                     [this](TaskletId id, DeviceId device) { fleet.release(id, device); }) {}

  Progress& at(OpId op) { return progress[static_cast<std::size_t>(op.value)]; }

  // Devices that may get work, at the rates that they are estimated to have. Those that keep failing only when nobody
  // else is there.
  std::vector<plan::DeviceState> usable_devices() const { return usable(fleet.devices()); }
  std::vector<plan::DeviceState> usable(std::vector<plan::DeviceState> devices) const {
    std::erase_if(devices, [&](const plan::DeviceState& d) { return distrusted.contains(d.profile.id); });
    const auto left_out = [&](const plan::DeviceState& d) { return breaker.leaves_out(d.profile.id); };
    if (!std::all_of(devices.begin(), devices.end(), left_out)) std::erase_if(devices, left_out);
    if (options.learn) estimates.apply(devices);
    if (partitions.in_use()) leave_room_for_columns(devices);
    return devices;
  }

  void renew_plans() {
    breaker.advance(fleet.now());
    const Version version{fleet.roster(), distrusted.size(), breaker.version(), estimates.version()};
    if (version == planned_for) return;
    planned_for = version;
    for (const plan::DeviceState& device : fleet.devices()) estimates.know(device.profile);
    partitions.leave();
    weight_cache.leave();
    std::vector<plan::DeviceState> devices = usable_devices();
    plans.renew(devices);
    if (!options.asynchronous) return;  // one operation at a time has all devices
    partitions.renew(plans, options.plan);
    if (!partitions.in_use()) return;
    for (const plan::DeviceState& device : devices) {
      weight_cache.set_room(device.profile.id, plan::room_for_columns(device.profile.memory));
    }
    leave_room_for_columns(devices);
    plans.renew(std::move(devices));
  }

  // Columns come while nothing of the critical path does, until somebody waits for them.
  TaskletId send_columns(OpId family, const plan::TaskletPlan& piece) {
    Tasklet tasklet{.id = TaskletId(next_tasklet++), .op = family, .piece = piece, .turn = kWhenIdle + next_turn++};
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
        for (const plan::TaskletPlan& own : plan::with_own_columns(work, piece, plans.devices(), options.plan)) {
          submit(op.id, own);
        }
      }
    }
    if (partitions.of(op.id)) weight_cache.sent_group(op.rows);
  }

  // Time until the answer to a piece, which is put on its device's account. What is urgent goes ahead of deferrable
  // work.
  Seconds expected_of(const Progress& op, const plan::TaskletPlan& piece) {
    if (op.deferrable) return piece.time;
    Seconds& in_hand = owed[piece.device];
    in_hand += piece.time;
    return op.urgency == 0 ? in_hand : in_hand + background.in_hand(piece.device, fleet.now());
  }

  // Sends one piece of `op`: a block of its own, made again for `loss`, or another copy of `block`.
  // `kept`: the columns that it uses.
  void submit(OpId op, const plan::TaskletPlan& piece, int loss = -1, std::optional<std::int64_t> block = {},
              TaskletId kept = {}) {
    const Tasklet tasklet{.id = TaskletId(next_tasklet++),
                          .op = op,
                          .piece = piece,
                          .redone = loss >= 0 || block.has_value(),
                          .urgency = at(op).urgency,
                          .turn = at(op).turn,
                          .columns = kept};
    Progress& progress_of_op = at(op);
    const Seconds expected = std::max(expected_of(progress_of_op, piece), progress_of_op.planned);
    progress_of_op.expected = std::max(progress_of_op.expected, expected);
    if (!block) ++progress_of_op.blocks;
    ++report.tasklets;
    report.bytes_down += piece.bytes_down;
    report.bytes_up += piece.bytes_up;
    bytes_out += piece.bytes_down;
    bytes_in += piece.bytes_up;
    flights.add({.tasklet = tasklet,
                 .block = block.value_or(tasklet.id.value),
                 .sent = fleet.now(),
                 .expected = expected,
                 .loss = loss});
    fleet.submit(tasklet);
  }

  // Takes a tasklet out of the book; `forgotten`: its answer is no longer wanted.
  void settle(const InFlight& flight, bool forgotten) {
    const Tasklet tasklet = flight.tasklet;
    if (!at(tasklet.op).deferrable) {
      Seconds& in_hand = owed[tasklet.piece.device];
      in_hand = std::max(Seconds(0), in_hand - tasklet.piece.time);
    }
    bytes_out -= tasklet.piece.bytes_down;
    bytes_in -= tasklet.piece.bytes_up;
    flights.remove(tasklet.id);
    if (forgotten) fleet.forget(tasklet.id);
    if (tasklet.columns.valid()) weight_cache.done(tasklet.columns);
  }

  // Time that the server's interface takes for everything in flight.
  [[nodiscard]] Seconds interface_backlog() const {
    return std::max(bytes_out / options.plan.server.nic_out, bytes_in / options.plan.server.nic_in);
  }

  void set_deadline(OpId id, Seconds expected) {
    if (!options.copies) return;
    postpone(id, fleet.now() + deadline.limit(expected + interface_backlog()));
  }

  void postpone(OpId id, Seconds due) {
    deadlines.erase({at(id).due, id});
    at(id).due = due;
    deadlines.emplace(due, id);
  }

  [[nodiscard]] bool may_begin() const {
    return !ready.empty() && (options.asynchronous || begun == report.operations.size());
  }

  // Groups whose columns find no room yet are put off.
  [[nodiscard]] bool put_off(const model::Operation& op, std::size_t partition) {
    if (op.kind != model::OpKind::gemm) return false;
    weight_cache.want_for(op, partition, partitions.all(), *graph, plans.version());
    if (!weight_cache.find_no_room(op.rows.first)) return false;
    waiting_for_columns.push_back(op.id);
    return true;
  }

  void take_up_again() {
    std::erase_if(waiting_for_columns, [&](OpId id) {
      if (weight_cache.find_no_room(graph->operation(id).rows.first)) return false;
      return ready.emplace(at(id).urgency, id.value).second;
    });
  }

  void dispatch_ready() {
    take_up_again();
    if (!may_begin()) return;
    estimates.renew(false);
    ready_set.clear();
    while (may_begin()) {
      ++begun;
      const OpId id(ready.begin()->second);
      ready.erase(ready.begin());
      const model::Operation& op = graph->operation(id);
      at(id).start = fleet.now();
      at(id).turn = next_turn++;
      if (!model::runs_on_devices(op.kind)) {
        fleet.start(op);
        continue;
      }
      ready_set.add(id, plan::work_of(op, options.wire), options.asynchronous && at(id).urgency > 0);
    }
    if (ready_set.entries().empty()) return;
    {
      const Stopwatch watch(report.planning);
      renew_plans();
      ready_set.choose(partitions, plans, background, fleet.now());
    }
    for (const auto& [id, work, may_wait, plan, deferrable] : ready_set.entries()) {
      const model::Operation& op = graph->operation(id);
      at(id).deferrable = deferrable;
      const auto partition = partitions.in_use_by(id);
      if (partition && put_off(op, *partition)) continue;
      at(id).planned = plan->time;
      at(id).lower_bound = (partition ? *plan : plans.plan_for(work)).lower_bound;
      submit_all(op, work, *plan);
      at(id).sent = at(id).blocks;
      if (!plans.no_devices()) set_deadline(id, at(id).expected);
    }
  }

  void complete(OpId id) {
    Progress& op = at(id);
    const Seconds now = fleet.now();
    fleet.retire(id);
    deadlines.erase({op.due, id});
    if (const model::Operation& operation = graph->operation(id); on_critical_path(operation)) {
      background.done(plan::work_of(operation, options.wire), partitions.of(id));
    }
    report.operations.push_back({id, op.start, now, op.planned, op.lower_bound});
    if (op.hit) report.recovery += losses.complete(id, op.start, now, op.undisturbed);
    for (const OpId next : op.releases) {
      if (--at(next).waiting_for == 0) ready.emplace(at(next).urgency, next.value);
    }
  }

  // Takes tasklets that will not be answered out of the book; returns those whose block nobody else has in hand. At
  // once, before the fleet is asked anything: an answer that is already there must not be placed beside a new one.
  std::vector<InFlight> give_up(const std::vector<InFlight>& unanswered) {
    std::vector<InFlight> idle;
    std::set<DeviceId> failed;
    for (const InFlight& flight : unanswered) {
      const DeviceId device = flight.tasklet.piece.device;
      if (failed.insert(device).second) breaker.failed(device, fleet.now());
      if (flights.others(flight).empty()) idle.push_back(flight);
      settle(flight, true);
    }
    return idle;
  }

  // Plans blocks that were given up again over the devices that remain. `silent`: for how long the devices had been
  // silent before it was noticed.
  void redo(const std::vector<InFlight>& idle, Seconds silent) {
    std::map<OpId, std::vector<plan::TaskletPlan>> pieces;
    std::map<OpId, std::set<DeviceId>> devices;
    for (const InFlight& flight : idle) {
      const Tasklet& tasklet = flight.tasklet;
      Progress& op = at(tasklet.op);
      op.undisturbed = std::max(op.undisturbed, flight.sent + flight.expected);
      pieces[tasklet.op].push_back(tasklet.piece);
      devices[tasklet.op].insert(tasklet.piece.device);
    }
    for (auto& [op, its_pieces] : pieces) {
      const auto blocks = std::ssize(its_pieces);
      at(op).hit = true;
      at(op).blocks -= blocks;
      const int loss = losses.open(graph->operation(op), fleet.now(), silent, std::ssize(devices[op]), blocks);
      Seconds planning{0};
      const std::vector<plan::TaskletPlan> again = [&] {
        const Stopwatch watch(planning);
        return plan_again(op, its_pieces);
      }();
      report.planning += planning;
      losses.planned(loss, planning);
      for (const plan::TaskletPlan& piece : again) {
        ++report.redone;
        submit(op, piece, loss);
      }
    }
  }

  std::vector<plan::TaskletPlan> plan_again(OpId op, const std::vector<plan::TaskletPlan>& pieces) {
    const std::vector<plan::DeviceState> devices = usable(fleet.devices_ahead_of({at(op).urgency, at(op).turn}));
    if (!devices.empty()) {
      try {
        return plan::replan(plan::work_of(graph->operation(op), options.wire), pieces, devices, options.plan);
      } catch (const InputError&) {
        // None of those that are left can hold the smallest block: the server takes it, so that training goes on.
      }
    }
    std::vector<plan::TaskletPlan> own = pieces;
    for (plan::TaskletPlan& piece : own) {
      piece.device = kServerDevice;
      piece.columns_kept = false;
      piece.bytes_down = piece.bytes_up = piece.resident = Bytes(0);
    }
    return own;
  }

  // For how long blocks that give way to others may still have to: until the critical path ends, and until the devices
  // that hold the `missing` ones have done what goes ahead of them.
  [[nodiscard]] Seconds gives_way_for(const Progress& op, const std::vector<InFlight>& missing) {
    if (op.urgency == 0) return Seconds(0);
    const std::unordered_map<DeviceId, Seconds> taken = flights.taken_ahead_of({op.urgency, op.turn});
    Seconds longest{0};
    for (const InFlight& flight : missing) {
      const auto found = taken.find(flight.tasklet.piece.device);
      if (found != taken.end()) longest = std::max(longest, found->second);
    }
    return longest + background.critical_path_time();
  }

  // The operation's deadline has passed: its last blocks are asked of other devices too.
  void ask_others(OpId id) {
    Progress& op = at(id);
    const std::vector<InFlight> missing = flights.of(id);
    Seconds wait = op.expected;
    // What was sent since shares the interface.
    const Seconds due = op.start + deadline.limit(op.expected + interface_backlog());
    if (due > fleet.now()) return postpone(id, due);
    const Seconds ahead = gives_way_for(op, missing);
    if (ahead.value() > 0) return postpone(id, fleet.now() + deadline.limit(ahead + op.expected));
    if (static_cast<double>(op.blocks) <= std::max(1.0, kStragglers * static_cast<double>(op.sent))) {
      const plan::Work work = plan::work_of(graph->operation(id), options.wire);
      std::vector<plan::DeviceState> devices = usable_devices();
      std::set<DeviceId> late;
      for (const InFlight& flight : missing) late.insert(flight.tasklet.piece.device);
      for (const InFlight& flight : missing) {
        if (flight.tasklet.id.value != flight.block && !flights.others(flight).empty()) continue;  // once a block
        if (flight.tasklet.piece.device == kServerDevice || flights.others(flight).size() + 1 >= kMostCopies) continue;
        // What is late by so much may well take as long again.
        const auto copy =
            place_copy(work, flight.tasklet.piece, devices, late, fleet.now() - flight.sent, options.plan);
        if (!copy) continue;
        ++report.copies;
        wait = std::max(wait, copy->time);
        submit(id, *copy, flight.loss, flight.block);
      }
    }
    set_deadline(id, wait);
  }

  void observe(const Event& event) {
    if (options.learn) estimates.observe(event.device, event.measured);
  }

  void take_answer(const Event& event) {
    const InFlight* const found = flights.find(event.tasklet);
    if (found == nullptr) return;  // a late copy
    const InFlight flight = *found;
    const OpId id = flight.tasklet.op;
    Progress& op = at(id);
    if (event.device != kServerDevice) {
      contributors[event.device] = true;
      breaker.answered(event.device);
      observe(event);
      // What gives way to others says nothing of how predictions hold.
      if (flight.tasklet.urgency == 0) deadline.observe(flight.expected, fleet.now() - flight.sent);
    }
    if (flight.loss >= 0) {
      losses.answered(flight.loss, fleet.now(), event.measured.down);
    } else {
      op.undisturbed = std::max(op.undisturbed, fleet.now());
    }
    for (const TaskletId other : flights.others(flight)) settle(*flights.find(other), true);
    settle(flight, false);
    if (--op.blocks == 0) complete(id);
  }

  void distrust(DeviceId device) {
    distrusted.insert(device);
    weight_cache.forget(device);
  }

  // A device is gone, and perhaps others at the same moment: what they all held is planned again at once.
  std::optional<Event> take_leaving(const Event& first) {
    std::vector<InFlight> idle;
    Seconds silent{0};
    for (Event event = first;; event = fleet.next_event(fleet.now())) {
      if (event.kind != EventKind::left) {
        if (event.kind == EventKind::rejected) distrust(event.device);
        redo(idle, silent);
        return event.kind == EventKind::timeout ? std::nullopt : std::optional(event);
      }
      weight_cache.forget(event.device);
      const std::vector<InFlight> held = flights.held_by(event.device);
      report.lost += std::ssize(held);
      silent = std::max(silent, event.unnoticed);
      for (const InFlight& flight : give_up(held)) idle.push_back(flight);
    }
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::done: take_answer(event); return;
      case EventKind::late: observe(event); return;
      case EventKind::kernel_done: complete(event.op); return;
      case EventKind::left: {
        if (const std::optional<Event> next = take_leaving(event)) handle(*next);
        return;
      }
      case EventKind::lost: {
        const InFlight* const found = flights.find(event.tasklet);
        if (found == nullptr) return;
        ++report.lost;
        if (found->tasklet.columns.valid()) weight_cache.doubt(found->tasklet.columns);
        redo(give_up({*found}), Seconds(0));
        return;
      }
      case EventKind::rejected: {
        ++report.rejected;
        distrust(event.device);
        redo(give_up(flights.held_by(event.device)), Seconds(0));
        return;
      }
      case EventKind::timeout: {
        const OpId id = deadlines.begin()->second;
        CLEAVE_ASSERT(at(id).blocks > 0, "operation {} has a deadline and nothing in flight", id.value);
        ask_others(id);
        return;
      }
      case EventKind::joined: return;
    }
  }

  void begin(const model::StepGraph& step) {
    weight_cache.clear();
    graph = &step;
    report = StepReport{};
    report.operations.reserve(step.operations.size());
    contributors.clear();
    begun = 0;
    flights.clear();
    owed.clear();
    bytes_out = bytes_in = Bytes(0);
    deadlines.clear();
    losses.clear();
    ready.clear();
    waiting_for_columns.clear();
    estimates.renew(true);
    progress.resize(step.operations.size());
    for (Progress& op : progress) {
      std::vector<OpId> releases = std::move(op.releases);  // whose memory is kept
      releases.clear();
      op = Progress{};
      op.releases = std::move(releases);
    }
    for (const model::Operation& op : step.operations) {
      at(op.id).waiting_for = static_cast<std::int64_t>(op.after.size());
      for (const OpId before : op.after) at(before).releases.push_back(op.id);
    }
    rank_by_urgency();
    for (const model::Operation& op : step.operations) {
      if (op.after.empty()) ready.emplace(at(op.id).urgency, op.id.value);
    }
    fleet.begin_step(step);
  }

  void rank_by_urgency() {
    background.begin();
    const std::vector<int> urgency = urgencies(*graph);
    for (const model::Operation& op : graph->operations)
      at(op.id).urgency = urgency[static_cast<std::size_t>(op.id.value)];
    if (partitions.begin(*graph, options.wire, urgency)) planned_for.reset();
    for (const model::Operation& op : graph->operations | std::views::reverse) {
      if (on_critical_path(op)) background.expect(plan::work_of(op, options.wire), partitions.of(op.id));
    }
  }
  [[nodiscard]] bool on_critical_path(const model::Operation& op) {
    return at(op.id).urgency == 0 && model::runs_on_devices(op.kind);
  }
};

Scheduler::Scheduler(Fleet& fleet, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(fleet, std::move(options))) {}
Scheduler::~Scheduler() = default;

std::vector<DeviceId> Scheduler::distrusted() const { return {impl_->distrusted.begin(), impl_->distrusted.end()}; }
bool Scheduler::leaves_out(DeviceId device) const { return impl_->breaker.leaves_out(device); }

StepReport Scheduler::run(const model::StepGraph& graph, const KeepGoing& keep_going) {
  Impl& self = *impl_;
  const Seconds start = self.fleet.now();
  const std::vector<Usage> before(self.fleet.usage().begin(), self.fleet.usage().end());
  self.begin(graph);
  for (int events = 0; self.report.operations.size() < graph.operations.size(); ++events) {
    if (keep_going && events % kEventsBetweenQuestions == 0 && !keep_going()) throw Interrupted{};
    self.dispatch_ready();
    const Seconds until = self.deadlines.empty() ? kForever : self.deadlines.begin()->first;
    const Event event = self.fleet.next_event(until);
    CLEAVE_ASSERT(event.kind != EventKind::timeout || event.at >= until,
                  "nothing is under way, and {} of {} operations are complete", self.report.operations.size(),
                  graph.operations.size());
    self.handle(event);
  }
  self.report.time = self.fleet.now() - start;
  self.report.losses = self.losses.all();
  self.report.devices = self.contributors.count(true);
  const std::span<const Usage> after = self.fleet.usage();
  for (const plan::DeviceState& device : self.fleet.devices()) {
    const auto i = static_cast<std::size_t>(device.profile.id.value);
    Usage used = after[i];
    used.down -= before[i].down;
    used.compute -= before[i].compute;
    used.up -= before[i].up;
    self.report.energy += energy_of(device.profile, used, self.report.time);
  }
  return self.report;
}

}  // namespace cleave::sched
