// Whether the step waits for late devices, and whether others would be done sooner.
#include "stages/run_late.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "stages/stage_run.hpp"
#include "stopwatch.hpp"

namespace cleave::sched::stages {

namespace {

constexpr double kLook = 0.01;      // share of a step from one look for late devices to the next
constexpr double kSooner = 0.05;    // share of a step by which others must be done sooner
constexpr double kBusy = 0.01;      // share of a step: a device busy for longer with the last step's work is left out
constexpr double kOfTheRest = 0.9;  // share of the time left: being done sooner than that is of no use
// The next step is planned with rates lower than a late device showed, by this factor: it may have done less than was
// counted. A device that is believed too fast holds up the step; one that is believed too slow corrects that with its
// first answers.
constexpr double kCautious = 1.6;

}  // namespace

bool LateDevices::leave_out() { return left_out_ != std::exchange(left_out_, still_at_work()); }

void LateDevices::begin() {
  dismissed_.clear();
  std::erase_if(guessed_, [](const auto& of) { return of.second; });
  taken_back_.clear();
  slowed_.clear();
  if (run_.options.watch)
    watch_.begin(run_.fleet.now(), run_.plan.forecast * kLook, run_.options.stages.server, run_.believed());
}

void LateDevices::open(std::int32_t id) {
  if (run_.options.watch) watch_.open(id, run_.fleet.now());
}

double LateDevices::sent(std::int32_t id, const plan::PanelRun& run, bool wants_answer) {
  return run_.options.watch ? watch_.sent(run_.book(id).profile, run, wants_answer, run_.fleet.now()) : 0;
}

void LateDevices::answered(std::int32_t id, double computes) {
  if (run_.options.watch) watch_.answered(id, computes, run_.fleet.now());
}

void LateDevices::measure(const Event& event) {
  const auto id = static_cast<std::int32_t>(event.device.value);
  if (!event.device.valid() || static_cast<std::size_t>(id) >= run_.device.size()) return;
  const bool slow = run_.options.watch && run_.book(id).profile.id == event.device &&
                    watch_.measured(run_.book(id).profile, event.measured);
  if (slow) run_.book(id).slow_answer = event.measured;
  if (!run_.options.learn) return;
  if (const auto guess = guessed_.find(id); guess != guessed_.end()) {
    guess->second = true;
    run_.rates.begin_again(event.device, event.measured);
  } else {
    run_.rates.observe(event.device, event.measured);
  }
}

std::set<std::int32_t> LateDevices::still_at_work() const {
  std::set<std::int32_t> busy;
  if (dismissed_.empty() && left_out_.empty()) return busy;
  for (const plan::DeviceState& state : run_.believed()) {
    const auto id = static_cast<std::int32_t>(state.profile.id.value);
    const Seconds left = std::max({state.down_busy, state.compute_busy, state.up_busy});
    if ((dismissed_.contains(id) || left_out_.contains(id)) && left > run_.plan.forecast * kBusy) busy.insert(id);
  }
  return busy;
}

double LateDevices::end_of(const LateDevice& one, const plan::DeviceState& state) {
  const std::int32_t id = one.device;
  double down = state.down_busy.value(), compute = state.compute_busy.value(), sums = 0, passed = 0;
  for (const OwnerState& of : run_.owner) {
    if (of.device != id || of.closed || of.lost) continue;
    if (of.panels == 0) sums += static_cast<double>(of.sums.value()) / state.profile.uplink.value();
    if (of.left == 0) continue;
    const auto unseen = static_cast<double>(std::ranges::count(of.seen, false) - run_.candidates.read_for_others(of));
    double own = 0, uplink = 0;
    for (const ActiveReplica& replica : run_.at(of.stage).replicas) {
      uplink += run_.book(replica.device).uplink;
      if (of.replica && replica.device == id) own = run_.book(id).uplink;
    }
    own = own > 0 ? unseen * own / uplink : 0;
    down += (unseen - own) * static_cast<double>(of.cost.operands.value()) / state.profile.downlink.value();
    compute += ((unseen - own) * of.cost.alone.value() + own * of.cost.beside.value()) / state.profile.compute.value();
    passed = std::max(passed, run_.progress.passes_in(of.stage).value());
  }
  double end = std::max(one.likely * std::max({down, compute, state.up_busy.value()}), passed) + one.likely * sums;
  // Until a device has answered something its weights may be on their way, and all its work waits for them.
  const double loading = run_.book(id).contributed ? 0 : one.likely * state.down_busy.value();
  // A sequence at this device has still to pass other stages, which takes as long as it took the first sequence of the
  // undisturbed step. With several rounds of stages that is left out.
  const double back = run_.progress.undisturbed()->opened[static_cast<std::size_t>(run_.lowest)].value();
  const double forth = run_.progress.undisturbed()->opened[static_cast<std::size_t>(run_.head)].value();
  for (std::int32_t s = 0; s <= run_.top(); ++s) {
    if (std::ranges::find(run_.at(s).replicas, id, &ActiveReplica::device) == run_.at(s).replicas.end()) continue;
    const double here = s < run_.head ? static_cast<double>(s) / static_cast<double>(run_.head) : 1;
    for (std::int64_t q = 0; q < run_.batch; ++q) {
      for (const bool returns : {false, true}) {
        const Visit& of = run_.visit(returns ? run_.backward : run_.forward, s, q);
        if (of.device != id || of.done == run_.chunks) continue;
        const double rows = static_cast<double>(run_.chunks - of.done) / static_cast<double>(run_.chunks);
        const double sends =
            rows * static_cast<double>(run_.at(s).cost.boundary(run_.work.seq).value()) / state.profile.uplink.value();
        const double way = (returns ? here : 1) * (back - forth) + (returns ? 0 : (1 - here) * forth);
        end = std::max(end, loading + one.likely * sends + (run_.plan.rounds() > 1 ? 0.0 : std::max(0.0, way)));
      }
    }
  }
  return end;
}

bool LateDevices::others_can(const std::vector<LateDevice>& late, std::size_t& who) {
  const auto is_late = [&](std::int32_t id) { return std::ranges::find(late, id, &LateDevice::device) != late.end(); };
  std::vector<Candidate> others = run_.candidates.all();
  std::erase_if(others, [&](const Candidate& one) { return is_late(one.device); });
  for (std::int32_t s = 0; s <= run_.top(); ++s) {
    if (run_.progress.left_of(s) == 0 || std::ranges::any_of(run_.at(s).replicas, [&](const ActiveReplica& replica) {
          return !is_late(replica.device);
        }))
      continue;
    if (run_.at(s).replicas.empty() || choose_helper(others, run_.at(s).cost, {.stage = s})) continue;
    for (std::size_t i = 0; i < late.size(); ++i) {
      if (std::ranges::find(run_.at(s).replicas, late[i].device, &ActiveReplica::device) != run_.at(s).replicas.end())
        who = i;
    }
    return false;
  }
  return true;
}

void LateDevices::keep_unless_sooner(std::vector<LateDevice>& late, std::vector<double>& ends) {
  const double gain = kSooner * run_.progress.undisturbed()->end.value();
  const auto keep = [&](std::size_t i) {
    late.erase(late.begin() + static_cast<std::ptrdiff_t>(i));
    ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i));
  };
  while (!late.empty()) {
    if (std::size_t who = 0; !others_can(late, who)) {
      keep(who);
      continue;
    }
    std::vector<Candidate> others = run_.candidates.all();
    std::vector<LostSums> lost;
    std::vector<std::size_t> whose;
    for (std::size_t i = 0; i < late.size(); ++i) {
      std::erase_if(others, [&](const Candidate& one) { return one.device == late[i].device; });
      for (std::size_t o = 0; o < run_.owner.size(); ++o) {
        const OwnerState& of = run_.owner[o];
        if (of.device != late[i].device || of.closed || of.lost || of.sequences.empty()) continue;
        lost.push_back(run_.recovery.lost_sums_of(static_cast<std::int32_t>(o)));
        whose.push_back(i);
      }
    }
    if (lost.empty()) return;
    const double latest = *std::ranges::max_element(ends);
    const SharedOut shared = share_out(run_.work, lost, others, kOfTheRest * run_.progress.ends_in(),
                                       Seconds(latest - gain), run_.plan.chunk, run_.candidates.interface_of(others));
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

void LateDevices::look() {
  std::vector<plan::DeviceState> states = run_.believed();
  std::erase_if(states, [&](const plan::DeviceState& state) {
    const auto id = static_cast<std::size_t>(state.profile.id.value);
    return id >= run_.device.size() || !run_.device[id].present;
  });
  const std::vector<LateDevice> all = watch_.look(run_.fleet.now(), states);
  std::erase_if(slowed_, [&](std::int32_t id) {
    if (std::ranges::find(all, id, &LateDevice::device) != all.end()) return false;
    const auto state = std::ranges::find(states, DeviceId(id), [](const auto& of) { return of.profile.id; });
    if (run_.book(id).present && state != states.end()) {
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
    run_.progress.rehearse();
    const double gain = kSooner * run_.progress.undisturbed()->end.value();
    for (const LateDevice& one : all) {
      if (taken_back_.contains(one.device)) continue;
      const auto state =
          std::ranges::find(states, DeviceId(one.device), [](const plan::DeviceState& of) { return of.profile.id; });
      const double end = end_of(one, *state);
      slow_down(one.device, one.likely);
      expect_weights(one.device, state->down_busy * one.likely);
      slowed_.insert(one.device);
      believe(one);
      if (end <= run_.progress.ends_in().value() + gain) continue;
      late.push_back(one);
      ends.push_back(end);
    }
    keep_unless_sooner(late, ends);
  }
  run_.report.planning += planning;
  if (late.empty()) return;
  for (const LateDevice& one : late) {
    dismissed_[one.device] = one.likely;
    slowed_.erase(one.device);
    ++run_.report.late;
    run_.recovery.take_from(one.device);
  }
  run_.recovery.recover();
}

// Also of a device that keeps its work: if it only gets weights, which are not answered, nothing else tells its rates.
void LateDevices::believe(const LateDevice& one) {
  if (!run_.options.learn) return;
  const DeviceId id(one.device);
  run_.rates.slowed(id, one.likely * kCautious);
  run_.rates.begin_again(id, run_.book(one.device).slow_answer);
  guessed_[one.device] = false;
}

void LateDevices::slow_down(std::int32_t id, double factor) {
  const fleet::DeviceProfile& profile = run_.book(id).profile;
  run_.book(id).uplink = profile.uplink.value() / factor;
  run_.book(id).downlink = profile.downlink.value() / factor;
  run_.book(id).compute = profile.compute.value() / factor;
}

// Sequences go to other replicas until the device's weights have come, in so many seconds.
void LateDevices::expect_weights(std::int32_t id, Seconds in) {
  if (run_.book(id).contributed) return;
  for (StageState& of : run_.stage) {
    for (ActiveReplica& replica : of.replicas) {
      if (replica.device == id) replica.ready = run_.fleet.now() + in;
    }
  }
}

// While sequences pass, work without room waits: when they have passed, memory is free. Only then, or where a stage has
// no replica at all, dismissed devices are needed.
void LateDevices::take_back() {
  bool stuck = run_.at(run_.lowest).backward_left == 0;
  for (std::int32_t s = 0; s <= run_.top(); ++s) stuck = stuck || run_.recovery.lacks_replica(s);
  if (!stuck || dismissed_.empty()) return;
  const std::map<std::int32_t, double> again = std::exchange(dismissed_, {});
  for (const fleet::DeviceProfile& profile : run_.found_profiles()) {
    const auto id = static_cast<std::int32_t>(profile.id.value);
    const auto found = again.find(id);
    if (found == again.end()) continue;
    run_.open_book(profile);
    slow_down(id, found->second);
    taken_back_.insert(id);
  }
  run_.recovery.use_newcomers();
}

}  // namespace cleave::sched::stages
