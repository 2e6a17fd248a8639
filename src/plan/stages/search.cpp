// What the search tries, one family of settings after another.
#include "stages/search.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "stages/finish.hpp"
#include "stages/level_owners.hpp"

namespace cleave::plan::stages {

namespace {

// A candidate of other than the usual settings replaces the best one only if its forecast is at most this part of it:
// forecasts are less sure there.
constexpr double kWorth = 0.98;

// Horizons that are tried, as multiples of the time that all boundaries take on the fleet's uplinks.
constexpr double kHorizons[] = {0.3, 0.4, 0.5, 0.58, 0.66, 0.75, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0};

// Further horizons, as multiples of the best one of these.
constexpr double kNearHorizons[] = {0.93, 1.07};

// Values of Settings::largest, in layers. Where memory is ample, a few devices with fast downlinks would otherwise hold
// a stage of many layers.
constexpr double kLargest[] = {1.0, 1.33, 1.67, 2.0, 2.5};

// Owner groups are tried where the fleet's downlinks are at most so many times as fast as its uplinks.
constexpr double kAsymmetric = 4;

// Values of Settings::computing for further candidates, as multiples of the time of all FLOP on all processors.
constexpr double kUneven[] = {1.1, 1.3, 1.6};
// Further candidates with fewer devices: values of Settings::holding; horizons, as parts of the best forecast; and
// numbers of stages of equal time, as parts of the number of devices that hold stages.
constexpr double kHolding[] = {1.0, 0.7, 0.5, 0.35, 0.25, 0.15};
constexpr double kSooner[] = {0.15, 0.25, 0.35, 0.5, 0.7};
constexpr double kStagesOfDevices[] = {1.0, 0.9, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.03};
// A number of owner groups that no stage's number of replicas passes: every replica may sum by itself what it runs.
constexpr std::int64_t kGroupOfEach = 1024;
// hasten_owners() takes candidates whose chain takes at most this share of their horizon.
constexpr double kHasten = 0.9;

// The step's forecast, as a multiple of the time at which its last owner is likely to be done.
constexpr double kAfter = 1.03;

// level_all() adds a candidate only if levelled owners are done within this part of the time of the others.
constexpr double kSoonerLevelled = 0.99;

// Number of candidates whose owners level() levels first; then it looks at candidates like the best of them.
constexpr std::int64_t kLevelled = 3;

// Settings near these ones: other sizes of stages, and other shares of memory for sums.
std::vector<Settings> like(const Settings& settings, double layer) {
  std::vector<Settings> list;
  const auto with = [&](double Settings::*what, double value) {
    list.push_back(settings);
    list.back().*what = value;
  };
  for (const double factor : {0.8, 0.9, 1.1, 1.25}) with(&Settings::loading, settings.loading * factor);
  for (const double factor : {0.5, 0.75, 1.33, 2.0}) with(&Settings::deeper, settings.deeper * factor);
  for (const double more : {-0.1, 0.1}) with(&Settings::tilt, settings.tilt + more);
  for (const double sums : {0.1, 0.15, 0.25, 0.35}) with(&Settings::for_sums, sums);
  for (const double layers : kLargest) with(&Settings::largest, layers * layer);
  return list;
}

}  // namespace

template <class Change>
void Search::vary(Change change) {
  Settings settings = best_->settings;
  change(settings);
  try_settings(settings, worth_);
}
template <class Change>
void Search::vary_owners(Change change, double worth) {
  Settings settings = best_->settings;
  change(settings);
  consider(own_anew(problem_, *best_, settings), worth);
}

Search::Search(const Problem& problem, std::int64_t chunk, bool keep, bool check_memory)
    : problem_(problem), keep_(keep), check_memory_(check_memory), worth_(kWorth) {
  if (chunk > 0) chunk_ = chunk;
  double uplink = 0;
  for (const double up : problem_.up) uplink += up;
  const StageCost layer = typical_layer(*problem_.work, chunk_);
  layer_ = in_bytes(layer.weights());
  guess_ =
      in_bytes(layer.boundary(problem_.work->tokens())) * static_cast<double>(problem_.work->pieces.size()) / uplink;
}

void Search::try_settings(Settings settings, double worth) {
  settings.chunk = chunk_;
  consider(lay_out(problem_, settings), worth);
}

void Search::consider(std::optional<Layout> layout, double worth) {
  if (!layout) return;
  const double time = forecast(problem_, *layout, false);
  if (keep_) candidates_.push_back({*layout, forecast(problem_, *layout, true)});
  const bool better = !best_ || time < worth * time_;
  if (better && (!check_memory_ || within_memory(problem_, finish(problem_, *layout)))) {
    best_ = *layout;
    time_ = time;
  }
  pool_.push_back({std::move(*layout), time});
}

void Search::run() {
  for (const double factor : kHorizons) try_settings(of_horizon(guess_ * factor));
  usual_ = best_.has_value();
  if (!usual_) worth_ = 1;
  for (const std::vector<Settings>& family : settings_for_short_memory(guess_)) {
    if (best_) break;
    for (const Settings& settings : family) try_settings(settings);
  }
  if (!best_ && guess_ < Settings{}.owning) {
    for (const Settings& settings : settings_of_any_work()) try_settings(settings);
  }
  if (!best_) {
    for (const Settings& settings : settings_of_slow_downlinks(problem_)) try_settings(settings);
  }
  if (!best_) return;
  vary_owners([](Settings& s) { s.groups = 4; }, worth_);
  if (groups_may_pay()) try_groups();
  vary_owners([](Settings& s) { s.groups = 32; }, best_->settings.groups > 1 ? 1 : worth_);
  for (const double factor : {0.5, 0.8, 1.25}) vary([&](Settings& s) { s.owning *= factor; });
  for (const double sums : {0.1, 0.35}) vary([&](Settings& s) { s.for_sums = sums; });
  for (const double factor : {0.8, 1.25}) vary([&](Settings& s) { s.loading *= factor; });
  if (usual_) vary_stages();
  for (const double factor : {0.9, 1.0, 1.1})
    vary_owners([&](Settings& s) { s.due = factor * last_passage(problem_, *best_); }, worth_);
  const bool limited = !std::isinf(problem_.nic_out);
  if (limited) {
    for (const std::int64_t owners : {8, 4, 2}) vary_owners([&](Settings& s) { s.owners = owners; }, worth_);
  }
  if (groups_may_pay()) {
    for (const std::int64_t groups : {2, 4, 8, 16}) {
      vary_owners(
          [&](Settings& s) {
            s.fewest_groups = groups;
            s.groups = std::max(s.groups, groups);
          },
          worth_);
    }
  }
  if (!limited) return;
  for (const double factor : {1.25, 1.6}) {
    vary([&](Settings& s) {
      s.loading *= factor;
      s.owning *= factor;
    });
  }
}

// Smaller and larger stages at the bottom and at the top. Not where memory is short: forecasts do not tell them apart
// there.
void Search::vary_stages() {
  for (const double factor : kNearHorizons) vary([&](Settings& s) { stretch(s, factor); });
  for (const double factor : {0.65, 0.9, 1.1}) vary([&](Settings& s) { s.loading *= factor; });
  for (const double tilt : {0.0, 0.1, 0.3, 0.4}) vary([&](Settings& s) { s.tilt = tilt; });
  for (const double factor : {0.5, 1.5, 2.0}) vary([&](Settings& s) { s.deeper *= factor; });
}

void Search::balance_processors() {
  double flops = 0, rates = 0;
  for (const StageDraft& draft : best_->stages) flops += stage_flops(*problem_.work, draft.cost);
  for (const double rate : problem_.flops) rates += rate;
  const double even = flops / rates;
  for (const double uneven : kUneven) {
    for (const double factor : kHorizons) {
      Settings settings = of_horizon(std::max(guess_, even) * factor);
      settings.computing = uneven * even;
      keep(settings);
    }
  }
}

void Search::use_fewer_devices() {
  for (const double holding : kHolding) {
    for (const double sooner : kSooner) {
      for (const bool helpers : {true, false}) {
        Settings settings = of_horizon(time_ * sooner);
        settings.loading *= 2;
        settings.groups = kGroupOfEach;
        settings.fewest_groups = 4;
        settings.holding = holding;
        settings.helpers = helpers;
        keep(settings);
      }
    }
  }
}

void Search::even_times(bool keeping) {
  for (const double holding : kHolding) {
    std::int64_t before = 0;
    for (const double share : kStagesOfDevices) {
      Settings settings = of_horizon(time_ / 2);
      settings.holding = holding;
      settings.keeping = keeping;
      settings.even_stages =
          static_cast<std::int64_t>(std::ceil(share * holding * static_cast<double>(problem_.devices.size())));
      if (settings.even_stages > std::ssize(problem_.work->pieces)) continue;
      if (std::exchange(before, settings.even_stages) == settings.even_stages) continue;
      for (const std::int64_t groups : {std::int64_t{1}, kGroupOfEach}) {
        settings.groups = settings.fewest_groups = groups;
        for (const bool helpers : {true, false}) {
          settings.helpers = helpers;
          keep(settings);
        }
      }
    }
  }
}

bool Search::may_keep() const {
  Settings settings;
  settings.keeping = true;
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < std::ssize(problem_.work->pieces); ++i) {
    const StageDraft draft(StageCost(*problem_.work, i, i + 1, chunk_));
    if (draft.cost.may_keep()) least = std::min(least, replica_bytes(*problem_.work, draft, settings));
  }
  return *std::ranges::max_element(problem_.memory) >= least;
}

void Search::hasten_owners() {
  std::vector<Settings> hastened;
  for (const Candidate& candidate : candidates_) {
    const double chain = chain_time(problem_, candidate.layout, true);
    if (chain > kHasten * candidate.layout.settings.owning) continue;
    hastened.push_back(candidate.layout.settings);
    hastened.back().owning = chain;
  }
  for (const Settings& settings : hastened) keep(settings);
}

void Search::level_all() {
  std::vector<Candidate> levelled;
  for (const Candidate& candidate : candidates_) {
    if (std::ranges::max(candidate.layout.groups) > 1) continue;
    const double before = owners_end(problem_, candidate.layout);
    std::optional<Layout> level = level_owners(problem_, candidate.layout, false, before);
    if (!level) continue;
    const double sooner =
        beside_interface(problem_, *level, level->gradients_s) / beside_interface(problem_, candidate.layout, before);
    if (sooner < kSoonerLevelled) levelled.push_back({std::move(*level), candidate.time * sooner});
  }
  std::ranges::move(levelled, std::back_inserter(candidates_));
}

std::vector<Search::Candidate> Search::candidates() && {
  std::ranges::stable_sort(candidates_, {}, &Candidate::time);
  const auto alike = [](const Candidate& a, const Candidate& b) {
    return a.time == b.time && a.layout.stages.size() == b.layout.stages.size() &&
           a.layout.owners.size() == b.layout.owners.size();
  };
  candidates_.erase(std::ranges::unique(candidates_, alike).begin(), candidates_.end());
  return std::move(candidates_);
}

void Search::level() {
  if (!best_) return;
  std::vector<Candidate> first{{*best_, time_}};
  std::ranges::stable_sort(pool_, {}, &Candidate::time);
  for (const Candidate& candidate : pool_) {
    if (std::ssize(first) == kLevelled) break;
    if (candidate.time != first.back().time && candidate.time != time_) first.push_back(candidate);
  }
  std::optional<Layout> found;
  double least = std::numeric_limits<double>::infinity();
  const auto take = [&](const Layout& layout, double owners_done) {
    const double end = beside_interface(problem_, layout, owners_done);
    if (end >= least || !within_memory(problem_, finish(problem_, layout))) return;
    found = layout;
    least = end;
  };
  const auto judge = [&](const Layout& layout) {
    const double before = owners_end(problem_, layout);
    take(layout, before);
    const bool groups = layout.settings.fewest_groups == 1 && std::ranges::max(layout.groups) > 1;
    for (const bool one_group : {false, true}) {
      if (one_group && !groups) continue;
      if (std::optional<Layout> level = level_owners(problem_, layout, one_group, std::min(before, least)))
        take(*level, level->gradients_s);
    }
  };
  for (const Candidate& candidate : first) judge(candidate.layout);
  if (!found) return;
  if (usual_) {
    for (const Settings& settings : like(found->settings, layer_)) {
      if (const std::optional<Layout> layout = lay_out(problem_, settings)) judge(*layout);
    }
  }
  best_ = std::move(found);
  time_ = kAfter * beside_interface(problem_, *best_, owners_likely_end(problem_, *best_));
  // owners_likely_end() assumes that weights are preloaded.
  if (!problem_.preload) time_ = std::max(time_, forecast(problem_, *best_, true));
}

void Search::keep(Settings settings) {
  settings.chunk = chunk_;
  if (std::optional<Layout> layout = lay_out(problem_, settings))
    candidates_.push_back({*layout, forecast(problem_, *layout, true)});
}

// Owner groups save bytes down and cost bytes up.
bool Search::groups_may_pay() const {
  double up = 0, down = 0;
  for (const double rate : problem_.up) up += rate;
  for (const double rate : problem_.down) down += rate;
  return kAsymmetric * up >= down;
}

// A search of its own for several owner groups: other numbers of stages are best then, and other times for weights.
void Search::try_groups() {
  Search grouped(problem_, chunk_, keep_, check_memory_);
  for (const std::int64_t groups : {2, 8}) {
    for (const double loading : {1.0, 2.0}) {
      for (const double factor : kHorizons) {
        Settings settings = of_horizon(guess_ * factor);
        settings.loading *= loading;
        settings.groups = 4 * groups;
        settings.fewest_groups = groups;
        grouped.try_settings(settings);
      }
    }
  }
  std::ranges::move(grouped.pool_, std::back_inserter(pool_));
  std::ranges::move(grouped.candidates_, std::back_inserter(candidates_));
  if (!grouped.best_ || grouped.time_ >= worth_ * time_) return;
  best_ = std::move(grouped.best_);
  time_ = grouped.time_;
}

Search searched(const Problem& problem, std::int64_t chunk, bool keep) {
  Search search(problem, chunk, keep);
  search.run();
  if (!search.best() || within_memory(problem, finish(problem, *search.best()))) return search;
  Search again(problem, chunk, keep, true);
  again.run();
  return again;
}

std::vector<Layout> search_layouts(const Problem& problem, std::int64_t chunk, bool all) {
  Search search = searched(problem, chunk, all);
  std::vector<Layout> layouts;
  if (!search.best()) return layouts;
  layouts.push_back(*search.best());
  if (!all) return layouts;
  search.balance_processors();
  search.even_times(false);
  for (Search::Candidate& candidate : std::move(search).candidates()) {
    if (within_memory(problem, finish(problem, candidate.layout))) layouts.push_back(std::move(candidate.layout));
  }
  return layouts;
}

}  // namespace cleave::plan::stages
