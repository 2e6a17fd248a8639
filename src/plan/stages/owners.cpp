// Owners of gradient slices. First each stage's own replicas become owners, as their memory allows. Then the gradient
// that would be sent last gets further owners (helpers), one at a time, while that helps. The shares of the owners of
// one gradient are such that all of them have sent at the same time (water-filling).
#include <algorithm>
#include <cmath>
#include <limits>

#include "stages/layout.hpp"
#include "stages/owner_costs.hpp"

namespace cleave::plan::stages {

namespace {

constexpr double kLate = 1e9;  // seconds: end of a gradient that has not enough owners
constexpr std::int64_t kMostHelpers = 600;
constexpr double kTightWait = 1.3;       // Settings::tight: sums may take this factor of the horizon
constexpr double kNoShare = 1e-4;        // a smaller share counts as none
constexpr double kUnevenGroups = 1.1;    // factor of its fair share that a group's own replicas may run
constexpr double kBackwardSlope = 0.12;  // share of the horizon by which the highest stage's gradients are earlier

struct OwnerCandidate {
  std::size_t device = 0;
  double most = 0;        // share of the gradient that its memory holds
  double ready = 0;       // when it has read its operands, and may send at the earliest
  double recomputed = 0;  // when its processor has done the recomputation, which does not depend on the share
  double summing = 0;     // seconds of its processor for the sums of a whole gradient
  double sending = 0;     // seconds of its uplink for a whole gradient
  bool replica = false;

  [[nodiscard]] double begins() const { return std::max(ready, recomputed); }
  // The share that it can have summed and sent at a time.
  [[nodiscard]] double share_at(double at) const {
    return std::max(0.0, std::min({most, (at - ready) / sending, (at - recomputed) / (summing + sending)}));
  }
  // When it has sent as much as its memory holds.
  [[nodiscard]] double full_at() const {
    return std::max(ready + most * sending, recomputed + most * (summing + sending));
  }
};

// The gradient of a stage that one owner group sums.
struct Gradient {
  std::size_t stage = 0;
  std::int64_t group = 0;
  std::vector<OwnerCandidate> candidates;
  double done = kLate;
};

struct Load {
  double memory = 0, down = 0, compute = 0, up = 0;
  std::int64_t owns = 0;
};

class Assigner {
 public:
  Assigner(const Problem& problem, Layout& layout)
      : problem_(problem), layout_(layout), work_(*problem.work), costs_(problem, layout) {}

  bool assign() {
    charge_replicas();
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      if (costs_.elements(s) == 0) {
        layout_.groups.push_back(1);
        continue;
      }
      own_replicas(s);
    }
    for (Gradient& gradient : gradients_) charge_own(gradient);
    const auto most = std::min<std::int64_t>(3 * std::ssize(problem_.devices), kMostHelpers);
    for (std::int64_t i = 0; i < most && add_helper(); ++i) {}
    layout_.gradients_s = layout_.processors_s = 0;
    for (const Load& load : loads_) layout_.processors_s = std::max(layout_.processors_s, load.compute);
    for (const Gradient& gradient : gradients_) {
      if (gradient.done >= kLate || !is_even(gradient)) return false;
      layout_.gradients_s = std::max(layout_.gradients_s, gradient.done);
      const std::vector<double> shares = shares_at(gradient, gradient.done);
      double sum = 0;
      for (const double share : shares) sum += share;
      for (std::size_t k = 0; k < shares.size(); ++k) {
        const OwnerCandidate& candidate = gradient.candidates[k];
        if (shares[k] / sum < kNoShare) continue;
        layout_.owners.push_back(
            {candidate.device, gradient.stage, gradient.group, shares[k] / sum, candidate.replica});
      }
    }
    layout_.sending_s = costs_.sending(layout_.owners);
    return true;
  }

 private:
  double horizon(std::size_t s) const {
    const double height = static_cast<double>(s) / static_cast<double>(layout_.stages.size());
    return std::max(layout_.settings.due, layout_.settings.owning * (1 - kBackwardSlope * height));
  }
  void charge_replicas() {
    loads_.resize(problem_.devices.size());
    const std::vector<double> room = costs_.room();
    for (std::size_t i = 0; i < loads_.size(); ++i) loads_[i].memory = room[i];
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      for (const std::size_t i : layout_.stages[s].replicas) {
        const OwnerCosts::Part part = costs_.part_of(s, i);
        loads_[i].down += part.weights + part.forth.down + part.back.down;
        loads_[i].compute += part.forth.compute + part.back.compute;
      }
    }
  }

  Busy reading(std::size_t s, std::size_t device, bool replica) const {
    return costs_.reading(s, device, replica, 1 / costs_.groups(s));
  }
  double summing(std::size_t s, std::size_t device, bool replica) const {
    return costs_.summing(s, device, replica, 1 / costs_.groups(s));
  }

  // A device as an owner, with memory for a share of `most`. `sends`: seconds of its uplink for sums of other stages.
  OwnerCandidate candidate(std::size_t s, std::size_t device, bool replica, double most, double sends) const {
    const double lag = layout_.settings.lag * layout_.settings.owning;
    const Busy reads = reading(s, device, replica);
    return {device,
            std::min(1.0, most),
            std::max(horizon(s), loads_[device].down + reads.down + lag) + sends,
            loads_[device].compute + reads.compute + lag + sends,
            summing(s, device, replica),
            costs_.sent(s) / problem_.up[device],
            replica};
  }

  // Whether the groups will get about equally many sequences, as is planned. A sequence belongs to the group of the
  // replica that runs it, which need not read it; a sequence that runs on a replica without slices goes to the group
  // with the fewest. Where Settings::fewest_groups asks for several groups, links are alike and reading costs little,
  // so groups may be uneven.
  bool is_even(const Gradient& gradient) const {
    if (layout_.settings.fewest_groups > 1) return true;
    const std::vector<double> shares = shares_at(gradient, gradient.done);
    double run = 0;
    std::int64_t owners = 0;
    for (std::size_t k = 0; k < shares.size(); ++k) {
      if (shares[k] < kNoShare) continue;
      ++owners;
      const OwnerCandidate& candidate = gradient.candidates[k];
      if (candidate.replica) run += costs_.visits(gradient.stage, candidate.device);
    }
    return owners < 2 || run * costs_.groups(gradient.stage) <= kUnevenGroups;
  }
  bool are_even(const std::vector<Gradient>& list) const {
    return std::ranges::all_of(list, [&](const Gradient& gradient) { return is_even(gradient); });
  }

  // The share of each owner that can have been sent at a time. They add up to 1 or more where the time is late enough.
  std::vector<double> shares_at(const Gradient& gradient, double at) const {
    std::vector<double> shares;
    for (const OwnerCandidate& c : gradient.candidates) shares.push_back(c.share_at(at));
    return shares;
  }

  double done_at(const Gradient& gradient) const {
    double most = 0, low = std::numeric_limits<double>::infinity(), high = 0;
    for (const OwnerCandidate& c : gradient.candidates) {
      most += c.most;
      low = std::min(low, c.begins());
      high = std::max(high, c.full_at());
    }
    if (most < 1) return kLate;
    for (int i = 0; i < 30 && high - low > 1e-3 * high; ++i) {
      const double middle = (low + high) / 2;
      double sum = 0;
      for (const OwnerCandidate& c : gradient.candidates) sum += c.share_at(middle);
      (sum >= 1 ? high : low) = middle;
    }
    return high;
  }

  // Makes a stage's own replicas owners, in the number of groups with the earliest end.
  void own_replicas(std::size_t s) {
    std::vector<Gradient> best;
    std::int64_t best_groups = 1;
    layout_.groups.push_back(1);
    double best_done = std::numeric_limits<double>::infinity();
    const std::int64_t most_groups = std::min(layout_.settings.groups, work_.batch);
    std::int64_t fewest = 1;
    while (2 * fewest <=
           std::min({layout_.settings.fewest_groups, most_groups, std::ssize(layout_.stages[s].replicas)}))
      fewest *= 2;
    const std::int64_t all = std::min(most_groups, std::ssize(layout_.stages[s].replicas));
    for (std::int64_t groups = fewest; groups <= most_groups;
         groups = groups < all ? std::min(2 * groups, all) : 2 * groups) {
      layout_.groups[s] = groups;
      std::vector<OwnerCandidate> candidates;
      for (const std::size_t i : layout_.stages[s].replicas) {
        if (problem_.owners == OwnerPlaces::apart) break;
        const double most = costs_.held(s, true, loads_[i].memory);
        if (most > kLeastShare) candidates.push_back(candidate(s, i, true, most, 0));
      }
      if (layout_.settings.owners > 0 && std::ssize(candidates) > layout_.settings.owners * groups) {
        std::ranges::stable_sort(candidates, {}, &OwnerCandidate::begins);
        candidates.resize(static_cast<std::size_t>(layout_.settings.owners * groups));
      }
      std::ranges::stable_sort(candidates, std::greater<>{}, &OwnerCandidate::most);
      std::vector<Gradient> list;
      for (std::int64_t g = 0; g < groups; ++g) list.push_back({s, g, {}, kLate});
      for (const OwnerCandidate& candidate : candidates) {
        const auto held = [](const Gradient& gradient) {
          double sum = 0;
          for (const OwnerCandidate& c : gradient.candidates) sum += c.most;
          return sum;
        };
        std::ranges::min_element(list, {}, held)->candidates.push_back(candidate);
      }
      double done = 0;
      for (Gradient& gradient : list) done = std::max(done, gradient.done = done_at(gradient));
      if (!best.empty() && !are_even(list)) continue;
      if (best.empty() || done < best_done * 0.97) {
        best = std::move(list);
        best_done = done;
        best_groups = groups;
      }
    }
    layout_.groups[s] = best_groups;
    for (Gradient& gradient : best) gradients_.push_back(std::move(gradient));
  }

  void charge(std::size_t s, std::size_t device, double share, bool replica) {
    Load& load = loads_[device];
    const Busy reads = reading(s, device, replica);
    load.down += reads.down;
    load.compute += reads.compute + share * summing(s, device, replica);
    load.up += share * costs_.sent(s) / problem_.up[device];
    load.memory -= costs_.bytes(s, replica, share);
    ++load.owns;
  }

  void charge_own(const Gradient& gradient) {
    const std::vector<double> shares = shares_at(gradient, std::min(gradient.done, kLate));
    for (std::size_t k = 0; k < shares.size(); ++k) {
      if (shares[k] > kNoShare)
        charge(gradient.stage, gradient.candidates[k].device, std::min(1.0, 1.1 * shares[k]), true);
    }
  }

  bool has_part(const Gradient& gradient, std::size_t device) const {
    const std::vector<std::size_t>& replicas = layout_.stages[gradient.stage].replicas;
    return std::ranges::find(replicas, device) != replicas.end() ||
           std::ranges::any_of(gradient.candidates, [&](const OwnerCandidate& c) { return c.device == device; });
  }

  // Adds an owner to the gradient that ends last: the device that could take most of it by then. False: none helps.
  bool add_helper() {
    if (problem_.owners == OwnerPlaces::replicas || !layout_.settings.helpers) return false;
    const auto worst = std::ranges::max_element(gradients_, {}, [](const Gradient& gradient) {
      if (gradient.done < kLate) return gradient.done;
      double held = 0;
      for (const OwnerCandidate& c : gradient.candidates) held += c.most;
      return kLate + 1 - held;
    });
    if (worst == gradients_.end()) return false;
    Gradient& gradient = *worst;
    const std::size_t s = gradient.stage;
    const bool late = gradient.done >= kLate;
    const bool tight = layout_.settings.tight && late;
    const double wanted = late ? (tight ? kTightWait : 3) * layout_.settings.owning : gradient.done;
    double missing = 1;
    for (const OwnerCandidate& c : gradient.candidates) missing -= c.most;
    OwnerCandidate best;
    double most = 0, least_left = 0;
    for (std::size_t i = 0; i < loads_.size(); ++i) {
      const Load& load = loads_[i];
      if (load.owns >= layout_.settings.owned_stages) continue;
      const double held = costs_.held(s, false, load.memory);
      if (held < kLeastShare || (!tight && held <= most)) continue;
      // A bound of its share, as if it had nothing to read: most devices need not be looked at further.
      const double soonest = horizon(s) + load.up * kSumHeader;
      if (std::max(0.0, wanted - soonest) * problem_.up[i] / costs_.sent(s) <= (tight ? 0 : most)) continue;
      if (has_part(gradient, i)) continue;
      const OwnerCandidate one = candidate(s, i, false, held, load.up * kSumHeader);
      const double share = one.share_at(wanted);
      if (tight && share >= missing) {
        // Of the devices that can take all that is missing, the one with the least memory left afterwards.
        const double left = held - missing;
        if (most >= missing && left >= least_left) continue;
        least_left = left;
        most = missing;
      } else {
        if (share <= most) continue;
        most = share;
      }
      best = one;
    }
    if (most == 0) return false;
    gradient.candidates.push_back(best);
    const double done = done_at(gradient);
    if (!late && done > gradient.done * (1 - 3e-3)) {
      gradient.candidates.pop_back();
      return false;
    }
    gradient.candidates.back().most = std::min(best.most, std::min(1.0, most) * (tight ? 1 + 1e-9 : 1.05));
    charge(s, best.device, gradient.candidates.back().most, false);
    gradient.done = done_at(gradient);
    return true;
  }

  const Problem& problem_;
  Layout& layout_;
  const StageWork& work_;
  OwnerCosts costs_;
  std::vector<Load> loads_;
  std::vector<Gradient> gradients_;
};

}  // namespace

bool assign_owners(const Problem& problem, Layout& layout) { return Assigner(problem, layout).assign(); }

}  // namespace cleave::plan::stages
