// Losses are noted, and what was lost is given to others.
#include "stages/run_losses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "stages/stage_run.hpp"
#include "stopwatch.hpp"

namespace cleave::sched::stages {

namespace {

// The share of the time left in which stand-ins are to be done: sums that come later may hold up the step. It grows
// with every moment at which something was lost: then the step will be held up anyway, and sums on fewer devices are
// lost less often.
constexpr double kEnough = 0.9, kEnoughEach = 0.02, kMostEnough = 1.2;
constexpr double kAfterwards = 0.25;  // share of a step that stand-ins may take after all sequences have passed
constexpr double kRetryEvery = 0.01;  // share of a step

constexpr double kMissed = 0.05;         // share of a stage's uplink that may be lost before helpers are called
constexpr double kHelperPatience = 0.5;  // share of a stage's remaining time that a helper's weights may take

// Losses of devices in a step, for each device of it. Devices that leave more often do not stay for as long as weights
// and sums take.
constexpr std::int64_t kMostLossesOfEach = 6;

}  // namespace

void StageRecovery::begin() {
  missing_.clear();
  unassigned_.clear();
  lacks_room_ = false;
  lost_ = 0;
  begun_again_.clear();
}

bool StageRecovery::is_due() const { return lacks_room_ && run_.fleet.now() >= next_try_; }

void StageRecovery::note_event() { next_try_ = std::min(next_try_, run_.last_event + retry_every()); }

bool StageRecovery::give_up_silent() {
  std::set<std::int32_t> silent;
  run_.purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device != kServer) silent.insert(purpose.device);
  });
  for (const std::int32_t id : silent) give_up_on(id, Then::waits);
  return !silent.empty();
}

void StageRecovery::give_up_on(std::int32_t id, Then then) {
  if (then == Then::is_excluded) {
    run_.distrusted.insert(DeviceId(id));
    run_.planned_all_trusted = false;
  }
  if (static_cast<std::size_t>(id) >= run_.device.size() || !run_.book(id).present) return;
  take_from(id);
  recover();
  // One device that never answers must not be counted for a fleet that does not stay.
  if (then == Then::begins_again && ++begun_again_[id] < kMostLossesOfEach) join(DeviceId(id));
}

void StageRecovery::take_from(std::int32_t id) {
  std::vector<TaskletId> asked, held;
  run_.purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device == id) asked.push_back(purpose.tasklet);
  });
  for (const auto& [load, of] : run_.loads) {
    if (of == id) held.push_back(load);
  }
  lose(id, Seconds(0));
  for (const TaskletId tasklet : asked) run_.fleet.forget(tasklet);
  for (const TaskletId load : held) run_.fleet.release(load, DeviceId(id));
}

void StageRecovery::lose(std::int32_t id, Seconds silent) {
  if (static_cast<std::size_t>(id) >= run_.device.size() || !run_.book(id).present) return;
  run_.book(id).present = false;
  ++lost_;
  run_.losses.silent_for(silent);
  std::erase_if(run_.loads, [&](const auto& load) { return load.second == id; });
  std::vector<TaskletId> gone;
  run_.purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device != id) return;
    gone.push_back(purpose.tasklet);
    if (!purpose.is_witness()) run_.losses.tasklet_lost(purpose.stage, id);
  });
  std::vector<Purpose> of_pairs;
  for (const TaskletId tasklet : gone) {
    if (const Purpose* const purpose = run_.purposes.find(tasklet); purpose->is_witness()) of_pairs.push_back(*purpose);
    run_.remove_purpose(tasklet);
  }
  std::erase_if(run_.ahead, [&](const Purpose& purpose) { return purpose.device == id; });
  for (auto* visits : {&run_.forward, &run_.backward}) {
    for (Visit& of : *visits) {
      if (of.device != id) continue;
      of.kept = false;
      of.sums = 0;
    }
  }
  run_.report.lost += std::ssize(gone);
  for (std::int32_t s = 0; s <= run_.top(); ++s) {
    const auto gone_replicas =
        std::erase_if(run_.at(s).replicas, [&](const ActiveReplica& replica) { return replica.device == id; });
    if (gone_replicas > 0 && run_.progress.left_of(s) > 0) run_.losses.device_lost(s, id);
  }
  for (const OwnerState& of : run_.owner) {
    if (of.device == id && !of.closed && !of.lost) run_.losses.device_lost(of.stage, id);
  }
  // From here on recovery is to come, which asks others: some of them may leave at this moment, too.
  missing_.push_back(id);
  for (const Purpose& purpose : of_pairs) run_.lose_pair(purpose);
}

std::vector<int> StageRecovery::record_losses() {
  return run_.losses.record(run_.fleet.now(), run_.op, [&](std::int32_t s) {
    const plan::Stage& of = run_.plan.stages[static_cast<std::size_t>(s)];
    const std::string first = run_.work.pieces[static_cast<std::size_t>(of.first)].name();
    const std::string last = run_.work.pieces[static_cast<std::size_t>(of.end - 1)].name();
    return first == last ? fmt::format("stage {} ({})", s, first) : fmt::format("stage {} ({} .. {})", s, first, last);
  });
}

void StageRecovery::recover() {
  if (const auto devices = std::ssize(run_.at_begin); lost_ > kMostLossesOfEach * devices)
    throw InputError(fmt::format("{} devices were lost {} times within {:.3g} s, and the step is not done: they leave "
                                 "before they have loaded their weights, passed their sequences and sent their sums",
                                 devices, lost_, (run_.fleet.now() - run_.began).value()),
                     "plan.layout: tiles");
  const std::vector<std::int32_t> ids = std::exchange(missing_, {});
  const std::vector<int> records = record_losses();
  run_.progress.rehearse();
  Seconds planning{0};
  {
    const Stopwatch watch(planning);
    give_to_others(ids);
    run_.relief.relieve();
  }
  run_.report.planning += planning;
  for (const int record : records)
    run_.losses.records().planned(record, planning / static_cast<double>(records.size()));
}

void StageRecovery::fill_gaps() {
  const Stopwatch watch(run_.report.planning);
  run_.progress.rehearse();
  give_to_others({});
}

void StageRecovery::give_to_others(std::span<const std::int32_t> ids) {
  run_.retire_replicas();
  for (std::int32_t s = 0; s <= run_.top(); ++s) run_.settle_groups(s);
  call_all_helpers();
  for (const std::int32_t id : ids) {
    for (std::int32_t s = 0; s <= run_.top(); ++s) {
      for (std::int64_t q = 0; q < run_.batch; ++q) place_again(id, s, q);
    }
  }
  for (std::int32_t part = run_.head; run_.in_parts() && part <= run_.top(); ++part)
    run_.place_waiting_forward(part);  // those that waited for a device that is gone
  for (std::size_t i = 0; i < run_.owner.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    if (std::ranges::find(ids, run_.owner[i].device) == ids.end()) continue;
    if (!run_.owner[i].closed && !run_.owner[i].lost) {
      run_.losses.sums_lost(run_.candidates.server_takes(run_.owner[i].cost, std::ssize(run_.owner[i].sequences)));
      wait_for_room(index);
    }
    run_.watchers.stop(index);
  }
  try_again();
  run_.look_at_pairs();
}

void StageRecovery::place_again(std::int32_t id, std::int32_t s, std::int64_t q) {
  Visit &forth = run_.visit(run_.forward, s, q), &back = run_.visit(run_.backward, s, q);
  const bool kept = run_.keeps_values(s);
  if (forth.device == id && forth.done < run_.chunks) {
    forth.device = kNobody;
    forth.again = std::max(forth.again, forth.sent);
    forth.loss = run_.losses.of(s);
    // Only where replicas keep keys and values, or all values, of earlier chunks, are these sent again.
    forth.sent = run_.at(s).is_stateless() && !kept ? forth.done : 0;
    if (run_.place_visit(forth, s, &ActiveReplica::forward_slots)) {
      run_.send_forward(q, s);
    } else {
      run_.at(s).waiting_forward.insert(q);
    }
  }
  if (back.device == id && back.done < run_.chunks) {
    back.device = kNobody;
    back.kept = false;
    back.again = std::max(back.again, back.sent);
    back.loss = run_.losses.of(s);
    back.sent = 0;
    if (kept && forth.done < run_.chunks) {  // it goes where its forward pass will have left what it makes
      back.wanted = false;
    } else if (run_.place_visit(back, s, &ActiveReplica::backward_slots)) {
      run_.open_backward(q, s);
    } else {
      run_.at(s).waiting_backward.insert(q);
    }
  }
}

void StageRecovery::call_helpers(std::int32_t s) {
  const double left = run_.progress.left_of(s);
  if (left == 0) return;
  for (;;) {
    double uplink = 0;
    for (const ActiveReplica& replica : run_.at(s).replicas)
      uplink += run_.book(replica.device).uplink * (replica.helps ? kLent : 1);
    if (uplink >= run_.at(s).uplink * (1 - kMissed)) break;
    const Seconds patience(uplink > 0 ? kHelperPatience * left / uplink : std::numeric_limits<double>::infinity());
    const Shortage shortage{
        .stage = s, .sends = left, .uplink = uplink, .patience = patience, .step_left = run_.progress.ends_in()};
    const std::optional<Candidate> helper = choose_helper(run_.candidates.all(), run_.at(s).cost, shortage);
    if (!helper) break;
    run_.make_room(helper->device, run_.at(s).cost.least_replica(), s);
    run_.add_replica(s, {.device = DeviceId(helper->device), .memory = {}, .held = {}}, true);
  }
  run_.place_waiting_forward(s);
  run_.place_waiting_backward(s);
}

bool StageRecovery::lacks_replica(std::int32_t s) {
  return run_.at(s).replicas.empty() && run_.progress.left_of(s) > 0;
}

bool StageRecovery::call_replicas() {
  bool found = true;
  // Nobody had room for a stage of `least` bytes, so none is looked for where as many or more are needed.
  Bytes least(std::numeric_limits<std::int64_t>::max());
  for (std::int32_t s = 0; s <= run_.top(); ++s) {
    if (!lacks_replica(s)) continue;
    const Bytes need = run_.at(s).cost.least_replica();
    if (need < least) call_helpers(s);
    if (!run_.at(s).replicas.empty()) continue;
    if (need < least && make_way(s)) call_helpers(s);
    if (!run_.at(s).replicas.empty()) continue;
    least = std::min(least, need);
    found = false;
  }
  return found;
}

void StageRecovery::call_all_helpers() {
  if (!call_replicas()) return;
  for (std::int32_t s = 0; s <= run_.top(); ++s) call_helpers(s);
}

bool StageRecovery::can_wait(const OwnerState& of) const {
  return !of.closed && !of.lost && !of.replica && of.watched.empty() && of.panels == 0 && of.device != kServer &&
         std::ranges::none_of(of.sequences, [&](std::int64_t q) { return of.seen[static_cast<std::size_t>(q)]; });
}

void StageRecovery::wait_for_room(std::int32_t index) {
  run_.owner_at(index).lost = true;
  unassigned_.push_back(index);
}

bool StageRecovery::make_way(std::int32_t s) {
  // Owners of a stage on a device go together, since one of them holds OwnerCost::at_work for all of them.
  std::map<std::int32_t, std::map<std::int32_t, std::vector<std::int32_t>>> waiting;  // owners by device and stage
  for (std::int32_t r = 0; r <= run_.top(); ++r) {
    run_.settle_groups(r);
    std::set<std::int32_t> busy;
    for (const std::int32_t index : run_.at(r).owners) {
      const OwnerState& of = run_.owner_at(index);
      if (!of.active() || of.device == kServer || !run_.book(of.device).present) continue;
      if (can_wait(of)) {
        waiting[of.device][r].push_back(index);
      } else {
        busy.insert(of.device);
      }
    }
    for (const std::int32_t id : busy) {
      if (const auto on = waiting.find(id); on != waiting.end()) on->second.erase(r);
    }
  }
  const auto need = static_cast<double>(run_.at(s).cost.least_replica().value());
  std::vector<std::int32_t> best;
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : run_.candidates.all()) {
    const auto on = waiting.find(candidate.device);
    if (candidate.is_replica(s) || on == waiting.end()) continue;
    double room = candidate.memory_for(s), taken = 0;
    std::vector<std::int32_t> those;
    for (const auto& [below, indices] : on->second) {  // stages below are summed last
      if (room >= need) break;
      for (const std::int32_t index : indices) {
        const auto memory = static_cast<double>(run_.memory_of(run_.owner_at(index)).value());
        room += memory;
        taken += memory;
        those.push_back(index);
      }
    }
    if (room < need || taken >= least) continue;
    least = taken;
    best = those;
  }
  for (const std::int32_t index : best) {
    const OwnerState& of = run_.owner_at(index);
    wait_for_room(index);
    if (run_.purposes.find(of.load) != nullptr) run_.remove_purpose(of.load);
    run_.leave_role(of);
  }
  return !best.empty();
}

void StageRecovery::stand_in() {
  std::vector<std::int32_t> indices = std::exchange(unassigned_, {});
  // A group that was given no sequences has no sums.
  std::erase_if(indices, [&](std::int32_t index) {
    OwnerState& of = run_.owner_at(index);
    if (!of.sequences.empty()) return false;
    of.closed = true;
    run_.gradient_in(of.stage);
    return true;
  });
  if (indices.empty()) return;
  std::vector<LostSums> lost;
  std::erase_if(indices, [&](std::int32_t index) {
    keep_arrived(index);
    if (run_.owner_at(index).slices.empty()) {
      run_.owner_at(index).closed = true;
      run_.gradient_in(run_.owner_at(index).stage);
      return true;
    }
    lost.push_back(lost_sums_of(index));
    return false;
  });
  if (indices.empty()) return;
  const Seconds enough =
      std::min(kMostEnough,
               kEnough + kEnoughEach * static_cast<double>(std::max<std::int64_t>(0, run_.losses.moments() - 1))) *
      run_.progress.ends_in();
  const std::vector<Candidate> candidates = run_.candidates.with_server(run_.candidates.all(), lost);
  const SharedOut shared = share_out(run_.work, lost, candidates, enough, patience(), run_.plan.chunk,
                                     run_.candidates.interface_of(candidates));
  const auto& all = shared.parts;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (all[i].empty()) {
      unassigned_.push_back(indices[i]);
    } else {
      replace(indices[i], all[i], run_.fleet.now() + shared.by);
    }
  }
}

LostSums StageRecovery::lost_sums_of(std::int32_t index) {
  const OwnerState& of = run_.owner_at(index);
  const bool passed = std::ranges::all_of(of.sequences, [&](std::int64_t q) { return run_.has_gradient(of.stage, q); });
  return {.stage = of.stage,
          .cost = &run_.at(of.stage).cost,
          .slices = of.slices,
          .sequences = std::ssize(of.sequences),
          .partial = of.partial,
          .ready = passed ? Seconds(0) : run_.progress.passes_in(of.stage),
          .opens = run_.progress.opens_in(of.stage),
          .readers = readers_of(of.stage, of.sequences, of.device)};
}

// While sequences pass, quick devices have no memory. Owners for which no stand-ins would be in time wait until all
// sequences have passed, when quick devices have some.
Seconds StageRecovery::patience() {
  if (!run_.progress.undisturbed() || run_.at(run_.lowest).backward_left == 0)
    return Seconds(std::numeric_limits<double>::infinity());
  return run_.progress.passes_in(run_.lowest) + run_.progress.undisturbed()->end * kAfterwards;
}

void StageRecovery::keep_arrived(std::int32_t index) {
  OwnerState& of = run_.owner_at(index);
  if (of.panels_in == 0) return;
  std::vector<plan::PieceSlice> arrived, rest;
  const auto parts = std::ssize(of.parts_in);
  for (std::int64_t first = 0, end = 0; first < parts; first = end) {
    const bool in = of.parts_in[static_cast<std::size_t>(first)];
    while (end < parts && of.parts_in[static_cast<std::size_t>(end)] == in) ++end;
    const auto those = run_.slices_of_panels(of, first * of.part, std::min(of.panels, end * of.part));
    std::vector<plan::PieceSlice>& all = in ? arrived : rest;
    all.insert(all.end(), those.begin(), those.end());
  }
  run_.watchers.compare_arrived(index, arrived);
  of.slices = std::move(rest);
  of.panels = of.panels_in = 0;
  const double before = of.elements;
  of.cost = plan::owner_cost(run_.work, run_.at(of.stage).cost, of.slices, run_.plan.chunk);
  of.elements = of.cost.elements;
  run_.tally.summed[static_cast<std::size_t>(of.stage)] +=
      (before - of.elements) * static_cast<double>(of.sequences.size());
}

void StageRecovery::replace(std::int32_t index, std::span<const OwnerPart> parts, Seconds in_by) {
  OwnerState& of = run_.owner_at(index);
  of.closed = true;
  const std::int32_t s = of.stage;
  deal_out(s, of.partial, std::vector(of.sequences), parts, run_.losses.of(s), in_by);
  --run_.at(s).gradients_left;
}

void StageRecovery::deal_out(std::int32_t s, bool partial, const std::vector<std::int64_t>& sequences,
                             std::span<const OwnerPart> parts, std::int32_t loss, Seconds in_by,
                             std::int32_t handed_on) {
  for (std::size_t first = 0, end = 0; first < parts.size(); first = end) {
    std::vector<std::int64_t> shares;
    for (; end < parts.size() && parts[end].run == parts[first].run; ++end) shares.push_back(parts[end].sequences);
    std::vector<std::vector<std::int64_t>> dealt(shares.size());
    const std::vector<std::size_t> who = deal_sequences(shares);
    for (std::size_t i = 0; i < sequences.size(); ++i) dealt[who[i]].push_back(sequences[i]);
    for (std::size_t k = 0; k < shares.size(); ++k)
      add_stand_in(parts[first + k], s, partial || shares.size() > 1, std::move(dealt[k]), loss, in_by, handed_on);
  }
}

std::vector<Reader> StageRecovery::readers_of(std::int32_t s, std::span<const std::int64_t> its, std::int32_t but) {
  std::map<std::int32_t, Reader> found;
  std::int64_t to_come = 0;  // sequences without a replica yet
  double uplink = 0;
  for (const ActiveReplica& replica : run_.at(s).replicas) uplink += run_.book(replica.device).uplink;
  std::map<std::int32_t, std::int64_t> placed;
  for (const std::int64_t q : its) {
    const Visit& of = run_.summed_visit(s, q);
    if (of.done == run_.chunks) continue;
    if (of.placed()) {
      ++placed[of.device];
    } else {
      ++to_come;
    }
  }
  for (const ActiveReplica& replica : run_.at(s).replicas) {
    if (replica.device == but) continue;
    const double share = run_.book(replica.device).uplink / uplink;
    found[replica.device] = {replica.device,
                             placed[replica.device] + static_cast<std::int64_t>(share * static_cast<double>(to_come))};
  }
  for (const std::int32_t index : run_.at(s).owners) {
    const OwnerState& of = run_.owner_at(index);
    if (of.closed || of.lost || of.device == but || !run_.book(of.device).present) continue;
    const auto unseen =
        std::ranges::count_if(its, [&](std::int64_t q) { return !of.seen[static_cast<std::size_t>(q)]; });
    Reader& one = found[of.device];
    one.device = of.device;
    one.sequences = std::max<std::int64_t>(one.sequences, unseen);
    one.owns = true;
  }
  std::vector<Reader> all;
  for (const auto& [id, one] : found) all.push_back(one);
  return all;
}

void StageRecovery::add_stand_in(const OwnerPart& part, std::int32_t s, bool partial, std::vector<std::int64_t> its,
                                 std::int32_t loss, Seconds in_by, std::int32_t handed_on) {
  if (part.device == kServer) {
    ++run_.report.server_sums;
  } else {
    run_.make_room(part.device,
                   owner_memory(run_.work, part.cost, part.replica) - (part.shares_room ? part.cost.at_work : Bytes(0)),
                   s);
  }
  const std::int32_t stands = run_.add_owner(part.device, s, part.replica, partial, part.slices, its, part.shares_room);
  run_.owner_at(stands).handed_on = handed_on;
  run_.owner_at(stands).in_by = in_by;
  run_.owner_at(stands).rank = stands + 1;
  run_.load_owner(stands);
  const bool passed = std::ranges::all_of(its, [&](std::int64_t q) { return run_.has_gradient(s, q); });
  if (passed) run_.owner_at(stands).loss = loss;
  run_.owner_at(stands).drawn = part.device != kServer && run_.witnesses.is_drawn(run_.owner_at(stands).load.value);
  for (const std::int64_t q : its) {
    const Visit& ran = run_.summed_visit(s, q);
    if (!run_.has_gradient(s, q)) continue;
    if (!part.replica || ran.done == run_.chunks || (ran.placed() && ran.device != part.device))
      run_.send_again(stands, q, loss);
  }
}

Seconds StageRecovery::retry_every() const {
  return (run_.progress.undisturbed() ? run_.progress.undisturbed()->end : run_.plan.forecast) * kRetryEvery;
}

void StageRecovery::try_again() {
  // The longer nothing happens, the longer the next try waits: without events hardly anything changes.
  next_try_ = run_.fleet.now() + std::max(retry_every(), run_.fleet.now() - run_.last_event);
  run_.retire_replicas();
  const bool all_pass = call_replicas();
  // Stages without replicas come first, since memory is freed as sums are sent. Only if nothing is under way, owners do
  // not wait for that.
  if (all_pass || run_.under_way == 0) stand_in();
  lacks_room_ = !all_pass || !unassigned_.empty();
  for (std::int32_t s = 0; s <= run_.top(); ++s) run_.watchers.ask(s);
  if (lacks_room_) run_.late_devices.take_back();
}

void StageRecovery::join(DeviceId id) {
  if (run_.distrusted.contains(id)) return;
  run_.late_devices.came_back(id);
  if (!missing_.empty()) recover();  // a device that left and came back at one moment has lost its work all the same
  for (const fleet::DeviceProfile& profile : run_.found_profiles()) {
    if (profile.id == id) run_.open_book(profile);
  }
  use_newcomers();
}

void StageRecovery::use_newcomers() {
  call_all_helpers();
  try_again();
}

}  // namespace cleave::sched::stages
