// The search: candidates for a few horizons, then for other shares of memory and groups beside the best of them.
// Whoever can tell better than a forecast which is quickest also gets some that are cut by processors, by equal times,
// or for fewer devices.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"
#include "stages/data_parallel.hpp"
#include "stages/finish.hpp"
#include "stages/layout.hpp"
#include "stages/refusal.hpp"
#include "stages/rounds.hpp"

namespace cleave::plan {

namespace stages {

namespace {

// What a departure from the usual settings must bring by its forecast, which is less sure there.
constexpr double kWorth = 0.98;

// That are tried, of the time that all boundaries take on the fleet's uplinks.
constexpr double kHorizons[] = {0.3, 0.4, 0.5, 0.58, 0.66, 0.75, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0};

// Beside the best of them.
constexpr double kNearHorizons[] = {0.93, 1.07};

// Groups of owners are searched where downlinks are no more than so many times as fast as uplinks.
constexpr double kAsymmetric = 4;

// Of further candidates: for how long a stage's processors may be taken, of the time that everything takes on all of
// them.
constexpr double kUneven[] = {1.1, 1.3, 1.6};
// Shares of the devices that hold stages; for how long owners may take then, of the best forecast; stages a device.
constexpr double kHolding[] = {1.0, 0.7, 0.5, 0.35, 0.25, 0.15};
constexpr double kSooner[] = {0.15, 0.25, 0.35, 0.5, 0.7};
constexpr double kStagesOfDevices[] = {1.0, 0.9, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.03};
// Groups where every replica may sum what it runs by itself, however many there are.
constexpr std::int64_t kGroupOfEach = 1024;
// Owners are hastened where the chain takes less than this share of their horizon.
constexpr double kHasten = 0.9;

// Of one candidate, with more and more stages: deals of replicas, and those of them whose sums may not fit.
constexpr std::int64_t kMostDeals = 16, kMostWithoutOwners = 8;

}  // namespace

double weights_of(const StageWork& work) {
  double sum = 0;
  for (const model::Piece& piece : work.pieces)
    sum += static_cast<double>(piece.weight_elements() * size_of(work.wire) + 4 * piece.vector_elements());
  return sum;
}

std::optional<Layout> lay_out(const Problem& problem, const Settings& settings) {
  if (settings.even_stages > 0) {
    Layout layout{};
    layout.settings = settings;
    layout.roles = cut_evenly(problem, settings);
    if (layout.roles.empty() || !assign_owners(problem, layout)) return std::nullopt;
    return layout;
  }
  const std::int64_t pieces = std::ssize(problem.work->pieces);
  const double memory = *std::ranges::max_element(problem.memory);
  std::int64_t deals = 0, without_owners = 0;
  const StageCutter cutter(problem, settings);
  for (auto shares = std::max<std::int64_t>(1, static_cast<std::int64_t>(weights_of(*problem.work) / memory) - 1);
       shares <= 3 * pieces && deals < kMostDeals; shares += 1 + shares / 40) {
    Layout layout{};
    layout.settings = settings;
    layout.roles = cutter.cut(shares);
    if (layout.roles.empty()) continue;
    ++deals;
    if (!deal_replicas(problem, settings, layout.roles)) continue;
    if (assign_owners(problem, layout)) return layout;
    if (settings.only_owners > 0) {
      if (++without_owners == kMostWithoutOwners) break;
      continue;
    }
    // Where sums do not fit beside the replicas as they were dealt by uplink, they are dealt again by memory.
    layout.owners.clear();
    layout.groups.clear();
    make_room_for_sums(problem, settings, layout.roles);
    if (assign_owners(problem, layout)) return layout;
    if (++without_owners == kMostWithoutOwners) break;
  }
  return std::nullopt;
}

std::optional<Layout> own_anew(const Problem& problem, const Layout& layout, const Settings& settings) {
  Layout anew{};
  anew.settings = settings;
  anew.roles = layout.roles;
  if (!assign_owners(problem, anew)) return std::nullopt;
  return anew;
}

namespace {

struct Tried {
  Layout layout;
  double time;
};

class Search {
 public:
  // With `keep` everything that is tried is kept; with `to_the_unit` nothing is taken that is too large by the units
  // that slices are made of.
  Search(const Problem& problem, std::int64_t chunk, bool keep, bool to_the_unit = false)
      : problem_(problem), keep_(keep), to_the_unit_(to_the_unit) {
    if (chunk > 0) chunk_ = chunk;
    double uplink = 0;
    for (const double up : problem_.up) uplink += up;
    const auto boundary = static_cast<double>(problem_.work->tokens() * problem_.work->pieces.front().width *
                                              size_of(problem_.work->wire));
    guess_ = boundary * static_cast<double>(problem_.work->pieces.size()) / uplink;
  }

  void try_settings(Settings settings, double worth = 1) {
    settings.chunk = chunk_;
    consider(lay_out(problem_, settings), worth);
  }

  void consider(std::optional<Layout> layout, double worth) {
    if (!layout) return;
    const double time = forecast(problem_, *layout, false);
    if (keep_) tried_.push_back({*layout, forecast(problem_, *layout, true)});
    if (best_ && time >= worth * time_) return;
    if (to_the_unit_ && !within_memory(problem_, finish(problem_, *layout))) return;
    best_ = std::move(layout);
    time_ = time;
  }

  void run() {
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
    if (!best_) return;
    vary_owners([](Settings& s) { s.groups = 4; });
    if (groups_may_pay()) try_groups();
    vary_owners([](Settings& s) { s.groups = 32; }, best_->settings.groups > 1 ? 1 : worth_);
    for (const double factor : {0.5, 0.8, 1.25}) vary([&](Settings& s) { s.owning *= factor; });
    for (const double sums : {0.1, 0.35}) vary([&](Settings& s) { s.for_sums = sums; });
    for (const double factor : {0.8, 1.25}) vary([&](Settings& s) { s.loading *= factor; });
    if (usual_) vary_stages();
    for (const double factor : {0.9, 1.0, 1.1})
      vary_owners([&](Settings& s) { s.due = factor * last_passage(problem_, *best_); });
    const bool limited = !std::isinf(problem_.nic_out);
    if (limited) {
      for (const std::int64_t owners : {8, 4, 2}) vary_owners([&](Settings& s) { s.owners = owners; });
    }
    if (groups_may_pay()) {
      for (const std::int64_t groups : {2, 4, 8, 16}) {
        vary_owners([&](Settings& s) {
          s.fewest_groups = groups;
          s.groups = std::max(s.groups, groups);
        });
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

  // Smaller and larger stages at the bottom and the top. Where memory is short, forecasts do not tell them apart.
  void vary_stages() {
    for (const double factor : kNearHorizons) vary([&](Settings& s) { stretch(s, factor); });
    for (const double factor : {0.65, 0.9, 1.1}) vary([&](Settings& s) { s.loading *= factor; });
    for (const double tilt : {0.0, 0.1, 0.3, 0.4}) vary([&](Settings& s) { s.tilt = tilt; });
    for (const double factor : {0.5, 1.5, 2.0}) vary([&](Settings& s) { s.deeper *= factor; });
  }

  // Further candidates, cut by what processors can do as well: where those are scarce, stages of equal memory are not
  // of equal time. Requires: run() found a layout.
  void balance_processors() {
    double flops = 0, rates = 0;
    for (const Role& role : best_->roles) flops += stage_flops(*problem_.work, role.cost);
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

  // Further candidates for fast links, where weights on their way down, sums and the server's interface take the time:
  // fewer devices hold stages, which are smaller, and may sum everything that they run.
  void use_fewer_devices() {
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

  // Further candidates, of stages that take equal times; with `keeping`, replicas keep sequences.
  void even_times(bool keeping) {
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

  // Some device has room for a piece and for the sequences that it keeps.
  bool may_keep() const {
    Settings settings;
    settings.keeping = true;
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < std::ssize(problem_.work->pieces); ++i) {
      const Role role(StageCost(*problem_.work, i, i + 1, chunk_));
      if (role.cost.may_keep()) least = std::min(least, replica_bytes(*problem_.work, role, settings));
    }
    return *std::ranges::max_element(problem_.memory) >= least;
  }

  // And each with owners that are due when the chain ends: a horizon is longer than that where weights are to have more
  // time to come.
  void hasten_owners() {
    std::vector<Settings> hastened;
    for (const Tried& tried : tried_) {
      const double chain = chain_time(problem_, tried.layout, true);
      if (chain > kHasten * tried.layout.settings.owning) continue;
      hastened.push_back(tried.layout.settings);
      hastened.back().owning = chain;
    }
    for (const Settings& settings : hastened) keep(settings);
  }

  // Everything that was kept, each once, by forecast.
  std::vector<Tried> tried() && {
    std::ranges::stable_sort(tried_, {}, &Tried::time);
    const auto alike = [](const Tried& a, const Tried& b) {
      return a.time == b.time && a.layout.roles.size() == b.layout.roles.size() &&
             a.layout.owners.size() == b.layout.owners.size();
    };
    tried_.erase(std::ranges::unique(tried_, alike).begin(), tried_.end());
    return std::move(tried_);
  }

  const std::optional<Layout>& best() const { return best_; }
  double time() const { return time_; }
  // Memory is not short.
  bool is_usual() const { return usual_; }

 private:
  void keep(Settings settings) {
    settings.chunk = chunk_;
    if (std::optional<Layout> layout = lay_out(problem_, settings))
      tried_.push_back({*layout, forecast(problem_, *layout, true)});
  }

  // Groups save bytes down and cost bytes up.
  bool groups_may_pay() const {
    double up = 0, down = 0;
    for (const double rate : problem_.up) up += rate;
    for (const double rate : problem_.down) down += rate;
    return kAsymmetric * up >= down;
  }

  // With several groups another number of stages is best, and other weights are worth waiting for.
  void try_groups() {
    Search grouped(problem_, chunk_, keep_, to_the_unit_);
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
    std::ranges::move(grouped.tried_, std::back_inserter(tried_));
    if (!grouped.best_ || grouped.time_ >= worth_ * time_) return;
    best_ = std::move(grouped.best_);
    time_ = grouped.time_;
  }

  // The best settings so far, with a change.
  template <class Change>
  void vary(Change change) {
    Settings settings = best_->settings;
    change(settings);
    try_settings(settings, worth_);
  }
  // With one that concerns owners alone.
  template <class Change>
  void vary_owners(Change change, double worth) {
    Settings settings = best_->settings;
    change(settings);
    consider(own_anew(problem_, *best_, settings), worth);
  }
  template <class Change>
  void vary_owners(Change change) {
    vary_owners(change, worth_);
  }

  const Problem& problem_;
  bool keep_, to_the_unit_;
  std::int64_t chunk_ = kChunkTokens;
  double guess_ = 0;  // seconds that all boundaries take on the fleet's uplinks
  std::optional<Layout> best_;
  double time_ = 0;
  std::vector<Tried> tried_;
  bool usual_ = false;     // the usual settings give a layout
  double worth_ = kWorth;  // 1 where they do not
};

// A search that has run. That its best layout is too large for a device by a unit is rare, so it is looked at last.
Search searched(const Problem& problem, std::int64_t chunk, bool keep) {
  Search search(problem, chunk, keep);
  search.run();
  if (!search.best() || within_memory(problem, finish(problem, *search.best()))) return search;
  Search again(problem, chunk, keep, true);
  again.run();
  return again;
}

}  // namespace

Problem problem_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices, const StageOptions& options) {
  Problem problem;
  problem.work = &work;
  problem.devices = devices;
  problem.nic_out = options.server.nic_out.value();
  problem.nic_in = options.server.nic_in.value();
  problem.owners = options.owners;
  problem.preload = options.preload;
  for (const fleet::DeviceProfile& device : devices) {
    problem.memory.push_back(static_cast<double>(device.memory.value()));
    problem.down.push_back(std::min(device.downlink.value(), options.server.nic_out.value()));
    problem.up.push_back(std::min(device.uplink.value(), options.server.nic_in.value()));
    problem.flops.push_back(device.compute.value());
  }
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i) {
    const StageCost piece(work, i, i + 1, work.seq);
    problem.piece_weights.push_back(static_cast<double>(piece.weights().value()));
    problem.piece_flops.push_back(stage_flops(work, piece));
  }
  return problem;
}

std::vector<Layout> search_layouts(const Problem& problem, std::int64_t chunk, bool all) {
  Search search = searched(problem, chunk, all);
  std::vector<Layout> layouts;
  if (!search.best()) return layouts;
  layouts.push_back(*search.best());
  if (!all) return layouts;
  search.balance_processors();
  search.even_times(false);
  for (Tried& tried : std::move(search).tried()) {
    if (within_memory(problem, finish(problem, tried.layout))) layouts.push_back(std::move(tried.layout));
  }
  return layouts;
}

}  // namespace stages

namespace {

// Where the fewest parts leave no room for sums, so many more are tried.
constexpr std::int64_t kMoreParts = 3;

// Parts that the head is cut into, the most worthwhile number first: none where some device can hold it whole; else the
// fewest for which twice as many devices have room, and some more. A part's rows come back as sums in 4 bytes, so parts
// are worth it only where they must be.
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
      const stages::Role part(StageCost(cut, i, i + 1, kChunkTokens));
      needed = std::max(needed, stages::replica_bytes(part) + static_cast<double>(part.cost.at_work().value()));
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

}  // namespace

namespace {

// Rounds have more replicas at a time; where there are so many of a stage all the same, they bring nothing.
constexpr double kFewReplicas = 3;

struct Found {
  std::vector<StagePlan> plans;  // first the one that is taken
  bool memory_is_short = true;   // none of the usual settings fits

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
    const stages::Search search = stages::searched(problem, std::min(options.chunk, work.seq), false);
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

}  // namespace

std::optional<StagePlan> find_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                     const StageOptions& options) {
  if (work.pieces.empty() || devices.empty()) return std::nullopt;
  Found found = layouts_at_once(work, devices, options);
  if (options.rounds && found.calls_for_rounds()) {
    std::vector<StagePlan> rounds = layouts_in_rounds(work, devices, options);
    if (!rounds.empty() && (found.plans.empty() || rounds.front().forecast < found.plans.front().forecast))
      return std::move(rounds.front());
  }
  if (found.plans.empty()) return std::nullopt;
  return std::move(found.plans.front());
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
  plans.push_back(finished(problem, *search.best(), search.time()));
  const std::size_t stages = search.best()->roles.size(), owners = search.best()->owners.size();
  const double time = stages::forecast(problem, *search.best(), true);
  // What find_stages() takes first.
  const bool whole_first = !whole.empty() && whole.front().forecast.value() < time;
  plans.insert(whole_first ? plans.begin() : plans.end(), std::make_move_iterator(whole.begin()),
               std::make_move_iterator(whole.end()));
  for (const stages::Tried& tried : std::move(search).tried()) {
    const bool best = tried.time == time && tried.layout.roles.size() == stages && tried.layout.owners.size() == owners;
    if (plans.size() >= most) break;
    if (best) continue;
    StagePlan plan = finished(problem, tried.layout, tried.time);
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
  if (work.pieces.empty()) throw InputError("the model has no layers to be laid out in stages");
  if (devices.empty()) throw InputError("there are no devices");
  std::optional<StagePlan> plan = find_stages(work, devices, options);
  if (!plan) {
    const StageWork cut = with_head_parts(work, head_parts_for(work, devices).front());
    stages::refuse(stages::problem_of(cut, devices, options));
  }
  return std::move(*plan);
}

}  // namespace cleave::plan
