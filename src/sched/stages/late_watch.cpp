// The time that went by, against what was done in it.
#include "stages/late_watch.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace cleave::sched::stages {

namespace {

constexpr double kLooks = 4;          // looks after which a device that is not late gets a new window
constexpr double kWatchedOn = 2;      // factor from which on it keeps its window
constexpr std::int64_t kAnswers = 2;  // answers in a row that took too long, before they make a device late
constexpr double kRounding = 1e-9;
// A device is judged only if its own time is at least this share of the time that went by; the rest is waiting for the
// server's interface, and latency.
constexpr double kOwnTime = 0.25;
// Between two looks, of the time since the first: a step that takes many times as long as was thought is looked at less
// often, lest looks are all that is done.
constexpr double kLookShare = 1.0 / 400;

}  // namespace

LateWatch::Device& LateWatch::at(std::int32_t device) {
  if (devices_.size() <= static_cast<std::size_t>(device)) devices_.resize(static_cast<std::size_t>(device) + 1);
  return devices_[static_cast<std::size_t>(device)];
}

void LateWatch::begin_window(Device& of, const Times& to_do, Seconds now) const {
  of.since = of.idle_from = now.value();
  of.idle = of.idle_before = 0;
  of.answers = false;
  of.messages = 2 * of.latency;
  of.port = port_;
  of.before = to_do;
  of.to_come = to_do[kCompute];
  of.at_processor = std::min(of.backlog, std::max(0.0, of.computes - to_do[kCompute]));
  of.before[kCompute] = of.computes;  // what is down the link may wait for the processor
  of.sent = {};
}

void LateWatch::begin(Seconds now, Seconds every, const fleet::ServerProfile& server,
                      std::span<const timing::DeviceState> there) {
  devices_.clear();
  server_ = server;
  port_ = worst_ = 0;
  every_ = every;
  began_ = now;
  next_ = now + every;
  for (const timing::DeviceState& state : there) {
    const auto id = static_cast<std::int32_t>(state.profile.id.value);
    open(id, now);
    at(id).unseen = false;
    at(id).latency = (state.profile.latency + state.profile.jitter).value();
    at(id).computes = state.compute_busy.value();
    at(id).seen = still(state);
    begin_window(at(id), still(state), now);
  }
}

void LateWatch::open(std::int32_t device, Seconds now) {
  Device& of = at(device);
  of = Device{};
  of.looked = now.value();
  of.open = of.unseen = true;
  begin_window(of, {}, now);
}

double LateWatch::sent(const fleet::DeviceProfile& profile, const plan::PanelRun& run, bool wants_answer, Seconds now) {
  Device& of = at(static_cast<std::int32_t>(profile.id.value));
  const Times all{(run.down() / profile.downlink).value(), (run.flops() / profile.compute).value(),
                  (run.up() / profile.uplink).value()};
  const Times panel{(run.each.down / profile.downlink).value(), (run.each.flops / profile.compute).value(),
                    ((run.each.up + run.last_up) / profile.uplink).value()};
  for (std::size_t r = 0; r < kResources; ++r) {
    of.sent[r] += all[r];
    (now.value() == of.looked ? of.seen : of.since_look)[r] += all[r];
    of.largest[r] = std::max(of.largest[r], panel[r]);
  }
  if (!wants_answer) return 0;
  of.computes += all[kCompute];
  if (of.in_hand++ == 0) of.idle += now.value() - of.idle_from;
  // While one message is on its way the device works at its other tasklets. It rests only if all are on their way.
  of.messages += of.latency / static_cast<double>(of.in_hand);
  return all[kCompute];
}

void LateWatch::answered(std::int32_t device, double computes, Seconds now) {
  Device& of = at(device);
  of.computes -= computes;
  of.answers = true;
  of.messages += of.latency / static_cast<double>(of.in_hand);
  if (--of.in_hand == 0) of.idle_from = now.value();
}

bool LateWatch::measured(const fleet::DeviceProfile& profile, const timing::Measured& measured) {
  const std::array<std::pair<Seconds, Seconds>, kResources> took{
      std::pair{measured.down, measured.bytes_down / profile.downlink},
      std::pair{measured.compute, measured.flops / profile.compute},
      std::pair{measured.up, measured.bytes_up / profile.uplink}};
  const auto& [time, believed] = *std::ranges::max_element(took, {}, [](const auto& of) { return of.first; });
  if (time.value() <= 0 || believed.value() <= 0) return false;
  Device& of = at(static_cast<std::int32_t>(profile.id.value));
  const double factor = time / believed;
  if (factor < kLate) {
    of.slow = 0;
    return false;
  }
  of.slower = of.slow++ == 0 ? factor : std::min(of.slower, factor);
  return true;
}

void LateWatch::count(Device& of, const timing::DeviceState& state, Seconds now) {
  const Times to_do = still(state);
  const double down = std::max(0.0, of.seen[kDown] + of.since_look[kDown] - to_do[kDown]),
               up = std::max(0.0, of.seen[kUp] + of.since_look[kUp] - to_do[kUp]);
  port_ += down * (state.profile.downlink.value() / server_.nic_out.value()) +
           up * (state.profile.uplink.value() / server_.nic_in.value());
  const double came = std::max(0.0, of.seen[kCompute] + of.since_look[kCompute] - to_do[kCompute]);
  of.backlog = std::max(0.0, of.backlog - (now.value() - of.looked)) + came;
  of.loads = to_do[kDown] > of.since_look[kDown] * (1 + kRounding);
  of.seen = to_do;
  of.since_look = {};
  of.looked = now.value();
}

std::vector<LateDevice> LateWatch::look(Seconds now, std::span<const timing::DeviceState> there) {
  next_ = now + std::max(every_, (now - began_) * kLookShare);
  double queue = 0;  // seconds of the interface for one panel of each device: one that waits there counts as carried
  for (const timing::DeviceState& state : there) {
    const auto id = static_cast<std::int32_t>(state.profile.id.value);
    Device& of = at(id);
    if (!of.open) continue;
    count(of, state, now);
    queue += of.largest[kDown] * (state.profile.downlink.value() / server_.nic_out.value()) +
             of.largest[kUp] * (state.profile.uplink.value() / server_.nic_in.value());
  }
  std::vector<LateDevice> late;
  std::vector<double> factors;
  for (const timing::DeviceState& state : there) {
    const auto id = static_cast<std::int32_t>(state.profile.id.value);
    Device& of = at(id);
    if (!of.open) continue;
    const Times to_do = still(state);
    of.latency = (state.profile.latency + state.profile.jitter).value();
    if (std::exchange(of.unseen, false)) {
      of.computes += to_do[kCompute];
      begin_window(of, to_do, now);
      continue;
    }
    if (of.in_hand == 0) of.idle += now.value() - std::exchange(of.idle_from, now.value());
    // Weights are not answered, but the link was busy while there were more of them.
    if (of.loads) of.idle = of.idle_before;
    of.idle_before = of.idle;
    double carried = 0, most = 0;
    const auto gone = [&](std::size_t r) { return of.before[r] + of.sent[r] - to_do[r]; };
    const auto carries = [&](std::size_t r) { return gone(r) > kRounding * (of.before[r] + of.sent[r]); };
    const bool moves = of.answers || carries(0) || carries(2);
    for (std::size_t r = 0; r < kResources; ++r) {
      // If nothing came down, the processor had only what was there before, and nothing tells how much of it was done.
      const bool silent = r == 1 && !moves;
      const double its = std::max(0.0, silent ? of.to_come - to_do[kCompute] : gone(r));
      carried += its + of.largest[r];  // the panel under way when the window began counts for nothing
      if (silent) carried += of.at_processor;
      // A panel counts when it is begun, so the last one may not be done. To be on the safe side it is not counted: a
      // device that is believed too fast holds up the step, one that is believed too slow corrects that with its first
      // answer.
      most = std::max({most, its - of.largest[r], of.largest[r] / 2});
    }
    const double worked = now.value() - of.since - of.idle - of.messages - (port_ - of.port) - queue;
    const bool judged = carried > 0 && worked > kOwnTime * (now.value() - of.since - of.idle);
    const double by_answers = of.slow >= kAnswers ? of.slower : 0;
    const double factor = std::max(judged ? worked / carried : 0, by_answers);
    if (factor > 0) of.factor = factor;
    if (of.factor > 0) factors.push_back(of.factor);
    worst_ = std::max(worst_, factor);
    if (factor >= kLate) late.push_back({id, factor, by_answers > 0 ? by_answers : std::max(factor, worked / most)});
    // A new window begins only if something was seen to be done: a silent device keeps its window until it is clear
    // how late it is.
    const bool rests = of.in_hand == 0 && !of.loads;
    if (rests || (moves && factor < kWatchedOn && now.value() - of.since >= kLooks * every_.value()))
      begin_window(of, to_do, now);
  }
  if (late.empty()) return late;
  const auto middle = factors.begin() + std::ssize(factors) / 2;
  std::ranges::nth_element(factors, middle);
  const double others = std::max(1.0, *middle);
  std::erase_if(late, [&](const LateDevice& one) { return one.factor < kLate * others; });
  if (static_cast<double>(late.size()) > kMost * static_cast<double>(factors.size())) return {};
  std::ranges::stable_sort(late, std::ranges::greater{}, &LateDevice::factor);
  return late;
}

}  // namespace cleave::sched::stages
