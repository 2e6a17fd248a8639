// Bisection for the earliest time at which all owners can be done. For a given time, every gradient is given to as few
// of its stage's own replicas as can sum it, those first that could do least for other stages. What is missing then
// goes to the devices that can take most of it. At last, replicas that own nothing join the owners of their stage.
#include "stages/level_owners.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "stages/owner_costs.hpp"

namespace cleave::plan::stages {

namespace {

// Factors of Course, fitted to simulated steps of the fleets of docs/measurements/stages.md.
constexpr double kFirst = 0.9;         // of the time for weights and a first chunk to come to the top
constexpr double kFirstBack = 1.5;     // of a chunk's way through a stage, for the first sequence that comes back
constexpr double kLastPassage = 1.03;  // of last_passage()
// Factors of busy times. Operands do not come evenly, so links and processors are done later than they could be. For
// processors the factor leaves room for sums of lost devices, which owners must make beside their own.
constexpr double kDown = 1.1, kCompute = 1.4;
constexpr double kUnevenRuns = 1.15;  // factor of a group's share of the batch, which turns out only in the step
constexpr double kFilled = 1e-9;      // a gradient has enough owners where its missing share is smaller
constexpr double kUnits = 1.05;       // factor of memory for a share, since slices are of whole units
constexpr double kClose = 3e-3;       // relative precision of the bisection

// For each owner group of a stage: the share of the batch that it may have to sum over. runs[g]: the share that the
// replicas of group g run. Sequences that no group's replica runs go to the groups with the fewest, as if water were
// poured in: these groups rise to a common level.
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
  double room = 0;                // bytes for sums
  Busy busy;                      // from `opened` on: operands of sums, and its work as a replica
  double weights = 0;             // the part of busy.down that is for weights of slices
  double loading = 0;             // seconds of its downlink for the weights of its stages
  double up = 0;                  // seconds of its uplink for its sums
  double opened = 0, passed = 0;  // Course of the latest of the stages that it owns slices of
  std::int64_t owns = 0;          // number of those stages

  [[nodiscard]] double ready() const {
    return std::max({passed, opened + kDown * busy.down, opened + kCompute * busy.compute});
  }
  [[nodiscard]] double end() const { return owns > 0 ? ready() + up : 0; }
  // end() without reserves. Weights come before the first sequence, and once all sequences have passed, operands come
  // evenly.
  [[nodiscard]] double likely_end() const {
    if (owns == 0) return 0;
    const double begins = std::max(opened, loading + weights), reads = busy.down - weights;
    const double uneven = (kDown - 1) * std::min(reads, std::max(0.0, passed - begins));
    return std::max({passed, begins + reads + uneven, opened + kCompute * busy.compute}) + up;
  }
};

// The gradient of a stage that one owner group sums, and that is to get owners.
struct Unowned {
  std::size_t stage = 0;
  std::int64_t group = 0;
  double of_batch = 1;                // share of the batch that the group sums over
  std::vector<std::size_t> replicas;  // replicas of the stage that may own slices of it
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

  // Sets the layout's processors_s and sending_s.
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
  // Lists the gradients. Replicas of a stage with several groups stay in their group.
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

  // The share of a gradient that a device with this load can have read, summed and sent at time `by`; 0 where it is too
  // small to be worth it.
  double capacity(const DeviceLoad& load, const Unowned& gradient, std::size_t device, bool replica, double by) const {
    const std::size_t s = gradient.stage;
    const double held = costs_.held(s, replica, load.room) / kUnits;
    if (held < kLeastShare) return 0;
    const Busy reads = costs_.reading(s, device, replica, gradient.of_batch);
    const double opened = std::max(load.opened, course_.opened[s]);
    const double read =
        std::max(std::max(load.passed, course_.passed[s]), opened + kDown * (load.busy.down + reads.down));
    const double left = by - load.up, recomputed = opened + kCompute * (load.busy.compute + reads.compute);
    if (left <= std::max(read, recomputed)) return 0;
    const double sending = costs_.sent(s) * kSumHeader / problem_.up[device],
                 summing = kCompute * costs_.summing(s, device, replica, gradient.of_batch);
    return std::min({1.0, held, (left - read) / sending, (left - recomputed) / (summing + sending)});
  }

  struct Able {
    std::size_t device;
    double share;      // capacity()
    double elsewhere;  // bytes of other stages' sums that it could send
  };

  // Gives the gradient to as many of the stage's own replicas as it takes. Returns the share that is missing.
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

  // Gives the missing share to other devices, those first that can take most. Returns the share that is still missing.
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
    // A heap instead of a sorted list: only a few of them are needed.
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

  // Makes a device the owner of a share. Returns the share that is missing afterwards.
  double give(const Unowned& gradient, const Able& to, double share, bool replica, double missing,
              std::vector<DeviceLoad>& loads, std::vector<OwnerShare>& owners) const {
    loads[to.device] = with(loads[to.device], gradient.stage, to.device, replica, gradient.of_batch, share);
    owners.push_back({to.device, gradient.stage, gradient.group, share, replica});
    return missing - share;
  }

  // Makes replicas that own nothing yet owners of slices of their stage: each owner has less, and less is lost with it.
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

  // Owners that are done at time `by`; none where there are no such owners.
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
