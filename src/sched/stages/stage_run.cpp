// A step in stages: its beginning, its events, its end.
#include "stages/stage_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "cleave/base/error.hpp"
#include "stages/stage_planner.hpp"
#include "stopwatch.hpp"

namespace cleave::sched::stages {

namespace {

constexpr std::int64_t kStageEventsBetweenQuestions = 1024;
// After twice the forecast of the step and this time without any event, devices that owe an answer count as silent.
constexpr Seconds kSilence{60};
constexpr Seconds kHeeds{1};       // time between questions of keep_going() while nothing happens
constexpr double kOfMemory = 0.9;  // share of the fleet's memory that stages may take: the rest is in pieces too small

}  // namespace

std::vector<fleet::DeviceProfile> profiles_of(const Fleet& fleet) {
  std::vector<fleet::DeviceProfile> profiles;
  for (const plan::DeviceState& state : fleet.devices()) profiles.push_back(state.profile);
  return profiles;
}

std::vector<plan::DeviceState> StageRun::believed() const {
  std::vector<plan::DeviceState> states = fleet.devices();
  rates.apply(states);
  return states;
}

std::vector<fleet::DeviceProfile> StageRun::found_profiles() const {
  std::vector<fleet::DeviceProfile> profiles;
  for (plan::DeviceState& state : believed()) profiles.push_back(std::move(state.profile));
  return profiles;
}

std::vector<fleet::DeviceProfile> StageRun::trusted() const {
  std::vector<fleet::DeviceProfile> profiles = found_profiles();
  std::erase_if(profiles, [&](const fleet::DeviceProfile& profile) {
    return distrusted.contains(profile.id) || late_devices.is_left_out(profile.id);
  });
  return profiles;
}

StageRun::StageRun(Fleet& of, const model::StepGraph& step, plan::StagePlan layout, StageSchedulerOptions settings)
    : fleet(of),
      graph(step),
      options(std::move(settings)),
      whole(plan::stage_work_of(step, options.wire)),
      work(whole),
      plan(std::move(layout)),
      batch(work.batch) {
  if (options.rehearsal) options.watch = false;
  for (const model::Operation& operation : graph.operations) {
    if (operation.kind == model::OpKind::gemm && !op.valid()) op = operation.id;
  }
  options.tiles.wire = options.wire;
  options.tiles.plan.server = options.stages.server;
  take_plan();
}

void StageRun::take_plan() {
  planned_for = fleet.roster();
  work = plan::with_head_parts(whole, plan.head_parts);
  head = static_cast<std::int32_t>(std::ssize(plan.stages) - plan.head_parts);
  server.emplace(fleet, graph);
  chunks = (work.seq + plan.chunk - 1) / plan.chunk;
  lowest = static_cast<std::int32_t>(plan.stages.size());
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    if (plan::StageCost(work, plan.stages[s].first, plan.stages[s].end, plan.chunk).backward())
      lowest = static_cast<std::int32_t>(s);
  }
  const Visitor expect = [&](TensorId tensor) { server->expect_source(tensor); };
  for (const plan::Stage& of_plan : plan.stages) for_sources(of_plan, expect, expect);
}

Visit& StageRun::visit(std::vector<Visit>& visits, std::int32_t s, std::int64_t q) {
  return visits[static_cast<std::size_t>(s * batch + q)];
}

void StageRun::for_sources(const plan::Stage& of_plan, const Visitor& of_owners, const Visitor& of_norms) const {
  std::set<std::int64_t> seen;
  for (std::int64_t i = of_plan.first; i < of_plan.end; ++i) {
    const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
    for (const model::SlicedTensor& tensor : piece.tensors) {
      if (tensor.trained && seen.insert(tensor.tensor.value).second) of_owners(tensor.tensor);
    }
    for (const TensorId norm : piece.norms) of_norms(norm);
  }
}

std::optional<plan::StagePlan> StageRun::find_plan() {
  if (!options.rehearse) return plan::find_stages(whole, trusted(), options.stages);
  std::optional<StagePlanner::Found> found =
      StagePlanner(graph, options).quickest(trusted(), StagePlanner::Effort::after(plan));
  if (!found) return std::nullopt;
  return std::move(found->plan);
}

std::optional<plan::StagePlan> StageRun::plan_for_those_there() {
  if (late_devices.leaves_any_out()) {
    if (std::optional<plan::StagePlan> found = find_plan()) return found;
    late_devices.leave_none_out();
  }
  if (std::optional<plan::StagePlan> found = find_plan()) return found;
  if (!planned_with.empty() && can_pass()) return std::nullopt;
  return plan::plan_stages(whole, trusted(), options.stages);  // says why there is none
}

bool StageRun::can_pass() const {
  if (options.quorum) return false;  // second devices are drawn among replicas of the plan
  Bytes largest, there, most;
  std::vector<Bytes> of_round(static_cast<std::size_t>(plan.rounds()));
  for (const plan::Stage& of_plan : plan.stages) {
    if (of_plan.tiles) continue;
    const Bytes least = plan::StageCost(work, of_plan.first, of_plan.end, plan.chunk).least_replica();
    of_round[static_cast<std::size_t>(of_plan.round)] += least;
    largest = std::max(largest, least);
  }
  const Bytes all = *std::ranges::max_element(of_round);
  for (const fleet::DeviceProfile& profile : trusted()) {
    there += profile.memory;
    most = std::max(most, profile.memory);
  }
  return largest <= most && static_cast<double>(all.value()) <= kOfMemory * static_cast<double>(there.value());
}

void StageRun::renew_plan() {
  for (const fleet::DeviceProfile& declared : profiles_of(fleet)) rates.know(declared);
  rates.renew(true);
  const bool others = late_devices.leave_out();
  if (fleet.roster() != planned_for || !planned_all_trusted || rates.version() != rates_planned || others) {
    const Stopwatch watch(report.planning);
    rates_planned = rates.version();
    std::optional<plan::StagePlan> found = plan_for_those_there();
    planned_all_trusted = true;
    outgrown = !found;
    if (found) {
      plan = *std::move(found);
      planned_with = trusted();
      take_plan();
    } else {
      planned_for = fleet.roster();
    }
  }
  if (planned_with.empty()) planned_with = trusted();
}

void StageRun::clear_books() {
  losses.clear();
  progress.begin();
  relief.begin();
  recovery.begin();
  tally = {std::vector<std::int64_t>(plan.stages.size()), std::vector<std::int64_t>(plan.stages.size()),
           std::vector<double>(plan.stages.size())};
  purposes.clear();
  shared_sums.clear();
  ahead.clear();
  loads.clear();
  stage.clear();
  owner.clear();
  phase = 0;
  through = 0;
  tiles.clear();
  const auto visits = plan.stages.size() * static_cast<std::size_t>(batch);
  forward.assign(visits, Visit{});
  backward.assign(visits, Visit{});
  head_join.begin();
  device.clear();
  // Nothing that the server needs as a stand-in travels, and it has memory for everything.
  of_server = DeviceBook{.present = true,
                         .uplink = kAtHand,
                         .downlink = kAtHand,
                         .compute = options.stages.server.compute.value(),
                         .latency = Seconds(0),
                         .free = Bytes(0),
                         .profile = {}};
  at_begin = trusted();
  for (const fleet::DeviceProfile& profile : at_begin) open_book(profile);
  if (outgrown) device.resize(std::max(device.size(), static_cast<std::size_t>(planned_with.back().id.value) + 1));
  under_way = 0;
  last_done = began;
  witnesses.begin();
  watchers.begin();
  asks_to_go_on = false;
  late_devices.begin();
}

void StageRun::begin() {
  report = StepReport{};
  began = fleet.now();  // before what may throw: an abandoned step counts from here
  const std::span<const Usage> used = fleet.usage();
  used_before.assign(used.begin(), used.end());
  renew_plan();
  began = fleet.now();
  clear_books();
  fleet.begin_step(graph);
  fleet.begin_stages(plan);
  open_stages();
  load_replicas();
  load_owners();
  server->begin();
  server->hold_updates();
  if (outgrown) recovery.fill_gaps();
}

bool StageRun::is_stuck() {
  // Second devices that cannot be asked while work lacks room keep nobody waiting.
  if (purposes.size() > 0 || server->under_way() > 0 || head_join.is_busy() || tiles.under_way() ||
      recovery.is_pending())
    return false;
  return recovery.has_unassigned() || stage_without_replica() != kNobody;
}

std::int32_t StageRun::stage_without_replica() {
  for (std::int32_t s = 0; s <= top(); ++s)
    if (recovery.lacks_replica(s)) return s;
  return kNobody;
}

Seconds StageRun::standstill(bool stuck) const {
  if (options.rehearsal) return Seconds(std::numeric_limits<double>::infinity());
  if (options.may_give_up && stuck)
    return last_event + kHeeds + (options.forecasts_hold ? plan.forecast : last_event - began);
  return std::max(last_event + kSilence + plan.forecast * 2, patient_until);
}

bool StageRun::still_carries() {
  const fleet::ServerProfile& server_links = options.stages.server;
  double port = 0, longest = 0, messages = 0;
  for (const plan::DeviceState& state : believed()) {
    const double down = state.down_busy.value(), up = state.up_busy.value();
    port += down * (state.profile.downlink.value() / server_links.nic_out.value()) +
            up * (state.profile.uplink.value() / server_links.nic_in.value());
    longest = std::max(longest, down + state.compute_busy.value() + up);
    messages = std::max(messages, 2 * (state.profile.latency + state.profile.jitter).value());
  }
  const Seconds until = last_event + kSilence + Seconds(port + longest + messages) * 2;
  if (until <= fleet.now()) return false;
  patient_until = until;
  return true;
}

void StageRun::run(const KeepGoing& keep_going) {
  begin();
  last_event = patient_until = fleet.now();
  for (std::int64_t events = 0; !complete(); ++events) {
    const bool asked = std::exchange(asks_to_go_on, false), stuck = is_stuck();
    if (keep_going && (events % kStageEventsBetweenQuestions == 0 || asked || stuck) && !keep_going())
      throw Interrupted{};
    if (asked && may_update()) server->release_updates();
    const Seconds silent = standstill(stuck), late = witnesses.late_at();
    // Devices that leave at one moment are replaced together.
    Seconds until = recovery.is_pending() ? fleet.now() : std::min(silent, late);
    if (recovery.lacks_room()) until = std::min(until, std::max(recovery.next_try(), fleet.now()));
    if (stuck && keep_going) until = std::min(until, fleet.now() + kHeeds);
    const bool looks = options.watch && !recovery.is_pending() && under_way > 0;
    if (looks) until = std::min(until, std::max(late_devices.next_look(), fleet.now()));
    if (tiles.under_way()) until = std::min(until, std::max(tiles.deadline(), fleet.now()));
    const Event event = fleet.next_event(until);
    if (event.kind != EventKind::timeout) {
      last_event = fleet.now();
      recovery.note_event();
      if (!tiles.take(event)) handle(event);
    } else if (tiles.take(event)) {
      last_event = fleet.now();
    } else if (late <= fleet.now()) {
      witnesses.replace_late();
    } else if (recovery.is_pending()) {
      recovery.recover();
    } else if (fleet.now() >= silent && !tiles.under_way()) {
      if (options.rehearsal || (stuck && options.may_give_up)) explain_standstill();
      if (!still_carries()) {
        if (!recovery.give_up_silent()) explain_standstill();
        last_event = fleet.now();
      }
    } else if (recovery.is_due()) {
      recovery.try_again();
    }
    if (looks && !recovery.is_pending() && fleet.now() >= late_devices.next_look()) late_devices.look();
    tiles.advance();
    while (phase_is_over()) begin_next_phase();
    tiles.advance();  // a round that has just begun
    if (only_pairs_left()) witnesses.ask_waiting();
    asks_to_go_on = asks_to_go_on || may_update();
  }
  forget_all();  // an owner that was given no sequences may still owe its sums
}

void StageRun::forget_all() {
  purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device == kServer || book(purpose.device).present) fleet.forget(purpose.tasklet);
  });
  purposes.clear();
}

void StageRun::open_book(const fleet::DeviceProfile& profile) {
  const auto id = static_cast<std::size_t>(profile.id.value);
  if (device.size() <= id) device.resize(id + 1);
  const bool contributed = device[id].contributed;
  device[id] = DeviceBook{.present = true,
                          .uplink = profile.uplink.value(),
                          .downlink = profile.downlink.value(),
                          .compute = profile.compute.value(),
                          .latency = profile.latency + profile.jitter,
                          .free = profile.memory,
                          .profile = profile,
                          .contributed = contributed};
  late_devices.open(static_cast<std::int32_t>(id));
}

TaskletId StageRun::submit(const Purpose& purpose, Priority priority, const plan::PanelRun& run, Bytes resident,
                           bool keeps, StageItem item) {
  Tasklet tasklet;
  tasklet.item = std::move(item);
  tasklet.item.sequence = purpose.sequence;
  tasklet.id = TaskletId(next_id++);
  tasklet.op = op;
  if (purpose.is_witness()) tasklet.witness_of = tasklet.id;
  tasklet.run = run;
  tasklet.errand = purpose.errand;
  tasklet.stage = purpose.stage;
  tasklet.redone = purpose.loss != kNoLoss;
  tasklet.urgency = priority.first;
  tasklet.turn = priority.second;
  tasklet.background = priority.first == kWitness && purpose.errand != Errand::witness_sums;
  tasklet.piece.device = purpose.device == kServer ? kServerDevice : DeviceId(purpose.device);
  tasklet.piece.panels = run.panels;
  tasklet.piece.bytes_down = run.down();
  tasklet.piece.bytes_up = run.up();
  tasklet.piece.resident = resident;
  if (keeps) {
    tasklet.columns = tasklet.id;
    loads.emplace_back(tasklet.id, purpose.device);
  } else {
    purposes.add(tasklet.id, purpose).tasklet = tasklet.id;
    if (!purpose.is_witness()) ++under_way;
  }
  if (purpose.device != kServer) {
    const double computes = late_devices.sent(purpose.device, run, !keeps);
    if (!keeps) purposes.find(tasklet.id)->computes = computes;
    report.bytes_down += run.down();
    report.bytes_up += run.up();
    ++report.tasklets;
  }
  if (tasklet.redone) ++report.redone;
  progress.work_sent(purpose.stage);
  fleet.submit(tasklet);
  return tasklet.id;
}

void StageRun::remove_purpose(TaskletId tasklet, bool answered) {
  if (const Purpose* const found = purposes.find(tasklet); found != nullptr && !found->is_witness()) {
    --under_way;
    last_done = fleet.now();
  }
  if (const Purpose* const found = purposes.find(tasklet); found != nullptr && found->device != kServer)
    late_devices.answered(found->device, answered ? found->computes : 0);
  purposes.remove(tasklet);
}

void StageRun::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kernel_done: return kernel_done(event.op);
    case EventKind::left: return recovery.lose(static_cast<std::int32_t>(event.device.value), event.unnoticed);
    case EventKind::joined: return recovery.join(event.device);
    case EventKind::late: return late_devices.measure(event);
    case EventKind::lost:
    case EventKind::rejected: return not_answered(event);
    case EventKind::done: return answered(event);
    case EventKind::timeout: return;
  }
}

void StageRun::kernel_done(OpId kernel) {
  if (head_join.is_kernel(kernel)) return head_join.kernel_done();
  if (!server->kernel_done(kernel)) return;
  if (runs_in_tiles(0)) return tiles.begin();
  for (std::int64_t q = 0; q < batch; ++q) {
    for (std::int64_t c = 0; c < chunks; ++c) arrive_forward(q, 0);
  }
}

void StageRun::not_answered(const Event& event) {
  const Purpose* const asked = purposes.find(event.tasklet);
  if (asked == nullptr) return;
  const bool wrong = event.kind == EventKind::rejected;
  if (!asked->is_witness()) {
    asks_to_go_on = asks_to_go_on || wrong;
    if (wrong || event.lacks_memory) ++report.rejected;
    auto then = event.lacks_memory ? StageRecovery::Then::waits : StageRecovery::Then::begins_again;
    if (wrong) then = StageRecovery::Then::is_excluded;
    return recovery.give_up_on(static_cast<std::int32_t>(event.device.value), then);
  }
  const Purpose purpose = *asked;
  remove_purpose(event.tasklet);
  if (!wrong) return lose_pair(purpose);
  settle_pair(purpose);
  asks_to_go_on = true;
  report.rejected += event.also.valid() ? 2 : 1;
  for (const DeviceId liar : {event.device, event.also}) {
    if (liar.valid()) recovery.give_up_on(static_cast<std::int32_t>(liar.value), StageRecovery::Then::is_excluded);
  }
}

void StageRun::answered(const Event& event) {
  const Purpose* const found = purposes.find(event.tasklet);
  if (found == nullptr) return;
  const Purpose purpose = *found;
  remove_purpose(event.tasklet, true);
  if (purpose.is_witness()) return settle_pair(purpose);
  if (purpose.device != kServer) book(purpose.device).contributed = true;
  progress.work_done(purpose.stage);
  if (purpose.device != kServer) late_devices.measure(event);
  if (purpose.loss != kNoLoss) losses.records().answered(purpose.loss, fleet.now(), event.measured.down);
  carry_on(purpose);
  if (recovery.is_pending()) return;
  if (recovery.is_due()) recovery.try_again();
  if (relief.is_due()) {
    const Stopwatch watch(report.planning);
    relief.relieve();
  }
}

void StageRun::carry_on(const Purpose& purpose) {
  switch (purpose.errand) {
    case Errand::forward:
    case Errand::backward: return chunk_in(purpose);
    case Errand::sum: return summed(purpose);
    case Errand::send_sums: return sums_in(purpose);
    case Errand::witness:
    case Errand::witness_sums:
    case Errand::none:
    case Errand::recompute:
    case Errand::replay:
    case Errand::weights: return;
  }
}

void StageRun::explain_standstill() {
  if (const std::int32_t s = stage_without_replica(); s != kNobody)
    throw InputError(
        fmt::format("no device that is left can hold stage {} ({} bytes)", s, at(s).cost.least_replica().value()),
        "more devices, or plan.layout: tiles");
  if (recovery.has_unassigned())
    throw InputError("no devices that are left can hold the sums of one that was lost",
                     "more devices, or plan.layout: tiles");
  CLEAVE_ASSERT(false, "nothing is under way, and the step is not complete");
  std::abort();
}

void StageRun::give_up() {
  forget_all();
  for (const auto& [load, id] : loads) {
    if (book(id).present) fleet.release(load, DeviceId(id));
  }
  loads.clear();
  std::int64_t in_tiles = tiles.give_up();
  while (server->under_way() > 0 || head_join.is_busy() || in_tiles > 0) {
    const Event event = fleet.next_event(fleet.now() + kSilence);
    if (event.kind != EventKind::kernel_done) continue;
    if (in_tiles > 0 && tiles.has(event.op)) {
      --in_tiles;
    } else if (head_join.is_kernel(event.op)) {
      head_join.kernel_done_unused();
    } else {
      server->done_unused();
    }
  }
}

bool StageRun::complete() const {
  return is_last_phase() && !pairs_left() && server->complete() &&
         std::ranges::all_of(stage, [](const StageState& s) { return s.gradients_left == 0; });
}

// An update is not undone. Who was wrong may be known though nothing says so here: an audit may accuse another device
// than the one that answered. So keep_going() is asked between this and the first update.
bool StageRun::may_update() {
  if (!server->holds_updates() || pairs_left() || !is_last_phase()) return false;
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (at(s).gradients_left > 0 || (s >= lowest && at(s).backward_left > 0)) return false;
  }
  return true;
}

bool StageRun::only_pairs_left() const {
  return under_way == 0 && pairs_left() && !recovery.is_pending() && !recovery.lacks_room();
}

void StageRun::look_at_pairs() {
  for (std::int32_t s = 0; s <= top(); ++s) {
    witnesses.ask(s);
    watchers.ask(s);
  }
}

void StageRun::settle_pair(const Purpose& purpose) {
  purpose.errand == Errand::witness_sums ? watchers.digest_in(purpose) : witnesses.settle(purpose);
}

void StageRun::lose_pair(const Purpose& purpose) {
  purpose.errand == Errand::witness_sums ? watchers.digest_lost(purpose) : witnesses.ask_another(purpose);
}

}  // namespace cleave::sched::stages
