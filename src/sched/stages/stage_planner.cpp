// Candidates by forecast, each rehearsed for as long as it can still be the quickest.
#include "stages/stage_planner.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "cleave/sched/simulated_fleet.hpp"
#include "stages/exchanges.hpp"

namespace cleave::sched::stages {

namespace {

constexpr double kTrusted = 1.25;  // a forecast may be too low by so much
// Layouts are rehearsed in fleets of no more devices than this, and no more of them than these.
constexpr std::size_t kRehearsedDevices = 128, kRehearsedLayouts = 400;
// Until chunks have passed so many stages in all: about a second of a core.
constexpr std::int64_t kMostPassages = 1'000'000;
// And of exchanges.
constexpr double kExchanges = 0.5;
// And in larger fleets, where the chain of sequences takes no more of the step than this: forecasts know it best.
constexpr std::size_t kMostRehearsedDevices = 512;
constexpr double kChain = 0.75;
// A core of 2.4 GHz rehearses about this many passages a second; between steps it may do so for this part of a step.
constexpr double kPassagesPerSecond = 500'000, kPartOfStep = 0.05;

std::int64_t replicas_of(const plan::StagePlan& plan) {
  std::int64_t sum = 0;
  for (const plan::Stage& stage : plan.stages) sum += std::ssize(stage.replicas);
  return sum;
}

// Stages first, then whether sequences are kept, the length of chunks, groups of owners, replicas, owners.
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

// A plan for devices numbered from 0 is one for these.
void renumber(plan::StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices) {
  const auto real = [&](DeviceId& device) { device = devices[static_cast<std::size_t>(device.value)].id; };
  for (plan::Stage& stage : plan.stages) {
    for (plan::StageReplica& replica : stage.replicas) real(replica.device);
  }
  for (plan::GradientOwner& owner : plan.owners) real(owner.device);
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

// Of every chunk through every stage, forward and backward.
std::int64_t StagePlanner::passages(const plan::StagePlan& plan) const {
  const std::int64_t chunks = (work_.seq + plan.chunk - 1) / plan.chunk;
  return 2 * work_.batch * chunks * std::ssize(plan.stages);
}

std::optional<Seconds> StagePlanner::rehearse(const plan::StagePlan& plan,
                                              const std::vector<fleet::DeviceProfile>& devices, Seconds limit) const {
  return perform(plan, devices, limit).time;
}

StagePlanner::Rehearsal StagePlanner::perform(const plan::StagePlan& plan,
                                              const std::vector<fleet::DeviceProfile>& devices, Seconds limit) const {
  SimulatedFleet fleet(devices, options_.stages.server, options_.wire);
  StageScheduler scheduler(fleet, graph_, plan, options_);
  Rehearsal rehearsal;
  try {
    const Seconds time = scheduler.run([&] { return fleet.now() <= limit; }).time;
    if (time <= limit) rehearsal.time = time;
  } catch (const Interrupted&) {}
  const StageTally& tally = scheduler.tally();
  for (const auto* chunks : {&tally.forward, &tally.backward})
    rehearsal.passages += std::reduce(chunks->begin(), chunks->end());
  rehearsal.usage.assign(fleet.usage().begin(), fleet.usage().end());
  return rehearsal;
}

std::optional<StagePlanner::Found> StagePlanner::quickest(std::vector<fleet::DeviceProfile> devices,
                                                          Effort effort) const {
  std::vector<fleet::DeviceProfile> numbered = devices;
  for (std::size_t i = 0; i < numbered.size(); ++i) {
    numbered[i].id = DeviceId(static_cast<std::int32_t>(i));
    numbered[i].jitter = Seconds(0);
  }
  std::optional<Found> found = quickest_of_numbered(numbered, effort);
  if (found) renumber(found->plan, devices);
  return found;
}

// Forecasts of stages are up to a quarter off where a stage has few replicas, so small fleets rehearse the best ones.
std::optional<StagePlanner::Found> StagePlanner::quickest_of_numbered(const std::vector<fleet::DeviceProfile>& devices,
                                                                      Effort effort) const {
  if (devices.size() > kRehearsedDevices) {
    std::optional<plan::StagePlan> found = plan::find_stages(work_, devices, options_.stages);
    if (!found) return std::nullopt;
    const bool sure = found->rounds() > 1 || found->chain > found->forecast * kChain;
    if (devices.size() > kMostRehearsedDevices || sure) return Found{std::move(*found), std::nullopt};
  }
  std::vector<plan::StagePlan> plans = plan::stage_candidates(work_, devices, options_.stages, kRehearsedLayouts);
  if (plans.empty()) return std::nullopt;
  std::int64_t left = std::min(effort.passages, kMostPassages);
  if (plans.size() < 2 || passages(plans[0]) + passages(plans[1]) > left)
    return Found{std::move(plans[0]), std::nullopt};
  std::size_t always = 1;
  if (effort.like != nullptr) {
    const auto alike = std::min_element(plans.begin(), plans.end(), [&](const auto& a, const auto& b) {
      return unlike(a, *effort.like) < unlike(b, *effort.like);
    });
    if (alike != plans.begin()) std::rotate(plans.begin() + 1, alike, std::next(alike));
    always = 2;
  }
  Seconds least(std::numeric_limits<double>::infinity());
  std::size_t quickest = 0;
  Rehearsal of_quickest;
  for (std::size_t i = 0; i < plans.size() && left > 0; ++i) {
    if (i >= always && plans[i].forecast > least * kTrusted) continue;
    Rehearsal rehearsal = perform(plans[i], devices, least);
    left -= rehearsal.passages;
    if (!rehearsal.time || *rehearsal.time >= least) continue;
    least = *rehearsal.time;
    quickest = i;
    of_quickest = std::move(rehearsal);
  }
  plan::StagePlan best = std::move(plans[quickest]);
  best.forecast = least;
  if (devices.size() <= kRehearsedDevices) {
    const double all = kExchanges * static_cast<double>(std::min(effort.passages, kMostPassages));
    exchange(best, devices, std::move(of_quickest), static_cast<std::int64_t>(all));
  }
  return Found{std::move(best), best.forecast};
}

void StagePlanner::exchange(plan::StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices, Rehearsal last,
                            std::int64_t passages) const {
  std::set<DevicePair> tried;
  for (bool better = true; better;) {
    better = false;
    for (const DevicePair& pair : worthwhile_exchanges(devices, last.usage)) {
      if (passages <= 0) return;
      if (!tried.insert(pair).second) continue;
      plan::StagePlan other = exchanged(plan, pair);
      if (!fits(other, devices)) continue;
      Rehearsal rehearsal = perform(other, devices, plan.forecast);
      passages -= rehearsal.passages;
      if (!rehearsal.time || *rehearsal.time >= plan.forecast) continue;
      plan = std::move(other);
      plan.forecast = *rehearsal.time;
      last = std::move(rehearsal);
      tried.clear();
      better = true;
      break;
    }
  }
}

}  // namespace cleave::sched::stages
