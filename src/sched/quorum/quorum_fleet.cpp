// Pairs: who is drawn, who witnesses, what waits.
#include "cleave/sched/quorum_fleet.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "cleave/base/error.hpp"
#include "quorum/witness_draw.hpp"
#include "quorum/witness_patience.hpp"

namespace cleave::sched {

namespace {

/// Ids of the fleet behind: a tasklet's own, and with it those of the devices that are asked about it one after
/// another, and of the server in their place.
constexpr std::int64_t kIdsOfOne = 4, kFirstAttempt = 1, kByServer = kDevicesAsked + 1;
constexpr Seconds kNever{std::numeric_limits<double>::infinity()};
/// Witnesses give way to all other work, unless something waits to overwrite their operands. They come in panels so
/// short that they do so at once.
constexpr std::int32_t kLeastUrgency = 1 << 20;
constexpr Seconds kLongestPanel{0.05};

TaskletId id_behind(TaskletId id, std::int64_t role = 0) { return TaskletId(id.value * kIdsOfOne + role); }

}  // namespace

QuorumOptions quorum_options(const StepSpec& spec) {
  QuorumOptions options{.fraction = spec.paired, .plan = spec.plan, .wire = spec.wire};
  std::memcpy(options.secret.data(), &spec.seed, sizeof spec.seed);
  return options;
}

QuorumTotals difference(const QuorumTotals& now, const QuorumTotals& before) {
  return {.witnesses = now.witnesses - before.witnesses,
          .by_server = now.by_server - before.by_server,
          .down = now.down - before.down,
          .up = now.up - before.up};
}

void add(StepReport& report, const QuorumTotals& totals) {
  report.witnesses += totals.witnesses;
  report.tasklets += totals.witnesses;
  report.bytes_down += totals.down;
  report.bytes_up += totals.up;
}

struct QuorumFleet::Draw : WitnessDraw {
  using WitnessDraw::WitnessDraw;
};

QuorumFleet::QuorumFleet(Fleet& behind, QuorumOptions options)
    : ForwardingFleet(behind), behind_(behind), options_(std::move(options)) {
  options_.plan.longest_panel = std::min(options_.plan.longest_panel, kLongestPanel);
  draw_ = std::make_unique<Draw>(behind_, options_);
}
QuorumFleet::~QuorumFleet() = default;

void QuorumFleet::begin_step(const model::StepGraph& graph) {
  for (const auto& [id, pair] : pairs_) behind_.forget(id_behind(TaskletId(id), pair.attempt));
  pairs_.clear();
  drawn_.clear();
  held_.clear();
  columns_.clear();
  busy_at_ = now();
  draw_->begin_step(graph);
  if (graph_ != &graph) {
    graph_ = &graph;
    readers_.assign(graph.operations.size(), {});
    last_.assign(graph.operations.size(), true);
    overwritten_.assign(graph.operations.size(), false);
    for (const model::Operation& op : graph.operations) {
      const auto overwrites = [&](const model::TensorView& read) {
        return std::ranges::any_of(op.out, [&](const model::TensorView& out) { return out.tensor == read.tensor; });
      };
      for (const OpId before : op.after) {
        last_[static_cast<std::size_t>(before.value)] = false;
        const model::Operation& reader = graph.operation(before);
        if (!model::runs_on_devices(reader.kind) || !std::ranges::any_of(reader.in, overwrites)) continue;
        readers_[static_cast<std::size_t>(op.id.value)].push_back(before);
        if (op.kind != model::OpKind::adamw) overwritten_[static_cast<std::size_t>(before.value)] = true;
      }
    }
  }
  open_.assign(graph.operations.size(), 0);
  retired_.assign(graph.operations.size(), false);
  behind_.begin_step(graph);
}

void QuorumFleet::submit(const Tasklet& tasklet) {
  Tasklet behind = tasklet;
  behind.id = id_behind(tasklet.id);
  if (tasklet.columns.valid()) behind.columns = id_behind(tasklet.columns);
  if (tasklet.is_run()) {  // steps in stages have pairs of their own
    if (tasklet.is_witness()) behind.witness_of = id_behind(tasklet.witness_of);
    return behind_.submit(behind);
  }
  if (tasklet.stays_on_device()) {
    columns_[tasklet.id.value] = {tasklet.piece.device, tasklet.piece.resident};
    draw_->columns_come(tasklet.piece.device, tasklet.piece.resident);
    return behind_.submit(behind);
  }
  if (tasklet.piece.device != kServerDevice && draw_->is_drawn(tasklet.id)) {
    behind.witnessed = true;
    drawn_.emplace(tasklet.id.value, tasklet);
  }
  if (must_wait(tasklet.op)) {
    want_readers(tasklet.op);
    held_.emplace_back(std::move(behind));
  } else {
    behind_.submit(behind);
  }
}

void QuorumFleet::start(const model::Operation& kernel) {
  if (must_wait(kernel.id)) {
    want_readers(kernel.id);
    held_.emplace_back(&kernel);
  } else {
    behind_.start(kernel);
  }
}

bool QuorumFleet::must_wait(OpId op) const {
  const auto at = static_cast<std::size_t>(op.value);
  if (last_[at]) return !pairs_.empty();
  return std::ranges::any_of(readers_[at],
                             [&](OpId reader) { return open_[static_cast<std::size_t>(reader.value)] > 0; });
}

// Who waits to overwrite the operands of pairs waits from now on.
void QuorumFleet::want_readers(OpId op) {
  const auto& readers = readers_[static_cast<std::size_t>(op.value)];
  for (auto& [id, pair] : pairs_) {
    if (std::ranges::find(readers, pair.tasklet.op) != readers.end()) pair.wanted = std::min(pair.wanted, now());
  }
}

// In order: of one operation, and of kernels among themselves.
void QuorumFleet::release_held() {
  std::deque<Work> still;
  for (Work& work : std::exchange(held_, {})) {
    const auto* const tasklet = std::get_if<Tasklet>(&work);
    if (must_wait(tasklet != nullptr ? tasklet->op : std::get<const model::Operation*>(work)->id)) {
      still.push_back(std::move(work));
    } else if (tasklet != nullptr) {
      behind_.submit(*tasklet);
    } else {
      behind_.start(*std::get<const model::Operation*>(work));
    }
  }
  held_ = std::move(still);
}

void QuorumFleet::retire(OpId op) {
  const auto at = static_cast<std::size_t>(op.value);
  if (open_[at] > 0) {
    retired_[at] = true;
  } else {
    behind_.retire(op);
  }
}

void QuorumFleet::forget(TaskletId tasklet) {
  drawn_.erase(tasklet.value);
  const TaskletId behind = id_behind(tasklet);
  const std::size_t dropped = std::erase_if(held_, [&](const Work& work) {
    const auto* const waits = std::get_if<Tasklet>(&work);
    return waits != nullptr && waits->id == behind;
  });
  if (dropped == 0) behind_.forget(behind);
}

void QuorumFleet::release(TaskletId columns, DeviceId device) {
  if (const auto found = columns_.find(columns.value); found != columns_.end()) {
    draw_->columns_go(found->second.first, found->second.second);
    columns_.erase(found);
  }
  behind_.release(id_behind(columns), device);
}

void QuorumFleet::open(const Tasklet& tasklet) {
  Pair& pair = pairs_.emplace(tasklet.id.value, Pair{.tasklet = tasklet, .wanted = kNever}).first->second;
  ++open_[static_cast<std::size_t>(tasklet.op.value)];
  ask(pair, kFirstAttempt);
}

void QuorumFleet::ask(Pair& pair, std::int64_t attempt) {
  Tasklet witness = pair.tasklet;
  witness.redone = witness.witnessed = false;
  witness.columns = {};
  witness.witness_of = id_behind(pair.tasklet.id);
  const auto drawn = attempt <= kDevicesAsked ? draw_->draw(pair.tasklet, attempt) : std::nullopt;
  pair.attempt = drawn ? attempt : kByServer;
  pair.asked = now();
  witness.id = id_behind(pair.tasklet.id, pair.attempt);
  if (drawn) {
    witness.piece = drawn->piece;
    if (!overwritten_[static_cast<std::size_t>(pair.tasklet.op.value)]) witness.urgency = kLeastUrgency;
    pair.takes = drawn->takes;
    ++totals_.witnesses;
    totals_.down += witness.piece.bytes_down;
    totals_.up += witness.piece.bytes_up;
  } else {
    witness.piece.device = kServerDevice;
    ++totals_.by_server;
  }
  pair.witness = witness.piece.device;
  behind_.submit(witness);
}

// Others are asked in place of a witness that is gone, late, or was found out; at last the server.
void QuorumFleet::ask_another(Pair& pair) {
  behind_.forget(id_behind(pair.tasklet.id, pair.attempt));
  draw_->give_back(pair.witness, pair.takes);
  ask(pair, pair.attempt + 1);
}

void QuorumFleet::close(std::int64_t tasklet) {
  const auto found = pairs_.find(tasklet);
  const OpId op = found->second.tasklet.op;
  if (found->second.attempt != kByServer) draw_->give_back(found->second.witness, found->second.takes);
  const auto at = static_cast<std::size_t>(op.value);
  pairs_.erase(found);
  if (--open_[at] == 0 && retired_[at]) {
    retired_[at] = false;
    behind_.retire(op);
  }
  release_held();
}

void QuorumFleet::replace_witness(DeviceId device) {
  for (auto& [id, pair] : pairs_) {
    if (pair.witness == device) ask_another(pair);
  }
}

// Somebody has waited for so long to overwrite its operands; or everybody, for the step to end.
Seconds QuorumFleet::late_at(const Pair& pair) const {
  if (!options_.timed || held_.empty() || pair.attempt == kByServer) return kNever;
  return late_after(std::max(pair.asked, std::min(pair.wanted, busy_at_)), pair.takes);
}

void QuorumFleet::replace_late() {
  for (auto& [id, pair] : pairs_) {
    if (late_at(pair) <= now()) ask_another(pair);
  }
}

void QuorumFleet::distrust(DeviceId device) {
  draw_->distrust(device);
  replace_witness(device);
}

std::optional<Event> QuorumFleet::take_witness(std::int64_t tasklet, std::int64_t attempt, Event event) {
  const auto found = pairs_.find(tasklet);
  if (found == pairs_.end() || found->second.attempt != attempt) return std::nullopt;  // late
  if (event.kind == EventKind::lost) {
    ask_another(found->second);
    return std::nullopt;
  }
  if (event.kind != EventKind::done && event.kind != EventKind::rejected) return std::nullopt;
  close(tasklet);
  if (event.kind == EventKind::done) return std::nullopt;
  event.tasklet = {};
  if (event.also.valid()) {
    Event other = event;
    other.device = std::exchange(event.also, {});
    other.also = {};
    distrust(other.device);
    pending_.push_back(other);
  }
  distrust(event.device);
  return event;
}

std::optional<Event> QuorumFleet::take(Event event) {
  if (event.kind == EventKind::left) replace_witness(event.device);
  if (!event.tasklet.valid()) return event;
  const std::int64_t tasklet = event.tasklet.value / kIdsOfOne, role = event.tasklet.value % kIdsOfOne;
  if (role != 0) return take_witness(tasklet, role, event);
  busy_at_ = now();
  event.tasklet = TaskletId(tasklet);
  if (event.kind == EventKind::rejected) {
    distrust(event.device);
    if (event.also.valid()) distrust(event.also);
  }
  if (const auto found = drawn_.find(tasklet); found != drawn_.end()) {
    const Tasklet first = found->second;
    drawn_.erase(found);
    if (event.kind == EventKind::done) open(first);
  }
  return event;
}

Event QuorumFleet::next_event(Seconds deadline) {
  for (;;) {
    if (!pending_.empty()) {
      const Event event = pending_.front();
      pending_.pop_front();
      return event;
    }
    Seconds until = deadline;
    if (options_.timed && !held_.empty()) {
      for (const auto& [id, pair] : pairs_) until = std::min(until, late_at(pair));
    }
    const Event event = behind_.next_event(until);
    if (event.kind == EventKind::timeout && until < deadline) {
      replace_late();
      continue;
    }
    if (const std::optional<Event> passed = take(event)) return *passed;
  }
}

}  // namespace cleave::sched
