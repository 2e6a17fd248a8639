// plan_stages() and its variants: which kinds of layout are searched, and which one is taken by its forecast. Kinds:
// stages at once, data-parallel, with the head in parts, in rounds, and for fewer devices.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"
#include "stages/data_parallel.hpp"
#include "stages/fewer_devices.hpp"
#include "stages/finish.hpp"
#include "stages/layout.hpp"
#include "stages/refusal.hpp"
#include "stages/rounds.hpp"
#include "stages/search.hpp"

namespace cleave::plan {

namespace {

// Numbers of parts that are tried beyond the fewest, where those leave no room for sums.
constexpr std::int64_t kMoreParts = 3;

// Numbers of parts of the head that are to be tried, in this order. One part (the whole head) where some device can
// hold it. Otherwise the least number for which twice as many devices have room for a part, and some larger ones. More
// parts than must be are not worth it: each part returns partial sums for all rows.
std::vector<std::int64_t> head_parts_for(const StageWork& work, std::span<const fleet::DeviceProfile> devices) {
  const auto body = std::ssize(work.pieces) - 1;
  const model::Piece& head = work.pieces.back();
  if (body == 0 || stages::head_pieces(work) == 0 || head.norm_elements == 0 ||
      !work.pieces[static_cast<std::size_t>(body - 1)].backward)
    return {1};
  const std::int64_t blocks = vocabulary_blocks(head.units);
  const std::int64_t most = std::min<std::int64_t>(blocks, std::ssize(devices) / 2);
  for (std::int64_t parts = 1; parts <= most; ++parts) {
    const StageWork cut = with_head_parts(work, parts);
    double needed = 0;
    for (std::int64_t i = body; i < std::ssize(cut.pieces); ++i) {
      const stages::StageDraft part(StageCost(cut, i, i + 1, kChunkTokens));
      needed = std::max(needed, static_cast<double>(part.cost.least_replica().value()));
    }
    const auto able = std::ranges::count_if(
        devices, [&](const fleet::DeviceProfile& of) { return static_cast<double>(of.memory.value()) >= needed; });
    if (able < (parts == 1 ? 1 : 2 * parts)) continue;
    if (parts == 1) return {1};
    std::vector<std::int64_t> counts(static_cast<std::size_t>(std::min(kMoreParts, most - parts) + 1));
    std::iota(counts.begin(), counts.end(), parts);
    return counts;
  }
  return {1};
}

StagePlan finished(const stages::Problem& problem, const stages::Layout& layout, double forecast) {
  StagePlan plan = stages::finish(problem, layout);
  plan.forecast = Seconds(forecast);
  plan.chain = Seconds(stages::chain_time(problem, layout, false));
  return plan;
}

// Rounds give each stage more replicas at a time. Where stages have on average this many without rounds, they gain
// nothing.
constexpr double kFewReplicas = 3;

struct Found {
  std::vector<StagePlan> plans;  // the best first
  bool memory_is_short = true;   // no layout fits the usual settings

  [[nodiscard]] bool calls_for_rounds() const {
    if (plans.empty()) return true;
    double replicas = 0;
    for (const Stage& stage : plans.front().stages) replicas += static_cast<double>(stage.replicas.size());
    return memory_is_short && replicas < kFewReplicas * static_cast<double>(plans.front().stages.size());
  }
};

Found layouts_at_once(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                      const StageOptions& options) {
  for (const std::int64_t parts : head_parts_for(work, devices)) {
    const StageWork cut = with_head_parts(work, parts);
    const stages::Problem problem = stages::problem_of(cut, devices, options);
    stages::Search search = stages::searched(problem, std::min(options.chunk, work.seq), false);
    search.level();
    std::vector<StagePlan> whole = stages::data_parallel_layouts(problem, options.chunk);
    if (!whole.empty() &&
        (!search.best() || whole.front().forecast.value() < stages::forecast(problem, *search.best(), true)))
      return {{std::move(whole.front())}, false};
    if (search.best()) return {{finished(problem, *search.best(), search.time())}, !search.is_usual()};
  }
  return {};
}

std::vector<StagePlan> layouts_in_rounds(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                         const StageOptions& options) {
  for (const std::int64_t parts : head_parts_for(work, devices)) {
    std::vector<StagePlan> plans = stages::layouts_in_rounds(with_head_parts(work, parts), devices, options);
    if (!plans.empty()) return plans;
  }
  return {};
}

// The layout with the least forecast for these devices, without leaving devices out.
std::optional<StagePlan> find_for(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                  const StageOptions& options) {
  Found found = layouts_at_once(work, devices, options);
  if (options.rounds && found.calls_for_rounds()) {
    std::vector<StagePlan> rounds = layouts_in_rounds(work, devices, options);
    if (!rounds.empty() && (found.plans.empty() || rounds.front().forecast < found.plans.front().forecast))
      return std::move(rounds.front());
  }
  if (found.plans.empty()) return std::nullopt;
  return std::move(found.plans.front());
}

}  // namespace

std::vector<StageFleet> stage_fleets(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                     const StageOptions& options) {
  if (work.pieces.empty() || devices.empty()) return {};
  std::optional<StagePlan> found = find_for(work, devices, options);
  std::vector<StageFleet> fleets;
  if (!found) {  // some weak device may be in the way of the others
    if (options.leave_out && devices.size() <= kSmallFleet)
      stages::try_without_weak_ones(
          work, devices, [&](const auto& fewer) { return find_for(work, fewer, options); }, devices.size(),
          options.threads, fleets);
    return fleets;
  }
  fleets.push_back({{devices.begin(), devices.end()}, std::move(*found)});
  if (!options.leave_out) return fleets;
  const StagePlan& of_all = fleets.front().plan;
  StageOptions for_fewer = options;  // rounds send weights twice: no rounds for what all devices hold at once
  for_fewer.rounds = options.rounds && of_all.rounds() > 1;
  const stages::FindLayout find = [&](const auto& fewer) { return find_for(work, fewer, for_fewer); };
  if (stages::too_many(of_all, work, options.server)) {
    stages::leave_out(work, find, options.threads, fleets);
  } else if (of_all.rounds() > 1) {
    // Every device that can holds a stage of a round, and the round takes as long as the slowest of them.
    stages::try_without_weak_ones(work, devices, find, devices.size() / 2, options.threads, fleets);
  } else if (devices.size() <= kSmallFleet) {
    // A stage with one replica takes as long as that device, however weak it is. Rehearsals decide.
    stages::try_without_weak_ones(work, devices, find, devices.size(), options.threads, fleets);
  }
  return fleets;
}

std::optional<StagePlan> find_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                     const StageOptions& options) {
  std::vector<StageFleet> fleets = stage_fleets(work, devices, options);
  if (fleets.empty()) return std::nullopt;
  return std::move(fleets.front().plan);
}

namespace {

Found candidates_of(const StageWork& cut, std::span<const fleet::DeviceProfile> devices, const StageOptions& options,
                    std::size_t most) {
  const stages::Problem problem = stages::problem_of(cut, devices, options);
  std::vector<StagePlan> plans;
  stages::Search search = stages::searched(problem, std::min(options.chunk, cut.seq), true);
  std::vector<StagePlan> whole = stages::data_parallel_layouts(problem, options.chunk);
  if (!search.best()) {
    whole.resize(std::min(whole.size(), most));
    return {std::move(whole), false};
  }
  const bool memory_is_short = !search.is_usual();
  search.balance_processors();
  search.use_fewer_devices();
  search.even_times(false);
  if (search.may_keep()) search.even_times(true);
  search.hasten_owners();
  search.level_all();
  search.level();
  plans.push_back(finished(problem, *search.best(), search.time()));
  const std::size_t stages = search.best()->stages.size(), owners = search.best()->owners.size();
  const double time = stages::forecast(problem, *search.best(), true);
  // What find_stages() takes first.
  const bool whole_first = !whole.empty() && whole.front().forecast.value() < time;
  plans.insert(whole_first ? plans.begin() : plans.end(), std::make_move_iterator(whole.begin()),
               std::make_move_iterator(whole.end()));
  for (const stages::Search::Candidate& candidate : std::move(search).candidates()) {
    const bool best =
        candidate.time == time && candidate.layout.stages.size() == stages && candidate.layout.owners.size() == owners;
    if (plans.size() >= most) break;
    if (best) continue;
    StagePlan plan = finished(problem, candidate.layout, candidate.time);
    if (within_memory(problem, plan)) plans.push_back(std::move(plan));
  }
  std::stable_sort(plans.begin() + 1, plans.end(),
                   [](const StagePlan& a, const StagePlan& b) { return a.forecast < b.forecast; });
  plans.resize(std::min(plans.size(), most));
  return {std::move(plans), memory_is_short};
}

}  // namespace

std::vector<StagePlan> stage_candidates(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                        const StageOptions& options, std::size_t most) {
  if (work.pieces.empty() || devices.empty()) return {};
  Found found;
  for (const std::int64_t parts : head_parts_for(work, devices)) {
    found = candidates_of(with_head_parts(work, parts), devices, options, most);
    if (!found.plans.empty()) break;
  }
  if (!options.rounds || !found.calls_for_rounds()) return std::move(found.plans);
  std::vector<StagePlan> rounds = layouts_in_rounds(work, devices, options);
  if (rounds.empty()) return std::move(found.plans);
  std::vector<StagePlan>& plans = found.plans;
  const bool rounds_first = plans.empty() || rounds.front().forecast < plans.front().forecast;
  plans.insert(rounds_first ? plans.begin() : plans.begin() + 1, std::make_move_iterator(rounds.begin()),
               std::make_move_iterator(rounds.end()));
  std::stable_sort(plans.begin() + 1, plans.end(),
                   [](const StagePlan& a, const StagePlan& b) { return a.forecast < b.forecast; });
  plans.resize(std::min(plans.size(), most));
  return std::move(found.plans);
}

StagePlan plan_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                      const StageOptions& options) {
  if (work.pieces.empty())
    throw InputError("layers of this family have no halves between which only the residual stream passes, as stages do",
                     "plan.layout: tiles");
  if (devices.empty()) throw InputError("there are no devices");
  std::optional<StagePlan> plan = find_stages(work, devices, options);
  if (!plan) {
    const StageWork cut = with_head_parts(work, head_parts_for(work, devices).front());
    stages::refuse(stages::problem_of(cut, devices, options));
  }
  return std::move(*plan);
}

}  // namespace cleave::plan