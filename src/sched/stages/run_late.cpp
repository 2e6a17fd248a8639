// Devices that turn out far slower than believed, or say nothing at all: what they have is given to others.
//
// Late is who is late by what itself did (late_watch.hpp), never by a forecast of when something should be done. Such a
// device is left alone as long as the step does not wait for it, or others would not be sooner. Else it counts as lost
// until the step ends: stand-ins do what it held, what it still answers is dropped, and the next step is planned for
// what it was seen to do.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "stages/stage_run.hpp"
#include "stopwatch.hpp"

namespace cleave::sched::stages {

namespace {

constexpr double kSooner = 0.05;    // of a step, by which others must be sooner
constexpr double kBusy = 0.01;      // of a step: a device that needs so long for what is left of the last one waits
constexpr double kOfTheRest = 0.9;  // of the time left: being done sooner is of no use
// Slower by this than it was seen to be: it did no more, and perhaps less. Who is believed too fast holds up the next
// step; who is believed too slow says so with its first answers.
constexpr double kCautious = 1.6;

}  // namespace

void StageRun::measure_answer(const Event& event) {
  const auto id = static_cast<std::int32_t>(event.device.value);
  if (!event.device.valid() || static_cast<std::size_t>(id) >= device.size()) return;
  const bool slow =
      options.watch && book(id).profile.id == event.device && late_watch.measured(book(id).profile, event.measured);
  if (slow) book(id).slow_answer = event.measured;
  if (!options.learn) return;
  if (const auto guess = guessed.find(id); guess != guessed.end()) {
    guess->second = true;
    rates.begin_again(event.device, event.measured);
  } else {
    rates.observe(event.device, event.measured);
  }
}

std::set<std::int32_t> StageRun::still_at_work() const {
  std::set<std::int32_t> busy;
  if (dismissed.empty() && left_out.empty()) return busy;
  for (const plan::DeviceState& state : believed()) {
    const auto id = static_cast<std::int32_t>(state.profile.id.value);
    const Seconds left = std::max({state.down_busy, state.compute_busy, state.up_busy});
    if ((dismissed.contains(id) || left_out.contains(id)) && left > plan.forecast * kBusy) busy.insert(id);
  }
  return busy;
}

double StageRun::end_of_late(const LateDevice& one, const plan::DeviceState& state) {
  const std::int32_t id = one.device;
  double down = state.down_busy.value(), compute = state.compute_busy.value(), sums = 0, passed = 0;
  for (const OwnerState& of : owner) {
    if (of.device != id || of.closed || of.lost) continue;
    if (of.panels == 0) sums += static_cast<double>(of.sums.value()) / state.profile.uplink.value();
    if (of.left == 0) continue;
    const auto unseen = static_cast<double>(std::ranges::count(of.seen, false) - read_for_others(of));
    double own = 0, uplink = 0;
    for (const Host& host : at(of.stage).hosts) {
      uplink += book(host.device).uplink;
      if (of.replica && host.device == id) own = book(id).uplink;
    }
    own = own > 0 ? unseen * own / uplink : 0;
    down += (unseen - own) * static_cast<double>(of.cost.operands.value()) / state.profile.downlink.value();
    compute += ((unseen - own) * of.cost.alone.value() + own * of.cost.beside.value()) / state.profile.compute.value();
    passed = std::max(passed, progress.passes_in(of.stage).value());
  }
  double end = std::max(one.likely * std::max({down, compute, state.up_busy.value()}), passed) + one.likely * sums;
  // Until it answers, its weights may be on their way, and whatever it was given waits for them.
  const double loading = book(id).contributed ? 0 : one.likely * state.down_busy.value();
  // A sequence that is there has the rest of its way before it, as long as the first one's was, unless it ends with a
  // round of stages.
  const double back = progress.calm()->opened[static_cast<std::size_t>(lowest)].value();
  const double forth = progress.calm()->opened[static_cast<std::size_t>(head)].value();
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (std::ranges::find(at(s).hosts, id, &Host::device) == at(s).hosts.end()) continue;
    const double here = s < head ? static_cast<double>(s) / static_cast<double>(head) : 1;
    for (std::int64_t q = 0; q < batch; ++q) {
      for (const bool returns : {false, true}) {
        const Visit& of = visit(returns ? backward : forward, s, q);
        if (of.device != id || of.done == chunks) continue;
        const double rows = static_cast<double>(chunks - of.done) / static_cast<double>(chunks);
        const double sends =
            rows * static_cast<double>(at(s).cost.boundary(work.seq).value()) / state.profile.uplink.value();
        const double way = (returns ? here : 1) * (back - forth) + (returns ? 0 : (1 - here) * forth);
        end = std::max(end, loading + one.likely * sends + (plan.rounds() > 1 ? 0.0 : std::max(0.0, way)));
      }
    }
  }
  return end;
}

// `who`: the least late of those that are to blame.
bool StageRun::others_can(const std::vector<LateDevice>& late, std::size_t& who) {
  const auto is_late = [&](std::int32_t id) { return std::ranges::find(late, id, &LateDevice::device) != late.end(); };
  std::vector<Candidate> others = candidates();
  std::erase_if(others, [&](const Candidate& one) { return is_late(one.device); });
  for (std::int32_t s = 0; s <= top(); ++s) {
    if (progress.left_of(s) == 0 ||
        std::ranges::any_of(at(s).hosts, [&](const Host& host) { return !is_late(host.device); }))
      continue;
    if (at(s).hosts.empty() || choose_helper(others, at(s).cost, {.stage = s})) continue;
    for (std::size_t i = 0; i < late.size(); ++i) {
      if (std::ranges::find(at(s).hosts, late[i].device, &Host::device) != at(s).hosts.end()) who = i;
    }
    return false;
  }
  return true;
}

void StageRun::keep_unless_sooner(std::vector<LateDevice>& late, std::vector<double>& ends) {
  const double gain = kSooner * progress.calm()->end.value();
  const auto keep = [&](std::size_t i) {
    late.erase(late.begin() + static_cast<std::ptrdiff_t>(i));
    ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i));
  };
  while (!late.empty()) {
    if (std::size_t who = 0; !others_can(late, who)) {
      keep(who);
      continue;
    }
    std::vector<Candidate> others = candidates();
    std::vector<LostSums> lost;
    std::vector<std::size_t> whose;
    for (std::size_t i = 0; i < late.size(); ++i) {
      std::erase_if(others, [&](const Candidate& one) { return one.device == late[i].device; });
      for (std::size_t o = 0; o < owner.size(); ++o) {
        const OwnerState& of = owner[o];
        if (of.device != late[i].device || of.closed || of.lost || of.sequences.empty()) continue;
        lost.push_back(lost_sums_of(static_cast<std::int32_t>(o)));
        whose.push_back(i);
      }
    }
    if (lost.empty()) return;
    const double latest = *std::ranges::max_element(ends);
    const SharedOut shared =
        share_out(work, lost, others, kOfTheRest * progress.ends_in(), Seconds(latest - gain), plan.chunk);
    std::size_t least = late.size();
    for (std::size_t l = 0; l < lost.size(); ++l) {
      const std::size_t i = whose[l];
      if (!shared.parts[l].empty() && ends[i] >= shared.by.value() + gain) continue;
      if (least == late.size() || ends[i] < ends[least]) least = i;
    }
    if (least == late.size()) return;
    keep(least);
  }
}

void StageRun::look_for_late() {
  std::vector<plan::DeviceState> states = believed();
  std::erase_if(states, [&](const plan::DeviceState& state) {
    const auto id = static_cast<std::size_t>(state.profile.id.value);
    return id >= device.size() || !device[id].present;
  });
  const std::vector<LateDevice> all = late_watch.look(fleet.now(), states);
  std::erase_if(slowed, [&](std::int32_t id) {
    if (std::ranges::find(all, id, &LateDevice::device) != all.end()) return false;
    const auto state = std::ranges::find(states, DeviceId(id), [](const auto& of) { return of.profile.id; });
    if (book(id).present && state != states.end()) {
      slow_down(id, 1);
      expect_weights(id, state->down_busy);
    }
    return true;
  });
  if (all.empty()) return;
  std::vector<LateDevice> late;
  std::vector<double> ends;
  Seconds planning{0};
  {
    const Stopwatch stopwatch(planning);
    progress.rehearse();
    const double gain = kSooner * progress.calm()->end.value();
    for (const LateDevice& one : all) {
      if (taken_back.contains(one.device)) continue;
      const auto state =
          std::ranges::find(states, DeviceId(one.device), [](const plan::DeviceState& of) { return of.profile.id; });
      const double end = end_of_late(one, *state);
      slow_down(one.device, one.likely);
      expect_weights(one.device, state->down_busy * one.likely);
      slowed.insert(one.device);
      believe_late(one);
      if (end <= progress.ends_in().value() + gain) continue;
      late.push_back(one);
      ends.push_back(end);
    }
    keep_unless_sooner(late, ends);
  }
  report.planning += planning;
  if (late.empty()) return;
  for (const LateDevice& one : late) {
    dismissed[one.device] = one.likely;
    slowed.erase(one.device);
    ++report.late;
    take_from(one.device);
  }
  recover();
}

// Also of a device that keeps what it has: weights are not answered, so nothing else might tell of it.
void StageRun::believe_late(const LateDevice& one) {
  if (!options.learn) return;
  const DeviceId id(one.device);
  rates.slowed(id, one.likely * kCautious);
  rates.begin_again(id, book(one.device).slow_answer);
  guessed[one.device] = false;
}

void StageRun::slow_down(std::int32_t id, double factor) {
  const fleet::DeviceProfile& profile = book(id).profile;
  book(id).uplink = profile.uplink.value() / factor;
  book(id).downlink = profile.downlink.value() / factor;
  book(id).compute = profile.compute.value() / factor;
}

// Sequences go to others for so long.
void StageRun::expect_weights(std::int32_t id, Seconds in) {
  if (book(id).contributed) return;
  for (StageState& of : stage) {
    for (Host& host : of.hosts) {
      if (host.device == id) host.ready = fleet.now() + in;
    }
  }
}

// What finds no room while sequences pass finds it when they have passed, if there is any.
void StageRun::take_back() {
  bool stuck = at(lowest).backward_left == 0;
  for (std::int32_t s = 0; s <= top(); ++s) stuck = stuck || (at(s).hosts.empty() && progress.left_of(s) > 0);
  if (!stuck || dismissed.empty()) return;
  const std::map<std::int32_t, double> again = std::exchange(dismissed, {});
  for (const fleet::DeviceProfile& profile : found_profiles()) {
    const auto id = static_cast<std::int32_t>(profile.id.value);
    const auto found = again.find(id);
    if (found == again.end()) continue;
    open_book(profile);
    slow_down(id, found->second);
    taken_back.insert(id);
  }
  call_all_helpers();
  try_again();
}

}  // namespace cleave::sched::stages
