// Candidates by forecast, each rehearsed for as long as it can still be the quickest.
#include "stages/stage_planner.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <numeric>
#include <ranges>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "cleave/base/lookahead.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "stages/exchanges.hpp"

namespace cleave::sched::stages {

namespace {

// A step's forecast is at most this x its time: a candidate whose forecast is longer than this x the best time is not
// rehearsed.
constexpr double kTrusted = 1.25;
// The same where the server's interface is the bottleneck: its bytes are known, and steps took at least 0.944 of their
// forecasts.
constexpr double kTrustedBehind = 1.07;
// Most candidates of a fleet.
constexpr std::size_t kRehearsedLayouts = 400;
// Most passages of all rehearsals together: about a second of a core.
constexpr std::int64_t kMostPassages = 1'000'000;
// The share of these that exchanges may take, in addition.
constexpr double kExchanges = 0.5;
// Candidates of a fleet that is not small are rehearsed up to this number of devices, if the chain of sequences takes
// no more than kChain of the step, or the quickest processor is more than kUnlikeRates as fast as the slowest.
// Forecasts are best for chains, and worst for waiting for slow processors.
constexpr std::size_t kMostRehearsedDevices = 2048;
constexpr double kChain = 0.75, kUnlikeRates = 2.5;
// With more devices than this a passage takes longer: fewer passages, so that planning takes no more than some seconds.
constexpr std::size_t kManyDevices = 512;
constexpr std::int64_t kPassagesOfMany = 500'000;
// If a step has so many chunks that kMostPassages are not enough for this many layouts, these are rehearsed all the
// same, with up to this many passages.
constexpr std::int64_t kFewLayouts = 4, kPassagesOfFew = 2'000'000;
// Most fleets that leave devices out and are rehearsed, beside the fleet of all devices.
constexpr std::size_t kSmallerFleets = 8;
// Of these, the number whose candidates are rehearsed too, not only their own plans (wants_candidates()).
constexpr std::size_t kCandidatesOfSmaller = 2;
// A core of 2.4 GHz rehearses about this many passages a second; between two steps it may take this share of a step.
constexpr double kPassagesPerSecond = 500'000, kPartOfStep = 0.05;

std::int64_t replicas_of(const plan::StagePlan& plan) {
  std::int64_t sum = 0;
  for (const plan::Stage& stage : plan.stages) sum += std::ssize(stage.replicas);
  return sum;
}

// How unlike two layouts are, for comparison: first in the number of stages, then in whether sequences are kept, the
// length of chunks, groups of owners, replicas, owners.
auto unlike(const plan::StagePlan& one, const plan::StagePlan& other) {
  const auto keeping = [](const plan::StagePlan& plan) {
    return std::ranges::any_of(plan.stages, [](const plan::Stage& stage) { return stage.kept_slots() > 0; });
  };
  const auto groups = [](const plan::StagePlan& plan) { return std::reduce(plan.groups.begin(), plan.groups.end()); };
  return std::tuple(std::abs(std::ssize(one.stages) - std::ssize(other.stages)), keeping(one) != keeping(other),
                    one.chunk != other.chunk, std::abs(groups(one) - groups(other)),
                    std::abs(replicas_of(one) - replicas_of(other)),
                    std::abs(std::ssize(one.owners) - std::ssize(other.owners)));
}

std::vector<fleet::DeviceProfile> numbered(std::vector<fleet::DeviceProfile> devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) devices[i].id = DeviceId(static_cast<std::int32_t>(i));
  return devices;
}

// The index of a device, as an id. Requires: `devices` is in order of ids.
DeviceId place_in(const std::vector<fleet::DeviceProfile>& devices, DeviceId id) {
  const auto at = std::ranges::lower_bound(devices, id, {}, &fleet::DeviceProfile::id) - devices.begin();
  return DeviceId(static_cast<std::int32_t>(at));
}

template <class NumberOf>
void renumber(plan::StagePlan& plan, NumberOf number_of) {
  for (plan::Stage& stage : plan.stages) {
    for (plan::StageReplica& replica : stage.replicas) replica.device = number_of(replica.device);
  }
  for (plan::GradientOwner& owner : plan.owners) owner.device = number_of(owner.device);
}

// Whether a fleet's plan is taken by its forecast, without a comparison with its other candidates. In small fleets
// forecasts are off by up to a quarter, since stages have few replicas there. `own_plans`: the question is how many
// devices take part, so of fleets that are not small only the plan of each is looked at. That is so first where the
// server's interface is the bottleneck: there, forecasts of candidates for still fewer devices are shorter than any
// step.
bool settled(const plan::StageFleet& fleet, bool own_plans) {
  if (fleet.devices.size() <= plan::kSmallFleet) return false;
  if (fleet.devices.size() > kMostRehearsedDevices || own_plans) return true;
  if (fleet.plan.rounds() > 1) return true;
  const auto [slowest, quickest] = std::ranges::minmax(fleet.devices, {}, &fleet::DeviceProfile::compute);
  return fleet.plan.chain > fleet.plan.forecast * kChain && quickest.compute <= slowest.compute * kUnlikeRates;
}

// Keeps, of fleets in order of their forecasts, a few that may be the quickest. The fleet of all devices is kept if it
// may be, and always if it is small, since forecasts of small fleets are less precise.
void keep_likely(std::vector<plan::StageFleet>& fleets, std::size_t all) {
  const Seconds least = fleets.front().plan.forecast;
  std::size_t smaller = 0;
  std::erase_if(fleets, [&](const plan::StageFleet& fleet) {
    const bool small = fleet.devices.size() == all && all <= plan::kSmallFleet;
    const bool likely = small || fleet.plan.forecast <= least * kTrusted;
    return !likely || (fleet.devices.size() < all && ++smaller > kSmallerFleets);
  });
}

// Whether candidates of a fleet that is not small are rehearsed, even where the server's interface is the bottleneck.
bool wants_candidates(const plan::StageFleet& fleet) {
  return fleet.devices.size() > plan::kSmallFleet && fleet.devices.size() <= kManyDevices && !settled(fleet, false);
}

// The fleets that want candidates, and whose own plans may take less than `quickest`. The fleet of `first` devices
// comes first, the others in order of their forecasts.
std::vector<const plan::StageFleet*> wanting_candidates(std::span<const plan::StageFleet> fewer, Seconds quickest,
                                                        std::size_t first) {
  std::vector<const plan::StageFleet*> wanting;
  for (const plan::StageFleet& fleet : fewer) {
    const bool likely = fleet.plan.forecast <= quickest * kTrustedBehind;
    if (likely && wants_candidates(fleet)) wanting.push_back(&fleet);
  }
  std::ranges::stable_partition(wanting, [&](const auto* fleet) { return fleet->devices.size() == first; });
  return wanting;
}

}  // namespace

StagePlanner::Effort StagePlanner::Effort::after(const plan::StagePlan& plan) {
  Effort effort;
  effort.like = &plan;
  const double passages = plan.forecast.value() * kPartOfStep * kPassagesPerSecond;
  if (passages < static_cast<double>(effort.passages)) effort.passages = static_cast<std::int64_t>(passages);
  return effort;
}

StagePlanner::StagePlanner(const model::StepGraph& graph, StageSchedulerOptions options)
    : graph_(graph), options_(std::move(options)), work_(plan::stage_work_of(graph, options_.wire)) {
  options_.rehearse = false;
  options_.rehearsal = true;
}

std::int64_t StagePlanner::passages(const plan::StagePlan& plan) const {
  const std::int64_t chunks = (work_.seq + plan.chunk - 1) / plan.chunk;
  return 2 * work_.batch * chunks * std::ssize(plan.stages);
}

std::int64_t StagePlanner::most_passages(const plan::StagePlan& first, const plan::StageFleet& fleet) const {
  const std::int64_t most = fleet.devices.size() > kManyDevices ? kPassagesOfMany : kMostPassages;
  return std::max(most, std::min(kFewLayouts * passages(first), kPassagesOfFew));
}

std::optional<Seconds> StagePlanner::rehearse(const plan::StagePlan& plan,
                                              const std::vector<fleet::DeviceProfile>& devices, Seconds limit) const {
  return perform(plan, devices, Limit(limit.value()), {}).time;
}

StagePlanner::Rehearsal StagePlanner::perform(const plan::StagePlan& plan,
                                              const std::vector<fleet::DeviceProfile>& devices, const Limit& limit,
                                              const std::atomic<bool>& stop) const {
  SimulatedFleet fleet(devices, options_.stages.server, options_.wire);
  StageScheduler scheduler(fleet, graph_, plan, options_);
  Rehearsal rehearsal;
  try {
    const auto may_go_on = [&] {
      if (stop.load() || fleet.now().value() > limit.load()) return false;
      rehearsal.before = fleet.now();
      return true;
    };
    const Seconds time = scheduler.run(may_go_on).time;
    if (time.value() <= limit.load()) rehearsal.time = time;
  } catch (const Interrupted&) {}
  const StageTally& tally = scheduler.tally();
  for (const auto* chunks : {&tally.forward, &tally.backward})
    rehearsal.passages += std::reduce(chunks->begin(), chunks->end());
  rehearsal.usage.assign(fleet.usage().begin(), fleet.usage().end());
  return rehearsal;
}

std::optional<StagePlanner::Found> StagePlanner::quickest(std::vector<fleet::DeviceProfile> devices,
                                                          Effort effort) const {
  for (fleet::DeviceProfile& device : devices) device = fleet::without_jitter(device);
  std::vector<plan::StageFleet> fleets = plan::stage_fleets(work_, numbered(devices), options_.stages);
  if (fleets.empty()) return std::nullopt;
  keep_likely(fleets, devices.size());
  // The fleet of all devices is rehearsed apart from smaller ones, so that what is rehearsed of these does not depend
  // on whether it is there.
  std::vector<plan::StageFleet> fewer, all;
  for (plan::StageFleet& fleet : fleets)
    (fleet.devices.size() < devices.size() ? fewer : all).push_back(std::move(fleet));
  std::optional<Best> best;
  if (fewer.empty()) {
    // A single candidate need not be rehearsed: it would be compared with nothing.
    if (!settled(all.front(), false)) rehearse_fleets(all, false, effort, best);
  } else {
    rehearse_smaller_and_all(fewer, all, effort, best);
  }
  const auto real = [&](DeviceId id) { return devices[static_cast<std::size_t>(id.value)].id; };
  if (!best) {
    plan::StagePlan& by_forecast = (fewer.empty() ? all : fewer).front().plan;
    renumber(by_forecast, real);
    return Found{std::move(by_forecast), std::nullopt};
  }
  if (best->devices.size() <= plan::kSmallFleet) {
    const double most = kExchanges * static_cast<double>(std::min(effort.passages, kMostPassages));
    exchange(best->plan, numbered(best->devices), std::move(best->rehearsal), static_cast<std::int64_t>(most));
  }
  renumber(best->plan, [&](DeviceId id) { return real(best->devices[static_cast<std::size_t>(id.value)].id); });
  const Seconds time = best->plan.forecast;
  return Found{std::move(best->plan), time};
}

void StagePlanner::rehearse_smaller_and_all(std::span<const plan::StageFleet> fewer,
                                            std::span<const plan::StageFleet> all, Effort effort,
                                            std::optional<Best>& best) const {
  const bool candidates = std::ranges::any_of(fewer, wants_candidates) || std::ranges::any_of(all, wants_candidates);
  effort.passages /= candidates ? 3 : 2;  // plans of smaller fleets, candidates of these, the fleet of all devices
  rehearse_fleets(fewer, true, effort, best);
  if (!best) return;
  // Candidates have to be quicker than the best of these plans.
  const std::size_t most = effort.like == nullptr ? kCandidatesOfSmaller : 1;
  Effort of_one = effort;
  of_one.passages = std::min(effort.passages, kMostPassages) / static_cast<std::int64_t>(most);
  for (const plan::StageFleet* fleet : wanting_candidates(fewer, best->plan.forecast, best->devices.size()) |
                                           std::views::take(static_cast<std::ptrdiff_t>(most))) {
    rehearse_fleets(std::span(fleet, 1), false, of_one, best);
  }
  if (all.empty()) return;
  // Candidates of the fleet of all devices only if there is time for two.
  const bool own_plan = !wants_candidates(all.front()) || 2 * passages(all.front().plan) > effort.passages;
  rehearse_fleets(all, own_plan, effort, best);
}

void StagePlanner::rehearse_fleets(std::span<const plan::StageFleet> fleets, bool own_plans, const Effort& effort,
                                   std::optional<Best>& best) const {
  struct Proposal {
    plan::StagePlan plan;
    const plan::StageFleet* fleet;
  };
  std::vector<Proposal> list, others;  // first the plan that would be taken without rehearsals
  for (const plan::StageFleet& fleet : fleets) {
    std::vector<plan::StagePlan> plans;
    if (settled(fleet, own_plans)) {
      plans.push_back(fleet.plan);
      renumber(plans.front(), [&](DeviceId id) { return place_in(fleet.devices, id); });
    } else {
      plans = plan::stage_candidates(work_, numbered(fleet.devices), options_.stages, kRehearsedLayouts);
    }
    for (std::size_t i = 0; i < plans.size(); ++i)
      (i == 0 && list.empty() ? list : others).push_back({std::move(plans[i]), &fleet});
  }
  std::size_t always =
      best && std::ranges::all_of(fleets, [&](const auto& of) { return settled(of, own_plans); }) ? 0 : list.size();
  std::ranges::stable_sort(others, {}, [](const Proposal& of) { return of.plan.forecast; });
  std::ranges::move(others, std::back_inserter(list));
  if (std::ssize(list) < (own_plans ? 1 : 2)) return;
  std::int64_t left =
      std::min(effort.passages, own_plans ? kMostPassages : most_passages(list.front().plan, *list.front().fleet));
  if (passages(list[0].plan) + (list.size() > 1 ? passages(list[1].plan) : 0) > left) return;
  if (effort.like != nullptr) {
    const auto alike = std::min_element(list.begin(), list.end(), [&](const auto& a, const auto& b) {
      return unlike(a.plan, *effort.like) < unlike(b.plan, *effort.like);
    });
    const auto place = list.begin() + static_cast<std::ptrdiff_t>(always);
    if (alike >= place) std::rotate(place, alike, std::next(alike));
    always = std::min(always + 1, list.size());
  }
  Limit least = best ? best->plan.forecast.value() : std::numeric_limits<double>::infinity();
  const auto wanted = [&](std::size_t i) {
    const double quicker = own_plans && settled(*list[i].fleet, own_plans) ? kTrustedBehind : kTrusted;
    return i < always || list[i].plan.forecast.value() <= least.load() * quicker;
  };
  Lookahead<Rehearsal> rehearsals(options_.stages.threads, [&](std::size_t i, const std::atomic<bool>& stop) {
    return perform(list[i].plan, numbered(list[i].fleet->devices), least, stop);
  });
  for (std::size_t i = 0; i < list.size() && left > 0; ++i) {
    if (!wanted(i)) continue;
    Rehearsal rehearsal = rehearsals.take(i, list.size(), wanted);
    // It may have been under way when another one turned out quicker, and have passed the lower limit already. What
    // counts is where that would have stopped it.
    if (const Seconds limit(least.load()); !rehearsal.holds_for(limit))
      rehearsal = rehearsals.take(i, list.size(), wanted);
    left -= rehearsal.passages;
    if (!rehearsal.time || rehearsal.time->value() >= least.load()) continue;
    least = rehearsal.time->value();
    best = Best{std::move(list[i].plan), list[i].fleet->devices, std::move(rehearsal)};
    best->plan.forecast = *best->rehearsal.time;
  }
}

void StagePlanner::exchange(plan::StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices, Rehearsal last,
                            std::int64_t passages) const {
  std::set<DevicePair> tried;
  std::vector<DevicePair> pairs;
  Lookahead<Rehearsal> rehearsals(options_.stages.threads, [&](std::size_t i, const std::atomic<bool>& stop) {
    const plan::StagePlan other = exchanged(plan, pairs[i]);
    return fits(other, devices) ? perform(other, devices, Limit(plan.forecast.value()), stop) : Rehearsal{};
  });
  for (bool better = true; better;) {
    better = false;
    pairs = worthwhile_exchanges(devices, last.usage);
    std::erase_if(pairs, [&](const DevicePair& pair) { return tried.contains(pair); });
    for (std::size_t i = 0; i < pairs.size() && !better; ++i) {
      if (passages <= 0) return;
      tried.insert(pairs[i]);
      Rehearsal rehearsal = rehearsals.take(i, pairs.size());
      passages -= rehearsal.passages;
      if (!rehearsal.time || *rehearsal.time >= plan.forecast) continue;
      rehearsals.drop();  // the others were exchanges in the layout before
      plan = exchanged(plan, pairs[i]);
      plan.forecast = *rehearsal.time;
      last = std::move(rehearsal);
      tried.clear();
      better = true;
    }
  }
}

}  // namespace cleave::sched::stages
