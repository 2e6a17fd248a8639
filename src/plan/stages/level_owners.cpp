// Bisection for the time at which all uplinks are done. For a given time every gradient takes as few of its stage's own
// replicas as fill it, those first that could do least elsewhere; what is then missing goes to devices that can take
// most of it, and replicas that are free join in.
#include "stages/level_owners.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "stages/owner_costs.hpp"

namespace cleave::plan::stages {

namespace {

// Of Course, fitted to simulated steps of the fleets of docs/measurements/stages.md.
constexpr double kFirst = 0.9;      // of what weights and a first chunk take to the top
constexpr double kFirstBack = 1.5;  // ways of a chunk from stage to stage, until the first comes back to the one below
constexpr double kLastPassage = 1.03;  // of last_passage()
// Operands do not come evenly, so a link or a processor that they keep busy is done later than it could be. Processors
// are planned to be idle for longer than they are: whoever loses sums must make them again beside its own.
constexpr double kDown = 1.1, kCompute = 1.4;

constexpr double kUnevenRuns = 1.15;  // of a group's share of a batch, what it may turn out to be
constexpr double kFilled = 1e-9;      // missing of a gradient that has enough owners
constexpr double kUnits = 1.05;       // of its share, memory for whole units
constexpr double kClose = 3e-3;       // of the end, within which it is found

// Of each group of a stage, the share of the batch that it may have to sum over: what its own replicas run, given in
// `runs`, and of the rest as much as makes up for having run little. Who runs how much turns out as the step goes.
std::vector<double> shares_of_batch(std::vector<double> runs) {
  if (runs.size() == 1) return {1};
  std::vector<double> sorted = runs;
  std::ranges::sort(sorted);
  double rest = 1;
  for (const double run : runs) rest -= run;
  double level = 0, below = std::max(0.0, rest);
  for (std::size_t k = 0; k < sorted.size(); ++k) {
    below += sorted[k];
    level = below / static_cast<double>(k + 1);
    if (k + 1 == sorted.size() || level <= sorted[k + 1]) break;
  }
  for (double& run : runs) run = std::min(1.0, kUnevenRuns * std::max(run, level));
  return runs;
}

// What a device has to do until its sums are up.
struct DeviceLoad {
  double room = 0;     // bytes for sums
  Busy busy;           // since its lowest stage has been open: operands, and what its part as a replica takes then
  double weights = 0;  // of that, for weights of slices
  double loading = 0;  // seconds that weights of its part as a replica take
  double up = 0;       // seconds that its sums take
  double opened = 0, passed = 0;  // of its lowest stage
  std::int64_t owns = 0;

  [[nodiscard]] double ready() const {
    return std::max({passed, opened + kDown * busy.down, opened + kCompute * busy.compute});
  }
  [[nodiscard]] double end() const { return owns > 0 ? ready() + up : 0; }
  // Without what is planned for chance. Weights come before the first sequence does, and once all have passed nothing
  // comes unevenly any more.
  [[nodiscard]] double likely_end() const {
    if (owns == 0) return 0;
    const double begins = std::max(opened, loading + weights), reads = busy.down - weights;
    const double uneven = (kDown - 1) * std::min(reads, std::max(0.0, passed - begins));
    return std::max({passed, begins + reads + uneven, opened + kCompute * busy.compute}) + up;
  }
};

// A gradient that is to find owners: of a group of a stage.
struct Unowned {
  std::size_t stage = 0;
  std::int64_t group = 0;
  double of_batch = 1;
  std::vector<std::size_t> replicas;  // that may own slices of it
};

class Owners {
 public:
  Owners(const Problem& problem, const Layout& layout, Course course)
      : problem_(problem), layout_(layout), costs_(problem, layout), course_(std::move(course)) {
    for (const double bytes : costs_.room()) as_replicas_.push_back({.room = bytes, .busy = {}});
    charge_replicas();
    divide_batch();
    find_gradients();
  }

  [[nodiscard]] const Course& course() const { return course_; }

  [[nodiscard]] double end() const { return latest(&DeviceLoad::end); }
  [[nodiscard]] double likely_end() const { return latest(&DeviceLoad::likely_end); }

  std::optional<std::vector<OwnerShare>> level(double before) {
    double low = course_.passed.front(), high = before * (1 - kClose);
    std::optional<std::vector<OwnerShare>> best = done_by(high);
    while (best && high - low > kClose * high) {
      const double middle = (low + high) / 2;
      if (std::optional<std::vector<OwnerShare>> found = done_by(middle)) {
        best = std::move(found);
        high = middle;
      } else {
        low = middle;
      }
    }
    return best;
  }

  // What forecasts ask of owners, for the whole step.
  void sum_up(Layout& layout) const {
    std::vector<double> compute(problem_.devices.size());
    for (std::size_t s = 0; s < layout.stages.size(); ++s) {
      for (const std::size_t i : layout.stages[s].replicas) {
        const OwnerCosts::Part part = costs_.part_of(s, i);
        compute[i] += part.forth.compute + part.back.compute;
      }
    }
    for (const OwnerShare& owned : layout.owners) {
      const double of_batch = of_batch_[owned.stage][group_of(owned)];
      compute[owned.device] += costs_.reading(owned.stage, owned.device, owned.replica, of_batch).compute +
                               owned.share * costs_.summing(owned.stage, owned.device, owned.replica, of_batch);
    }
    layout.processors_s = *std::ranges::max_element(compute);
    layout.sending_s = costs_.sending(layout.owners);
  }

 private:
  double latest(double (DeviceLoad::*when)() const) const {
    std::vector<DeviceLoad> loads = as_replicas_;
    for (const OwnerShare& owned : layout_.owners)
      loads[owned.device] = with(loads[owned.device], owned.stage, owned.device, owned.replica,
                                 of_batch_[owned.stage][group_of(owned)], owned.share);
    double latest = 0;
    for (const DeviceLoad& load : loads) latest = std::max(latest, (load.*when)());
    return latest;
  }
  void charge_replicas() {
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const double forth = std::max(0.0, 1 - course_.opened[s] / course_.passed[s]);
      for (const std::size_t i : layout_.stages[s].replicas) {
        const OwnerCosts::Part part = costs_.part_of(s, i);
        as_replicas_[i].loading += part.weights;
        as_replicas_[i].busy.down += forth * part.forth.down + part.back.down;
        as_replicas_[i].busy.compute += forth * part.forth.compute + part.back.compute;
      }
    }
  }
  void divide_batch() {
    std::vector<std::vector<double>> runs;
    for (const std::int64_t groups : layout_.groups) runs.emplace_back(static_cast<std::size_t>(groups));
    for (const OwnerShare& owned : layout_.owners) {
      if (owned.replica) runs[owned.stage][group_of(owned)] += costs_.visits(owned.stage, owned.device);
    }
    for (std::vector<double>& of : runs) of_batch_.push_back(shares_of_batch(std::move(of)));
  }
  // Replicas of a stage with several groups stay in the group that they are in.
  void find_gradients() {
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      if (costs_.elements(s) == 0) continue;
      for (std::size_t g = 0; g < of_batch_[s].size(); ++g)
        gradients_.push_back({s, static_cast<std::int64_t>(g), of_batch_[s][g], {}});
    }
    if (problem_.owners == OwnerPlaces::apart) return;
    for (Unowned& gradient : gradients_) {
      if (!has_groups(gradient)) gradient.replicas = layout_.stages[gradient.stage].replicas;
    }
    for (const OwnerShare& owned : layout_.owners) {
      if (!owned.replica || of_batch_[owned.stage].size() == 1) continue;
      std::ranges::find_if(gradients_, [&](const Unowned& of) {
        return of.stage == owned.stage && of.group == owned.group;
      })->replicas.push_back(owned.device);
    }
  }

  static std::size_t group_of(const OwnerShare& owned) { return static_cast<std::size_t>(owned.group); }
  bool has_groups(const Unowned& gradient) const { return layout_.groups[gradient.stage] > 1; }

  DeviceLoad with(DeviceLoad load, std::size_t s, std::size_t device, bool replica, double of_batch,
                  double share) const {
    const Busy reads = costs_.reading(s, device, replica, of_batch);
    load.busy.down += reads.down;
    load.weights += costs_.loading(s, device, replica);
    load.busy.compute += reads.compute + share * costs_.summing(s, device, replica, of_batch);
    load.opened = std::max(load.opened, course_.opened[s]);
    load.passed = std::max(load.passed, course_.passed[s]);
    load.up += share * costs_.sent(s) * kSumHeader / problem_.up[device];
    load.room -= costs_.bytes(s, replica, share);
    ++load.owns;
    return load;
  }

  // The share of a gradient that a device can have read, summed and sent by then; none where that is too little.
  double capacity(const DeviceLoad& load, const Unowned& gradient, std::size_t device, bool replica, double by) const {
    const std::size_t s = gradient.stage;
    const double held = costs_.held(s, replica, load.room) / kUnits;
    if (held < kLeastShare) return 0;
    const Busy reads = costs_.reading(s, device, replica, gradient.of_batch);
    const double opened = std::max(load.opened, course_.opened[s]);
    const double read =
        std::max(std::max(load.passed, course_.passed[s]), opened + kDown * (load.busy.down + reads.down));
    const double left = by - load.up, remade = opened + kCompute * (load.busy.compute + reads.compute);
    if (left <= std::max(read, remade)) return 0;
    const double sending = costs_.sent(s) * kSumHeader / problem_.up[device],
                 summing = kCompute * costs_.summing(s, device, replica, gradient.of_batch);
    return std::min({1.0, held, (left - read) / sending, (left - remade) / (summing + sending)});
  }

  struct Able {
    std::size_t device;
    double share;      // that it can take
    double elsewhere;  // seconds that its uplink would have for another stage's sums
  };

  // As many of the stage's own replicas as fill the gradient.
  double own(const Unowned& gradient, std::vector<DeviceLoad>& loads, double by,
             std::vector<OwnerShare>& owners) const {
    const std::size_t s = gradient.stage;
    std::vector<Able> able;
    for (const std::size_t i : gradient.replicas) {
      const double share = capacity(loads[i], gradient, i, true, by);
      if (share < kLeastShare) continue;
      const DeviceLoad elsewhere = with(loads[i], s, i, false, 1, 0);
      able.push_back({i, share, std::max(0.0, by - elsewhere.ready()) * problem_.up[i]});
    }
    std::ranges::stable_sort(able, {}, [](const Able& of) { return std::pair(of.elsewhere, -of.share); });
    if (layout_.settings.owners > 0 && std::ssize(able) > layout_.settings.owners) {
      std::ranges::stable_sort(able, std::greater<>{}, &Able::share);
      able.resize(static_cast<std::size_t>(layout_.settings.owners));
    }
    // Where a stage has several groups, all of a group's replicas stay in it: who runs a sequence sums it.
    const bool all = has_groups(gradient);
    double missing = 1;
    for (const Able& of : able) {
      if (missing <= kFilled && !all) break;
      missing = give(gradient, of, all ? of.share : std::min(of.share, missing), true, missing, loads, owners);
    }
    return missing;
  }

  // Others, those first that can take most; what is still missing.
  double help(const Unowned& gradient, double missing, std::vector<DeviceLoad>& loads, double by,
              std::vector<OwnerShare>& owners) const {
    std::vector<bool> runs(loads.size(), false);
    for (const std::size_t i : layout_.stages[gradient.stage].replicas) runs[i] = true;
    std::vector<Able> able;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      if (loads[i].owns >= layout_.settings.owned_stages || runs[i]) continue;
      const double share = capacity(loads[i], gradient, i, false, by);
      if (share >= kLeastShare) able.push_back({i, share, 0});
    }
    // As if they were sorted: few of them are needed.
    const auto later = [](const Able& a, const Able& b) {
      return a.share != b.share ? a.share < b.share : a.device > b.device;
    };
    std::ranges::make_heap(able, later);
    while (missing > kFilled && !able.empty()) {
      std::ranges::pop_heap(able, later);
      missing = give(gradient, able.back(), std::min(able.back().share, missing), false, missing, loads, owners);
      able.pop_back();
    }
    return missing;
  }

  // What is missing then.
  double give(const Unowned& gradient, const Able& to, double share, bool replica, double missing,
              std::vector<DeviceLoad>& loads, std::vector<OwnerShare>& owners) const {
    loads[to.device] = with(loads[to.device], gradient.stage, to.device, replica, gradient.of_batch, share);
    owners.push_back({to.device, gradient.stage, gradient.group, share, replica});
    return missing - share;
  }

  // Replicas that nobody needed own slices of their stage's gradient as well: less is lost with each.
  void join(std::vector<DeviceLoad>& loads, double by, std::vector<OwnerShare>& owners) const {
    for (const Unowned& gradient : gradients_) {
      if (has_groups(gradient)) continue;
      for (const std::size_t i : gradient.replicas) {
        if (loads[i].owns > 0) continue;
        const double share = capacity(loads[i], gradient, i, true, by);
        if (share < kLeastShare) continue;
        loads[i] = with(loads[i], gradient.stage, i, true, gradient.of_batch, share);
        owners.push_back({i, gradient.stage, gradient.group, share, true});
      }
    }
  }

  // Owners that are done by then, if there are such.
  std::optional<std::vector<OwnerShare>> done_by(double by) const {
    std::vector<OwnerShare> owners;
    std::vector<DeviceLoad> loads = as_replicas_;
    std::vector<std::pair<double, const Unowned*>> missing;
    for (const Unowned& gradient : gradients_) {
      const double left = own(gradient, loads, by, owners);
      if (left > kFilled) missing.emplace_back(left, &gradient);
    }
    if (!missing.empty() && (problem_.owners == OwnerPlaces::replicas || !layout_.settings.helpers))
      return std::nullopt;
    std::ranges::stable_sort(missing, std::greater<>{},
                             [&](const auto& of) { return of.first * costs_.sent(of.second->stage); });
    for (const auto& [left, gradient] : missing) {
      if (help(*gradient, left, loads, by, owners) > kFilled) return std::nullopt;
    }
    join(loads, by, owners);
    std::ranges::stable_sort(owners, {}, [](const OwnerShare& of) { return std::pair(of.stage, of.group); });
    for (auto first = owners.begin(); first != owners.end();) {
      double sum = 0;
      auto last = first;
      for (; last != owners.end() && last->stage == first->stage && last->group == first->group; ++last)
        sum += last->share;
      for (; first != last; ++first) first->share /= sum;
    }
    return owners;
  }

  const Problem& problem_;
  const Layout& layout_;
  OwnerCosts costs_;
  Course course_;
  std::vector<DeviceLoad> as_replicas_;
  std::vector<std::vector<double>> of_batch_;  // of each stage, of each group
  std::vector<Unowned> gradients_;
};

}  // namespace

Course course_of(const Problem& problem, const Layout& layout) {
  std::vector<double> way;  // of a chunk through each stage
  double first = 0;
  for (const StageDraft& draft : layout.stages) {
    const auto replicas = static_cast<double>(draft.replicas.size());
    double up = 0, down = 0, flops = 0;
    for (const std::size_t i : draft.replicas) {
      up += problem.up[i] / replicas;
      down += problem.down[i] / replicas;
      flops += problem.flops[i] / replicas;
    }
    const double chunk = in_bytes(draft.cost.boundary(layout.settings.chunk));
    way.push_back(chunk / up + chunk / down + draft.cost.forward(0, layout.settings.chunk).value() / flops);
    first = std::max(first, loading_time(problem, draft)) + way.back();
  }
  const std::size_t stages = layout.stages.size();
  Course course{std::vector<double>(stages), std::vector<double>(stages)};
  double at = kFirst * first;
  for (std::size_t s = stages; s-- > 0;) course.opened[s] = at += kFirstBack * way[s];
  at = kLastPassage * last_passage(problem, layout);
  for (std::size_t s = 0; s < stages; ++s) {
    course.passed[s] = std::max(at, course.opened[s]);
    at -= way[s];
  }
  return course;
}

double owners_end(const Problem& problem, const Layout& layout) {
  return Owners(problem, layout, course_of(problem, layout)).end();
}

double owners_likely_end(const Problem& problem, const Layout& layout) {
  return Owners(problem, layout, course_of(problem, layout)).likely_end();
}

std::optional<Layout> level_owners(const Problem& problem, const Layout& layout, bool one_group, double before) {
  Layout level = layout;
  if (one_group) {
    std::ranges::fill(level.groups, 1);
    level.owners.clear();
  }
  Owners owners(problem, level, course_of(problem, layout));
  std::optional<std::vector<OwnerShare>> found = owners.level(before);
  if (!found) return std::nullopt;
  Layout result = level;
  result.owners = std::move(*found);
  result.gradients_s = Owners(problem, result, owners.course()).end();
  owners.sum_up(result);
  if (result.gradients_s >= before) return std::nullopt;
  return result;
}

}  // namespace cleave::plan::stages
