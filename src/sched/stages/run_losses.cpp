// What a lost device had is given to others, and memory is made for it.
#include "stages/stage_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "stopwatch.hpp"

namespace cleave::sched::stages {

namespace {

constexpr double kOfLink = 0.85;  // that weights of stand-ins get
// Of the time left: sums that come later may hold up the step. Where losses keep coming it will be held up anyway, and
// what is spread less is lost less often.
constexpr double kEnough = 0.9, kEnoughEach = 0.02, kMostEnough = 1.2;
constexpr double kServerBehind =
    2;  // times what is left of the step, that sums may take the server which is asked first
constexpr double kAfterwards = 0.25;    // of a step: that sums take which are held back until sequences have passed
constexpr double kRetryEvery = 0.01;    // of a step
constexpr double kAcknowledged = 1e-3;  // of a step, in which a device acknowledges what waited for its uplink

}  // namespace

std::vector<Candidate> StageRun::candidates() {
  std::vector<Candidate> all;
  for (std::size_t id = 0; id < device.size(); ++id) {
    const DeviceBook& of = device[id];
    if (!of.present) continue;
    Candidate candidate;
    candidate.device = static_cast<std::int32_t>(id);
    candidate.memory = static_cast<double>(of.free.value());
    candidate.uplink = of.uplink;
    candidate.downlink = of.downlink;
    candidate.compute = of.compute;
    candidate.roles = of.roles;
    all.push_back(candidate);
  }
  const auto entry = [&](std::int32_t id) { return std::ranges::lower_bound(all, id, {}, &Candidate::device); };
  std::vector<double> ready_after(stage.size(), 0), left_of_stage(stage.size(), 0), uplink_of(stage.size(), 0);
  double at_rates = 0;  // until all have passed the stages from r on
  for (std::int32_t r = top(); r >= 0; --r) {
    const auto i = static_cast<std::size_t>(r);
    for (const Host& host : at(r).hosts) uplink_of[i] += book(host.device).uplink;
    left_of_stage[i] = progress.left_of(r);
    if (uplink_of[i] > 0) at_rates = std::max(at_rates, left_of_stage[i] / uplink_of[i]);
    ready_after[i] = progress.passes_in(r, Seconds(at_rates)).value();
  }
  for (std::int32_t r = 0; r <= top(); ++r) {
    const plan::StageCost& cost = at(r).cost;
    const double uplink = uplink_of[static_cast<std::size_t>(r)];
    const double left_up = left_of_stage[static_cast<std::size_t>(r)], left = kDownOfUp * left_up;
    // Of a whole visit the boundary goes up once each way.
    const Bytes of_visit =
        cost.forward_result(work.seq) + (passed_twice(r) ? cost.backward_result(work.seq) : Bytes(0));
    const double visits = left_up / static_cast<double>(of_visit.value());
    const Flops visit_flops = cost.forward(0, work.seq) + cost.remake(0, work.seq) + cost.backward(0, work.seq);
    for (const Host& host : at(r).hosts) {
      Candidate& of = *entry(host.device);
      const auto [forward_slots, backward_slots] = lendable(host);
      of.memory +=
          static_cast<double>((cost.open_forward() * forward_slots + cost.open_backward() * backward_slots).value());
      const double share = of.uplink / uplink;
      of.down_busy += left * share / of.downlink;
      of.down_visits += left * share / of.downlink;
      if (left_up > 0) of.visits_left = std::max(of.visits_left, ready_after[static_cast<std::size_t>(r)]);
      of.compute_busy +=
          visits * share * (cost.is_head() ? cost.forward(0, work.seq) : visit_flops).value() / of.compute;
      of.up_busy += left_up / uplink;
      of.holds.push_back({r, may_go(host, r) ? static_cast<double>(cost.weights().value()) : 0, share});
    }
  }
  const auto reads_now = [&](Candidate& of, const OwnerState& sums, bool is_sent) {
    const double reads = static_cast<double>(sums.cost.operands.value()) / of.downlink;
    const double computes = sums.cost.alone.value() / of.compute;
    of.down_busy += reads;
    of.compute_busy += computes;
    if (!sums.stands_in) return;
    of.down_again += reads;
    of.compute_again += computes;
    if (!is_sent) return;
    of.reads_sent += reads;
    of.computes_sent += computes;
  };
  purposes.for_each([&](const Purpose& purpose) {
    if (purpose.errand == Errand::sum && purpose.reads && purpose.device != kServer)
      reads_now(*entry(purpose.device), owner[static_cast<std::size_t>(purpose.owner)], true);
  });
  for (Candidate& of : all) {
    std::set<std::pair<std::int32_t, std::int64_t>> read;  // once, for all owners on the device
    for (const DueSum& due : book(of.device).due) {
      if (read.emplace(due.stage, due.sequence).second)
        reads_now(of, owner[static_cast<std::size_t>(due.owner)], false);
    }
  }
  for (const OwnerState& of : owner) {
    if (!of.active() || of.device == kServer || !book(of.device).present) continue;
    Candidate& candidate = *entry(of.device);
    // What a replica will run itself is not sent to it, what others on the device read is read once.
    const std::int64_t unseen = std::ranges::count(of.seen, false);
    double own = 0;
    for (const Candidate::Held& held : candidate.holds) {
      if (of.replica && held.stage == of.stage) own = held.share * static_cast<double>(unseen);
    }
    const double reads_s = static_cast<double>(of.cost.operands.value()) / candidate.downlink;
    const double sent = std::max(0.0, static_cast<double>(unseen - read_for_others(of)) - own);
    const double reads = sent * reads_s + loading_left(of);
    const double computes = (sent * of.cost.alone.value() + own * of.cost.beside.value()) / candidate.compute;
    candidate.down_busy += reads;
    candidate.compute_busy += computes;
    if (of.stands_in) {
      candidate.down_again += reads;
      candidate.compute_again += computes;
    }
    const double to_send = of.panels > 0 ? 1 - static_cast<double>(of.panels_in) / static_cast<double>(of.panels) : 1;
    if (!of.closed) {
      const double sends = to_send * static_cast<double>(of.sums.value()) / candidate.uplink;
      (of.left > 0 ? candidate.sums_busy : candidate.up_busy) += sends;
      if (of.left > 0 && of.stands_in) candidate.sums_again += sends;
    }
    const auto id = static_cast<std::size_t>(of.device);
    if (of.left > 0 && !of.stands_in && progress.calm() && id < progress.calm()->summed.size())
      candidate.own_sums = std::max(0.0, (progress.calm()->summed[id] - progress.calm_time()).value());
    if (of.left > 0)
      candidate.last_read = std::max(candidate.last_read, ready_after[static_cast<std::size_t>(of.stage)]);
  }
  for (Candidate& of : all) {
    // Acknowledgements wait behind sums that are on their way: some of what they are for is done.
    if (const DeviceBook& on = book(of.device); acknowledges_late(on)) {
      const double since = (fleet.now() - on.sending_since).value();
      const double read = std::min(of.reads_sent, since), computed = std::min(of.computes_sent, since);
      of.down_busy -= read;
      of.down_again -= read;
      of.compute_busy -= computed;
      of.compute_again -= computed;
    }
    if (of.own_sums == 0) continue;
    of.own_gaps = std::max(0.0, of.own_sums - of.down_busy);
    of.own_sums += of.sums_busy;
  }
  return all;
}

// In order of devices it is the first.
std::vector<Candidate> StageRun::with_server(std::vector<Candidate> devices, std::span<const LostSums> lost) {
  const bool stuck = under_way == 0;
  if (options.server_sums == ServerSums::never || (options.server_sums == ServerSums::if_nobody_else && !stuck))
    return devices;
  Candidate candidate;
  candidate.device = kServer;
  candidate.memory = candidate.uplink = candidate.downlink = kAtHand;
  candidate.compute = of_server.compute;
  for (const OwnerState& of : owner) {
    if (of.device == kServer && of.active()) candidate.compute_busy += server_takes(of.cost, of.left).value();
  }
  candidate.asked_first =
      options.server_sums == ServerSums::if_sooner && server_keeps_up(Seconds(candidate.compute_busy), lost);
  devices.insert(devices.begin(), std::move(candidate));
  return devices;
}

Seconds StageRun::server_takes(const plan::OwnerCost& cost, std::int64_t sequences) const {
  return Seconds(static_cast<double>(sequences) * cost.alone.value() / of_server.compute);
}

bool StageRun::server_keeps_up(Seconds busy, std::span<const LostSums> lost) {
  const Seconds left = progress.ends_in();
  Seconds all = busy;
  for (const LostSums& one : lost)
    all += server_takes(plan::owner_cost(work, *one.cost, one.slices, plan.chunk), one.sequences);
  // What has been lost at one moment alone says nothing of what will be.
  if (losses.moments() > 1) all += losses.sums_lost() * (left / (fleet.now() - began));
  return all <= left * kServerBehind;
}

// The first of them comes right after the last of the sums, and may not have been looked at.
bool StageRun::acknowledges_late(const DeviceBook& on) const {
  if (on.sending > 0) return true;
  const bool has_sent = on.sending_since.value() > 0;
  return has_sent && progress.calm() && fleet.now() - on.sent_at < on.latency + progress.calm()->end * kAcknowledged;
}

std::int64_t StageRun::read_for_others(const OwnerState& of) {
  if (!of.guest) return 0;
  std::int64_t most = 0;
  for (const std::int32_t other : at(of.stage).owners) {
    const OwnerState& its = owner[static_cast<std::size_t>(other)];
    if (&its == &of) break;
    if (!its.active() || its.device != of.device) continue;
    std::int64_t both = 0;
    for (std::size_t q = 0; q < of.seen.size(); ++q) both += !of.seen[q] && !its.seen[q] ? 1 : 0;
    most = std::max(most, both);
  }
  return most;
}

double StageRun::loading_left(const OwnerState& of) {
  if (of.replica || of.since == began) return 0;
  const double loading = static_cast<double>(of.cost.weights.value()) / book(of.device).downlink;
  return std::max(0.0, loading - kOfLink * (fleet.now() - of.since).value());
}

bool StageRun::give_up_silent() {
  std::set<std::int32_t> silent;
  purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device != kServer) silent.insert(purpose.device);
  });
  for (const std::int32_t id : silent) give_up_on(id, Then::waits);
  return !silent.empty();
}

void StageRun::give_up_on(std::int32_t id, Then then) {
  if (then == Then::is_excluded) {
    distrusted.insert(DeviceId(id));
    planned_all_trusted = false;
  }
  if (static_cast<std::size_t>(id) >= device.size() || !book(id).present) return;
  take_from(id);
  recover();
  if (then == Then::begins_again) join(DeviceId(id));
}

void StageRun::take_from(std::int32_t id) {
  std::vector<TaskletId> asked, held;
  purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device == id) asked.push_back(purpose.tasklet);
  });
  for (const auto& [load, of] : loads) {
    if (of == id) held.push_back(load);
  }
  lose(id, Seconds(0));
  for (const TaskletId tasklet : asked) fleet.forget(tasklet);
  for (const TaskletId load : held) fleet.release(load, DeviceId(id));
}

void StageRun::lose(std::int32_t id, Seconds silent) {
  if (static_cast<std::size_t>(id) >= device.size() || !book(id).present) return;
  book(id).present = false;
  losses.silent_for(silent);
  std::erase_if(loads, [&](const auto& load) { return load.second == id; });
  std::vector<TaskletId> gone;
  purposes.for_each([&](const Purpose& purpose) {
    if (purpose.device != id) return;
    gone.push_back(purpose.tasklet);
    if (!purpose.is_witness()) losses.tasklet_lost(purpose.stage, id);
  });
  std::vector<Purpose> of_pairs;
  for (const TaskletId tasklet : gone) {
    if (const Purpose* const purpose = purposes.find(tasklet); purpose->is_witness()) of_pairs.push_back(*purpose);
    remove_purpose(tasklet);
  }
  std::erase_if(ahead, [&](const Purpose& purpose) { return purpose.device == id; });
  for (auto* visits : {&forward, &backward}) {
    for (Visit& of : *visits) {
      if (of.device != id) continue;
      of.kept = false;
      of.sums = 0;
    }
  }
  report.lost += std::ssize(gone);
  for (std::int32_t s = 0; s <= top(); ++s) {
    const auto gone_hosts = std::erase_if(at(s).hosts, [&](const Host& host) { return host.device == id; });
    if (gone_hosts > 0 && progress.left_of(s) > 0) losses.device_lost(s, id);
  }
  for (const OwnerState& of : owner) {
    if (of.device == id && !of.closed && !of.lost) losses.device_lost(of.stage, id);
  }
  for (const Purpose& purpose : of_pairs) lose_pair(purpose);
  missing.push_back(id);
}

std::vector<int> StageRun::record_losses() {
  return losses.record(fleet.now(), op, [&](std::int32_t s) {
    const plan::Stage& of = plan.stages[static_cast<std::size_t>(s)];
    const std::string first = work.pieces[static_cast<std::size_t>(of.first)].name();
    const std::string last = work.pieces[static_cast<std::size_t>(of.end - 1)].name();
    return first == last ? fmt::format("stage {} ({})", s, first) : fmt::format("stage {} ({} .. {})", s, first, last);
  });
}

void StageRun::recover() {
  const std::vector<std::int32_t> ids = std::exchange(missing, {});
  const std::vector<int> records = record_losses();
  progress.rehearse();
  Seconds planning{0};
  {
    const Stopwatch watch(planning);
    give_to_others(ids);
    relieve();
  }
  report.planning += planning;
  for (const int record : records) losses.records().planned(record, planning / static_cast<double>(records.size()));
}

void StageRun::give_to_others(std::span<const std::int32_t> ids) {
  retire_replicas();
  for (std::int32_t s = 0; s <= top(); ++s) settle_groups(s);
  call_all_helpers();
  for (const std::int32_t id : ids) {
    for (std::int32_t s = 0; s <= top(); ++s) {
      for (std::int64_t q = 0; q < batch; ++q) place_again(id, s, q);
    }
  }
  for (std::int32_t part = head; in_parts() && part <= top(); ++part) place_waiting_forward(part);  // for who is gone
  for (std::size_t i = 0; i < owner.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    if (std::ranges::find(ids, owner[i].device) == ids.end()) continue;
    if (!owner[i].closed && !owner[i].lost) {
      losses.sums_lost(server_takes(owner[i].cost, std::ssize(owner[i].sequences)));
      wait_for_room(index);
    }
    watchers.stop(index);
  }
  try_again();
  look_at_pairs();
}

void StageRun::place_again(std::int32_t id, std::int32_t s, std::int64_t q) {
  Visit &forth = visit(forward, s, q), &back = visit(backward, s, q);
  if (forth.device == id && forth.done < chunks) {
    forth.device = kNobody;
    forth.again = std::max(forth.again, forth.sent);
    forth.loss = losses.of(s);
    // Where no keys and values are kept, chunks do not need those before them.
    const bool kept = std::ranges::any_of(at(s).hosts, &Host::keeps);
    forth.sent = at(s).is_stateless() && !kept ? forth.done : 0;
    if (place_visit(forth, s, &Host::forward_slots)) {
      send_forward(q, s);
    } else {
      at(s).waiting_forward.insert(q);
    }
  }
  if (back.device == id && back.done < chunks) {
    back.device = kNobody;
    back.kept = false;
    back.again = std::max(back.again, back.sent);
    back.loss = losses.of(s);
    back.sent = 0;
    if (place_visit(back, s, &Host::backward_slots)) {
      open_backward(q, s);
    } else {
      at(s).waiting_backward.insert(q);
    }
  }
}

bool StageRun::has_gradient(std::int32_t s, std::int64_t q) {
  if (in_parts() && s + 1 >= head) return s >= head ? head_join.has_passed(q) : head_join.is_joined(q);
  return (s + 1 >= head ? visit(forward, head, q) : visit(backward, s + 1, q)).done == chunks;
}

void StageRun::stand_in() {
  std::vector<std::int32_t> indices = std::exchange(homeless, {});
  // A group that was given no sequences has no sums.
  std::erase_if(indices, [&](std::int32_t index) {
    OwnerState& of = owner[static_cast<std::size_t>(index)];
    if (!of.sequences.empty()) return false;
    of.closed = true;
    gradient_in(of.stage);
    return true;
  });
  if (indices.empty()) return;
  std::vector<LostSums> lost;
  for (const std::int32_t index : indices) {
    keep_arrived(index);
    lost.push_back(lost_sums_of(index));
  }
  const Seconds enough =
      std::min(kMostEnough,
               kEnough + kEnoughEach * static_cast<double>(std::max<std::int64_t>(0, losses.moments() - 1))) *
      progress.ends_in();
  const SharedOut shared = share_out(work, lost, with_server(candidates(), lost), enough, patience(), plan.chunk);
  const auto& all = shared.parts;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (all[i].empty()) {
      homeless.push_back(indices[i]);
    } else {
      replace(indices[i], all[i], fleet.now() + shared.by);
    }
  }
}

LostSums StageRun::lost_sums_of(std::int32_t index) {
  const OwnerState& of = owner[static_cast<std::size_t>(index)];
  const bool passed = std::ranges::all_of(of.sequences, [&](std::int64_t q) { return has_gradient(of.stage, q); });
  return {.stage = of.stage,
          .cost = &at(of.stage).cost,
          .slices = of.slices,
          .sequences = std::ssize(of.sequences),
          .partial = of.partial,
          .ready = passed ? Seconds(0) : progress.passes_in(of.stage),
          .opens = progress.opens_in(of.stage),
          .beside = beside(of.stage, of.sequences, of.device)};
}

// While sequences pass, devices that are quick have no room. What finds none in time then is held back until they do.
Seconds StageRun::patience() {
  if (!progress.calm() || at(lowest).backward_left == 0) return Seconds(std::numeric_limits<double>::infinity());
  return progress.passes_in(lowest) + progress.calm()->end * kAfterwards;
}

void StageRun::keep_arrived(std::int32_t index) {
  OwnerState& of = owner[static_cast<std::size_t>(index)];
  if (of.panels_in == 0) return;
  const double share = static_cast<double>(of.panels_in) / static_cast<double>(of.panels);
  of.slices = slices_after(work, at(of.stage).cost, of.slices, share, plan.chunk);
  of.panels = of.panels_in = 0;
  const double before = of.elements;
  of.cost = plan::owner_cost(work, at(of.stage).cost, of.slices, plan.chunk);
  of.elements = of.cost.elements;
  tally.summed[static_cast<std::size_t>(of.stage)] += (before - of.elements) * static_cast<double>(of.sequences.size());
}

void StageRun::replace(std::int32_t index, std::span<const OwnerPart> parts, Seconds in_by) {
  OwnerState& of = owner[static_cast<std::size_t>(index)];
  of.closed = true;
  const std::int32_t s = of.stage;
  deal_out(s, of.partial, std::vector(of.sequences), parts, losses.of(s), in_by);
  --at(s).gradients_left;
}

void StageRun::deal_out(std::int32_t s, bool partial, const std::vector<std::int64_t>& sequences,
                        std::span<const OwnerPart> parts, std::int32_t loss, Seconds in_by, std::int32_t handed_on) {
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

std::vector<Beside> StageRun::beside(std::int32_t s, std::span<const std::int64_t> its, std::int32_t but) {
  std::map<std::int32_t, Beside> found;
  std::int64_t to_come = 0;  // that have no replica yet
  double uplink = 0;
  for (const Host& host : at(s).hosts) uplink += book(host.device).uplink;
  std::map<std::int32_t, std::int64_t> placed;
  for (const std::int64_t q : its) {
    const Visit& of = summed_visit(s, q);
    if (of.done == chunks) continue;
    if (of.placed()) {
      ++placed[of.device];
    } else {
      ++to_come;
    }
  }
  for (const Host& host : at(s).hosts) {
    if (host.device == but) continue;
    const double share = book(host.device).uplink / uplink;
    found[host.device] = {host.device,
                          placed[host.device] + static_cast<std::int64_t>(share * static_cast<double>(to_come))};
  }
  for (const std::int32_t index : at(s).owners) {
    const OwnerState& of = owner[static_cast<std::size_t>(index)];
    if (of.closed || of.lost || of.device == but || !book(of.device).present) continue;
    const auto unseen =
        std::ranges::count_if(its, [&](std::int64_t q) { return !of.seen[static_cast<std::size_t>(q)]; });
    Beside& one = found[of.device];
    one.device = of.device;
    one.sequences = std::max<std::int64_t>(one.sequences, unseen);
    one.owns = true;
  }
  std::vector<Beside> all;
  for (const auto& [id, one] : found) all.push_back(one);
  return all;
}

void StageRun::add_stand_in(const OwnerPart& part, std::int32_t s, bool partial, std::vector<std::int64_t> its,
                            std::int32_t loss, Seconds in_by, std::int32_t handed_on) {
  if (part.device == kServer) {
    ++report.server_sums;
  } else {
    make_room(part.device, owner_memory(work, part.cost, part.replica) - (part.beside ? part.cost.at_work : Bytes(0)),
              s);
  }
  const std::int32_t stands = add_owner(part.device, s, part.replica, partial, part.slices, its, part.beside);
  owner[static_cast<std::size_t>(stands)].handed_on = handed_on;
  owner[static_cast<std::size_t>(stands)].in_by = in_by;
  owner[static_cast<std::size_t>(stands)].rank = stands + 1;
  load_owner(stands);
  const bool passed = std::ranges::all_of(its, [&](std::int64_t q) { return has_gradient(s, q); });
  if (passed) owner[static_cast<std::size_t>(stands)].loss = loss;
  owner[static_cast<std::size_t>(stands)].drawn =
      part.device != kServer && witnesses.is_drawn(owner[static_cast<std::size_t>(stands)].load.value);
  for (const std::int64_t q : its) {
    const Visit& ran = summed_visit(s, q);
    if (!has_gradient(s, q)) continue;
    if (!part.replica || ran.done == chunks || (ran.placed() && ran.device != part.device)) send_again(stands, q, loss);
  }
}

Seconds StageRun::retry_every() const { return (progress.calm() ? progress.calm()->end : plan.forecast) * kRetryEvery; }

void StageRun::try_again() {
  // Where nothing happens, hardly anything changes either.
  next_try = fleet.now() + std::max(retry_every(), fleet.now() - last_event);
  retire_replicas();
  const bool all_pass = call_replicas();
  // Unless nothing is left to wait for: sums that are sent leave room as well.
  if (all_pass || under_way == 0) stand_in();
  needy = !all_pass || !homeless.empty();
  for (std::int32_t s = 0; s <= top(); ++s) watchers.ask(s);
  if (needy) take_back();
}

void StageRun::join(DeviceId id) {
  if (distrusted.contains(id)) return;
  left_out.erase(static_cast<std::int32_t>(id.value));
  if (!missing.empty()) recover();  // who leaves and comes back at one moment has lost all the same
  for (const fleet::DeviceProfile& profile : found_profiles()) {
    if (profile.id == id) open_book(profile);
  }
  call_all_helpers();
  try_again();
}

}  // namespace cleave::sched::stages
