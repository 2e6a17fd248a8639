// What becomes of blocks that are lost or late.
#include "recovery/recovery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "cleave/base/error.hpp"
#include "recovery/copies.hpp"
#include "stopwatch.hpp"

namespace cleave::sched {

namespace {

/// A block is asked of this many devices at once, at most.
constexpr std::size_t kMostCopies = 3;
/// While more than this share of an operation's blocks is missing, the prediction is wrong, not the devices.
constexpr double kStragglers = 1.0 / 3;
/// Between two deadlines of an operation, of the time that it has taken: one that takes many times as long as predicted
/// is looked at less often, lest deadlines are all that passes.
constexpr double kDeadlineShare = 1.0 / 256;

}  // namespace

Recovery::Recovery(const Fleet& fleet, const SchedulerOptions& options, StepProgress& progress,
                   const Outstanding& outstanding, Planning& planning, StepReport& report, Send send, Forget forget)
    : fleet_(fleet),
      options_(options),
      progress_(progress),
      outstanding_(outstanding),
      planning_(planning),
      report_(report),
      send_(std::move(send)),
      forget_(std::move(forget)) {}

void Recovery::begin(const model::StepGraph& graph) {
  graph_ = &graph;
  deadlines_.begin(graph.operations.size());
  losses_.clear();
}

std::vector<InFlight> Recovery::give_up(const std::vector<InFlight>& unanswered) {
  std::vector<InFlight> idle;
  std::set<DeviceId> failed;
  for (const InFlight& flight : unanswered) {
    const DeviceId device = flight.tasklet.piece.device;
    if (failed.insert(device).second) planning_.failed(device);
    if (outstanding_.flights().others(flight).empty()) idle.push_back(flight);
    forget_(flight);
  }
  return idle;
}

void Recovery::redo(const std::vector<InFlight>& idle, Seconds silent) {
  std::map<OpId, std::vector<plan::TaskletPlan>> pieces;
  std::map<OpId, std::set<DeviceId>> devices;
  std::map<OpId, int> losses_of;
  for (const InFlight& flight : idle) {
    const Tasklet& tasklet = flight.tasklet;
    OperationProgress& op = progress_.at(tasklet.op);
    op.undisturbed = std::max(op.undisturbed, flight.sent + flight.expected);
    pieces[tasklet.op].push_back(tasklet.piece);
    devices[tasklet.op].insert(tasklet.piece.device);
    losses_of[tasklet.op] = std::max(losses_of[tasklet.op], flight.losses + 1);
  }
  for (auto& [id, its_pieces] : pieces) {
    const model::Operation& operation = graph_->operation(id);
    OperationProgress& op = progress_.at(id);
    const auto blocks = std::ssize(its_pieces);
    op.hit = true;
    op.blocks -= blocks;
    const int loss = losses_.open(id, operation.name, fleet_.now(), silent, std::ssize(devices[id]), blocks);
    Seconds planning{0};
    const std::vector<plan::TaskletPlan> again = [&] {
      const Stopwatch watch(planning);
      return planning_.again(plan::work_of(operation, options_.wire), its_pieces, op.priority(), losses_of[id]);
    }();
    report_.planning += planning;
    losses_.planned(loss, planning);
    for (const plan::TaskletPlan& piece : again) {
      ++report_.redone;
      send_(id, piece, loss, {}, losses_of[id]);
    }
  }
}

Seconds Recovery::limit(Seconds expected) const {
  return deadline_.limit(expected + outstanding_.interface_time(options_.plan.server));
}

void Recovery::wait_for(OpId op, Seconds expected) {
  if (options_.copies) wait_until_late(op, limit(expected));
}

void Recovery::wait_until_late(OpId op, Seconds limit) {
  const Seconds taken = fleet_.now() - progress_.at(op).start;
  deadlines_.set(op, fleet_.now() + std::max(limit, taken * kDeadlineShare));
}

void Recovery::answered(const InFlight& flight, const Measured& measured) {
  const Tasklet& tasklet = flight.tasklet;
  // What gives way to others says nothing of how predictions hold.
  if (tasklet.piece.device != kServerDevice && tasklet.urgency == 0) {
    deadline_.observe(flight.expected, fleet_.now() - flight.sent);
  }
  if (fleet_.now() <= flight.sent + limit(flight.expected))
    punctual_[tasklet.piece.device] = {fleet_.now(), tasklet.priority()};
  OperationProgress& op = progress_.at(tasklet.op);
  if (flight.loss >= 0) {
    losses_.answered(flight.loss, fleet_.now(), measured.down);
  } else {
    op.undisturbed = std::max(op.undisturbed, fleet_.now());
  }
}

void Recovery::complete(OpId id) {
  deadlines_.erase(id);
  const OperationProgress& op = progress_.at(id);
  if (op.hit) report_.recovery += losses_.complete(id, op.start, fleet_.now(), op.undisturbed);
}

std::optional<Seconds> Recovery::next_deadline() const {
  return deadlines_.empty() ? std::nullopt : std::optional(deadlines_.next());
}

// When the devices that hold the `missing` blocks could begin with the last of them. One that answered others in good
// time worked on these, if they go ahead or alongside; what gives way to a block is no excuse for it.
Seconds Recovery::began(const OperationProgress& op, const std::vector<InFlight>& missing) const {
  Seconds since = op.start;
  for (const InFlight& flight : missing) {
    const Answer* const other = punctual_.find(flight.tasklet.piece.device);
    if (other != nullptr && !(op.priority() < other->priority)) since = std::max(since, other->at);
  }
  return since;
}

// For how long blocks that give way to others may still have to: until the critical path ends, and until the devices
// that hold the `missing` ones have done what goes ahead of them.
Seconds Recovery::gives_way_for(const OperationProgress& op, const std::vector<InFlight>& missing) {
  if (op.urgency == 0) return Seconds(0);
  const std::unordered_map<DeviceId, Seconds> taken = outstanding_.flights().taken_ahead_of(op.priority());
  Seconds longest{0};
  for (const InFlight& flight : missing) {
    const auto found = taken.find(flight.tasklet.piece.device);
    if (found != taken.end()) longest = std::max(longest, found->second);
  }
  return longest + planning_.background().critical_path_time();
}

void Recovery::pass_deadline() {
  const OpId id = deadlines_.operation();
  const OperationProgress& op = progress_.at(id);
  CLEAVE_ASSERT(op.blocks > 0, "operation {} has a deadline and nothing in flight", id.value);
  const std::vector<InFlight> missing = outstanding_.flights().of(id);
  // What was sent since shares the interface.
  const Seconds due = began(op, missing) + limit(op.expected);
  if (due > fleet_.now()) return deadlines_.set(id, due);
  const Seconds ahead = gives_way_for(op, missing);
  if (ahead.value() > 0) return wait_until_late(id, deadline_.limit(ahead + op.expected));
  const bool stragglers = static_cast<double>(op.blocks) <= std::max(1.0, kStragglers * static_cast<double>(op.sent));
  wait_for(id, stragglers ? copy_late(id, missing) : op.expected);
}

// Asks a second device for what is missing. Returns how long the operation's answers may take from now.
Seconds Recovery::copy_late(OpId id, const std::vector<InFlight>& missing) {
  Seconds wait = progress_.at(id).expected;
  const Flights& flights = outstanding_.flights();
  const plan::Work work = plan::work_of(graph_->operation(id), options_.wire);
  std::vector<plan::DeviceState> devices = planning_.usable_devices();
  std::set<DeviceId> late;
  for (const InFlight& flight : missing) late.insert(flight.tasklet.piece.device);
  for (const InFlight& flight : missing) {
    const std::size_t others = flights.others(flight).size();
    if (flight.tasklet.id.value != flight.block && others > 0) continue;  // once a block
    if (flight.tasklet.piece.device == kServerDevice || others + 1 >= kMostCopies) continue;
    // What is late by so much may well take as long again.
    const auto copy = place_copy(work, flight.tasklet.piece, devices, late, fleet_.now() - flight.sent, options_.plan);
    if (!copy) continue;
    ++report_.copies;
    wait = std::max(wait, copy->time);
    send_(id, *copy, flight.loss, flight.block, flight.losses);
  }
  return wait;
}

}  // namespace cleave::sched
