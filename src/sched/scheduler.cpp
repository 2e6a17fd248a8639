// The scheduler's loop and its book of blocks.
#include "cleave/sched/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "cleave/base/error.hpp"
#include "cleave/plan/bound.hpp"
#include "share.hpp"
#include "work_hash.hpp"

namespace cleave::sched {

namespace {

constexpr Seconds kForever{std::numeric_limits<double>::infinity()};
/// KeepGoing is asked again after at most this many events.
constexpr int kEventsBetweenQuestions = 64;
/// More operations than this that become ready together are not planned jointly.
constexpr std::size_t kMostTogether = 8;

/// Critical path first: weight gradients and updates wait until nothing else is ready.
int urgency(const model::Operation& op) {
  switch (op.phase) {
    case model::Phase::forward:
    case model::Phase::input_gradient: return 0;
    case model::Phase::weight_gradient: return 1;
    case model::Phase::update: return 2;
  }
  return 2;
}

class Stopwatch {
 public:
  explicit Stopwatch(Seconds& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ += Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count()); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Seconds& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

struct Scheduler::Impl {
  struct Progress {
    std::int64_t waiting_for = 0;  // operations that must be complete first
    std::int64_t blocks = 0;       // in flight
    Seconds start, planned, lower_bound;
    bool hit = false;  // by a loss
    std::vector<OpId> releases;
  };
  using Ready = std::set<std::pair<int, std::int64_t>>;  // (urgency, operation)

  Fleet& fleet;
  SchedulerOptions options;
  std::int64_t next_tasklet = 0;
  std::set<DeviceId> distrusted;
  // Plans for idle devices, valid for one roster.
  std::uint64_t planned_roster = 0;
  std::unordered_map<plan::Work, plan::OperationPlan, WorkHash> plans;
  std::vector<plan::DeviceState> idle_devices;
  // Plans for operations that become ready together, each on its own part of the fleet; none where that gains nothing.
  std::unordered_map<std::vector<plan::Work>, std::vector<plan::OperationPlan>, WorksHash> shared_plans;

  const model::StepGraph* graph = nullptr;
  std::vector<Progress> progress;
  Ready ready;
  std::unordered_map<std::int64_t, Tasklet> in_flight;
  std::set<DeviceId> contributors;
  StepReport report;

  Impl(Fleet& f, SchedulerOptions o) : fleet(f), options(std::move(o)) {}

  Progress& at(OpId op) { return progress[static_cast<std::size_t>(op.value)]; }

  std::vector<plan::DeviceState> trusted_devices() const {
    std::vector<plan::DeviceState> devices = fleet.devices();
    std::erase_if(devices, [&](const plan::DeviceState& d) { return distrusted.contains(d.profile.id); });
    return devices;
  }

  const plan::OperationPlan& plan_for(const plan::Work& work) {
    const Stopwatch watch(report.planning);
    const std::uint64_t roster = fleet.roster() + (static_cast<std::uint64_t>(distrusted.size()) << 48);
    if (roster != planned_roster) {
      planned_roster = roster;
      plans.clear();
      shared_plans.clear();
      idle_devices = trusted_devices();
      for (plan::DeviceState& device : idle_devices) {
        device.down_busy = device.compute_busy = device.up_busy = Seconds(0);
      }
    }
    const auto found = plans.find(work);
    if (found != plans.end()) return found->second;
    return plans
        .emplace(work,
                 idle_devices.empty() ? server_plan(work) : plan::plan_operation(work, idle_devices, options.plan))
        .first->second;
  }

  // The whole work as one block that the server computes itself.
  static plan::OperationPlan server_plan(const plan::Work& work) {
    plan::TaskletPlan piece;
    piece.device = kServerDevice;
    piece.box = {0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
    piece.pairs = {0, work.attention.pairs()};
    plan::OperationPlan plan;
    plan.tasklets.push_back(piece);
    return plan;
  }

  void submit(OpId op, const plan::TaskletPlan& piece, bool again = false) {
    const Tasklet tasklet{.id = TaskletId(next_tasklet++), .op = op, .piece = piece, .redone = again};
    ++at(op).blocks;
    ++report.tasklets;
    report.bytes_down += piece.bytes_down;
    report.bytes_up += piece.bytes_up;
    in_flight.emplace(tasklet.id.value, tasklet);
    fleet.submit(tasklet);
  }

  // Plans for the idle fleet of operations that are ready together; planned jointly where that is quicker.
  std::vector<const plan::OperationPlan*> plans_for(std::span<const plan::Work> works) {
    std::vector<const plan::OperationPlan*> whole;
    for (const plan::Work& work : works) whole.push_back(&plan_for(work));
    if (works.size() < 2 || works.size() > kMostTogether || options.plan.partition != plan::Partition::automatic ||
        idle_devices.empty()) {
      return whole;
    }
    const Stopwatch watch(report.planning);
    const auto [found, is_new] = shared_plans.try_emplace({works.begin(), works.end()});
    if (is_new) found->second = share_fleet(works, whole, idle_devices, options.plan);
    if (found->second.empty()) return whole;
    std::vector<const plan::OperationPlan*> shared;
    for (const plan::OperationPlan& plan : found->second) shared.push_back(&plan);
    return shared;
  }

  void dispatch_ready() {
    std::vector<OpId> on_devices;
    std::vector<plan::Work> works;
    while (!ready.empty()) {
      const OpId id(ready.begin()->second);
      ready.erase(ready.begin());
      const model::Operation& op = graph->operation(id);
      at(id).start = fleet.now();
      if (!model::runs_on_devices(op.kind)) {
        fleet.start(op);
        continue;
      }
      on_devices.push_back(id);
      works.push_back(plan::work_of(op, options.wire));
    }
    const std::vector<const plan::OperationPlan*> chosen = plans_for(works);
    for (std::size_t i = 0; i < on_devices.size(); ++i) {
      at(on_devices[i]).planned = chosen[i]->time;
      at(on_devices[i]).lower_bound = plan_for(works[i]).lower_bound;
      for (const plan::TaskletPlan& piece : chosen[i]->tasklets) submit(on_devices[i], piece);
    }
  }

  void complete(OpId id) {
    Progress& op = at(id);
    const Seconds now = fleet.now();
    fleet.retire(id);
    report.operations.push_back({id, op.start, now, op.planned, op.lower_bound});
    if (op.hit) report.recovery += std::max(Seconds(0), now - op.start - op.planned);
    for (const OpId next : op.releases) {
      if (--at(next).waiting_for == 0) ready.emplace(urgency(graph->operation(next)), next.value);
    }
  }

  // Turns the blocks of `tasklets` back to idle and plans them again over the devices that remain.
  void redo(const std::vector<Tasklet>& tasklets) {
    std::map<OpId, std::vector<plan::TaskletPlan>> lost;
    for (const Tasklet& tasklet : tasklets) {
      fleet.forget(tasklet.id);
      in_flight.erase(tasklet.id.value);
      lost[tasklet.op].push_back(tasklet.piece);
    }
    for (auto& [op, pieces] : lost) {
      at(op).hit = true;
      at(op).blocks -= static_cast<std::int64_t>(pieces.size());
      for (const plan::TaskletPlan& piece : plan_again(op, pieces)) {
        ++report.redone;
        submit(op, piece, true);
      }
    }
  }

  std::vector<plan::TaskletPlan> plan_again(OpId op, const std::vector<plan::TaskletPlan>& pieces) {
    const Stopwatch watch(report.planning);
    const std::vector<plan::DeviceState> devices = trusted_devices();
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
      piece.bytes_down = piece.bytes_up = piece.resident = Bytes(0);
    }
    return own;
  }

  std::vector<Tasklet> held_by(DeviceId device) const {
    std::vector<Tasklet> held;
    for (const auto& [id, tasklet] : in_flight) {
      if (tasklet.piece.device == device) held.push_back(tasklet);
    }
    std::sort(held.begin(), held.end(), [](const Tasklet& a, const Tasklet& b) { return a.id < b.id; });
    return held;
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::done: {
        const auto found = in_flight.find(event.tasklet.value);
        if (found == in_flight.end()) return;  // a late copy
        const OpId op = found->second.op;
        if (event.device != kServerDevice) contributors.insert(event.device);
        in_flight.erase(found);
        if (--at(op).blocks == 0) complete(op);
        return;
      }
      case EventKind::kernel_done: complete(event.op); return;
      case EventKind::left: {
        const std::vector<Tasklet> held = held_by(event.device);
        report.lost += static_cast<std::int64_t>(held.size());
        redo(held);
        return;
      }
      case EventKind::lost: {
        const auto found = in_flight.find(event.tasklet.value);
        if (found == in_flight.end()) return;
        ++report.lost;
        redo({found->second});
        return;
      }
      case EventKind::rejected: {
        ++report.rejected;
        distrusted.insert(event.device);
        redo(held_by(event.device));
        return;
      }
      case EventKind::joined:
      case EventKind::timeout: return;
    }
  }

  void begin(const model::StepGraph& step) {
    graph = &step;
    report = StepReport{};
    contributors.clear();
    in_flight.clear();
    ready.clear();
    progress.assign(step.operations.size(), Progress{});
    for (const model::Operation& op : step.operations) {
      at(op.id).waiting_for = static_cast<std::int64_t>(op.after.size());
      for (const OpId before : op.after) at(before).releases.push_back(op.id);
      if (op.after.empty()) ready.emplace(urgency(op), op.id.value);
    }
    fleet.begin_step(step);
  }
};

Scheduler::Scheduler(Fleet& fleet, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(fleet, std::move(options))) {}
Scheduler::~Scheduler() = default;

std::vector<DeviceId> Scheduler::distrusted() const { return {impl_->distrusted.begin(), impl_->distrusted.end()}; }

StepReport Scheduler::run(const model::StepGraph& graph, const KeepGoing& keep_going) {
  Impl& self = *impl_;
  const Seconds start = self.fleet.now();
  const std::vector<Usage> before(self.fleet.usage().begin(), self.fleet.usage().end());
  self.begin(graph);
  for (int events = 0; self.report.operations.size() < graph.operations.size(); ++events) {
    if (keep_going && events % kEventsBetweenQuestions == 0 && !keep_going()) throw Interrupted{};
    self.dispatch_ready();
    const Event event = self.fleet.next_event(kForever);
    CLEAVE_ASSERT(event.kind != EventKind::timeout, "nothing is under way, and {} of {} operations are complete",
                  self.report.operations.size(), graph.operations.size());
    self.handle(event);
  }
  self.report.time = self.fleet.now() - start;
  self.report.devices = static_cast<std::int64_t>(self.contributors.size());
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

Joules energy_of(const fleet::DeviceProfile& device, const Usage& usage, Seconds elapsed) {
  return device.power_compute * usage.compute + device.power_radio * (usage.down + usage.up) +
         device.power_idle * elapsed;
}

}  // namespace cleave::sched
