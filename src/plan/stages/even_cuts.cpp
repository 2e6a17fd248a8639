// Stages of equal time. Groups of devices take runs of pieces so that no group is done much later than the others, with
// weights, sequences and sums. This gives good layouts where processors are scarce or links are fast in both
// directions; what the devices can hold then matters less.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {

namespace {

constexpr int kBisections = 24;

// Devices that hold one stage.
struct Group {
  std::vector<std::size_t> devices;
  double up = 0, down = 0, flops = 0;
  double least_up = 0, least_down = 0, memory = 0;  // of one device
};

class EvenCut {
 public:
  EvenCut(const Problem& problem, const Settings& settings)
      : problem_(problem), settings_(settings), work_(*problem.work) {
    body_ = std::ssize(work_.pieces) - head_pieces(work_);
    runs_.resize((work_.pieces.size() + 1) * (work_.pieces.size() + 1));
    form_groups();
  }

  std::optional<std::vector<StageDraft>> cut() {
    double low = 0, high = 0;
    for (const Group& group : groups_) high = std::max(high, time(group, 0, body_));
    for (std::int64_t i = body_; i < std::ssize(work_.pieces); ++i)
      for (const Group& group : groups_) high = std::max(high, time(group, i, i + 1));
    std::optional<std::vector<StageDraft>> best = stages_within(high);
    if (!best) return best;
    for (int i = 0; i < kBisections && high - low > 1e-3 * high; ++i) {
      const double middle = (low + high) / 2;
      if (auto stages = stages_within(middle)) {
        best = std::move(stages);
        high = middle;
      } else {
        low = middle;
      }
    }
    return best;
  }

 private:
  // Makes the groups as equal as may be: the devices, the quickest first, go to the groups in turn, in serpentine order
  // (0, 1, 2, 2, 1, 0, ...).
  void form_groups() {
    std::vector<std::size_t> order;
    const std::vector<bool> may = may_replicate(problem_, settings_);
    for (std::size_t i = 0; i < problem_.devices.size(); ++i) {
      if (may[i]) order.push_back(i);
    }
    const std::vector<double> times = passing_times(problem_, settings_);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return times[i]; });
    groups_.resize(static_cast<std::size_t>(std::min<std::int64_t>(settings_.even_stages, std::ssize(order))));
    const std::size_t count = groups_.size();
    for (std::size_t k = 0; k < order.size(); ++k) {
      const std::size_t place = k % count, device = order[k];
      Group& group = groups_[(k / count) % 2 == 0 ? place : count - 1 - place];
      const bool first = group.devices.empty();
      group.devices.push_back(device);
      group.up += problem_.up[device];
      group.down += problem_.down[device];
      group.flops += problem_.flops[device];
      group.least_up = first ? problem_.up[device] : std::min(group.least_up, problem_.up[device]);
      group.least_down = first ? problem_.down[device] : std::min(group.least_down, problem_.down[device]);
      group.memory = first ? problem_.memory[device] : std::min(group.memory, problem_.memory[device]);
    }
  }

  // Figures of pieces [begin, end) as a stage, the same for all groups: FLOP, bytes, elements of the gradient.
  struct Run {
    double flops = 0, weights = 0, sent = 0, taken_in = 0, held = 0, elements = 0;
  };
  const Run& run(std::int64_t begin, std::int64_t end) {
    std::optional<Run>& place = runs_[static_cast<std::size_t>(begin * (std::ssize(work_.pieces) + 1) + end)];
    if (!place) {
      const StageCost& of = cost(begin, end);
      place = Run{.flops = stage_flops(work_, of, settings_.keeping),
                  .weights = in_bytes(of.weights()),
                  .sent = in_bytes(of.sent(work_.tokens())),
                  .taken_in = in_bytes(of.taken_in(work_.tokens(), is_kept(settings_, of))),
                  .held = replica_bytes(work_, StageDraft(of), settings_) + in_bytes(of.at_work() * 2),
                  .elements = of.gradient_elements()};
    }
    return *place;
  }
  const StageCost& cost(std::int64_t begin, std::int64_t end) const {
    return problem_.book->cost(begin, end, settings_.chunk);
  }

  // Time from the step's begin until the group has sent its sums, if it waits for no other stage.
  double time(const Group& group, std::int64_t begin, std::int64_t end) {
    const Run& of = run(begin, end);
    const double passing = std::max({of.flops / group.flops, of.sent / group.up, of.taken_in / group.down});
    const auto members = static_cast<std::int64_t>(group.devices.size());
    const std::int64_t groups = std::min(members, settings_.groups);
    const std::int64_t size = groups == 1 ? size_of(work_.wire) : sum_bytes(work_.wire);
    const double sums = of.elements * static_cast<double>(size * groups) / group.up;
    return of.weights / group.least_down + passing + sums;
  }

  bool fits(const Group& group, std::int64_t begin, std::int64_t end) {
    const Run& of = run(begin, end);
    const auto members = static_cast<double>(group.devices.size());
    return of.held + of.elements * static_cast<double>(sum_bytes(work_.wire)) / members <= group.memory;
  }

  // Stages whose time is at most `limit`; none where pieces are left over. The head's pieces are taken first, then the
  // others from the bottom. Each time the group takes them that they fill best: whose time comes closest to the limit.
  std::optional<std::vector<StageDraft>> stages_within(double limit) {
    std::vector<bool> used(groups_.size(), false);
    std::vector<std::pair<std::size_t, std::pair<std::int64_t, std::int64_t>>> taken;
    const auto take = [&](std::int64_t begin, bool body) {
      std::size_t best = groups_.size();
      double fullest = 0;
      std::int64_t best_end = begin;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (used[g]) continue;
        std::int64_t end = begin;
        const std::int64_t most = body ? body_ : begin + 1;
        while (end < most && fits(groups_[g], begin, end + 1) && time(groups_[g], begin, end + 1) <= limit) ++end;
        if (end == begin) continue;
        const double full = time(groups_[g], begin, end);
        if (full <= fullest) continue;
        fullest = full;
        best = g;
        best_end = end;
      }
      if (best == groups_.size()) return false;
      used[best] = true;
      taken.push_back({best, {begin, best_end}});
      return true;
    };
    for (std::int64_t i = body_; i < std::ssize(work_.pieces); ++i) {
      if (!take(i, false)) return std::nullopt;
    }
    for (std::int64_t at = 0; at < body_; at = taken.back().second.second) {
      if (!take(at, true)) return std::nullopt;
    }
    std::ranges::sort(taken, {}, [](const auto& of) { return of.second.first; });
    std::vector<StageDraft> stages;
    for (const auto& [group, run] : taken) {
      StageDraft& draft = stages.emplace_back(cost(run.first, run.second));
      draft.replicas = groups_[group].devices;
      draft.uplink = groups_[group].up;
    }
    return stages;
  }

  const Problem& problem_;
  const Settings& settings_;
  const StageWork& work_;
  std::int64_t body_ = 0;
  std::vector<Group> groups_;
  std::vector<std::optional<Run>> runs_;  // by begin and end
};

}  // namespace

std::vector<StageDraft> cut_evenly(const Problem& problem, const Settings& settings) {
  return EvenCut(problem, settings).cut().value_or(std::vector<StageDraft>{});
}

}  // namespace cleave::plan::stages
