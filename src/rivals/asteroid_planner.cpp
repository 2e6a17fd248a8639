// Asteroid's planner: dynamic programme over units, device blocks and stages, from the last stage to the first.
//
// A tail is a run of stages that ends with the last unit. Tails with the same number of stages, first unit, first block
// and first group are compared by their RoundSummary: stages in front see nothing else of them. A tail is given up when
// its dominant step alone takes longer, over all micro-batches, than a whole plan that is already known.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "asteroid_plan.hpp"

namespace cleave::rivals {

namespace {

constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);
/// Tails kept per state; what is beyond goes, longest latency first. Small problems stay far below.
constexpr std::size_t kMostTails = 32;

struct Tail {
  RoundSummary summary;
  std::size_t node = kNoNode;
};

// A stage of a tail: units [unit, next's unit), blocks [block, block_end).
struct Node {
  std::size_t unit, unit_end, block, block_end, next;
};

struct StagePace {
  double forward_s = 0, backward_s = 0, reduce_s = 0;
  bool found = false;
};

class AsteroidSearch {
 public:
  AsteroidSearch(const AsteroidProblem& problem, std::size_t blocks)
      : problem_(problem),
        units_(problem.workload.units.size()),
        blocks_(std::min(blocks, problem.devices.size())),
        micro_batches_(static_cast<double>(problem.micro_batches)) {
    flops_.assign(units_ + 1, 0);
    for (std::size_t u = 0; u < units_; ++u) {
      const Unit& unit = problem.workload.units[u];
      flops_[u + 1] = flops_[u] + unit.forward_flops * (problem.recompute ? 2 : 1) + unit.backward_flops;
    }
    rates_.assign(blocks_ + 1, 0);
    for (std::size_t b = 0; b < blocks_; ++b) {
      rates_[b + 1] = rates_[b];
      for (const std::size_t d : members(b, b + 1)) rates_[b + 1] += problem.network.device(d).compute.value();
    }
  }

  /// Plans met on the way, the best first.
  std::vector<AsteroidPlan> run() {
    search();
    std::stable_sort(proposed_.begin(), proposed_.end(),
                     [](const AsteroidPlan& a, const AsteroidPlan& b) { return a.round_s < b.round_s; });
    return std::move(proposed_);
  }

 private:
  void search() {
    start_with_even_groups();
    // Stage by stage from the end. tails_[unit, block, block_end of the first group]
    std::vector<std::vector<Tail>> tails(states());
    for (std::size_t end = 1; end <= blocks_; ++end) {
      for (std::size_t block = 0; block < end; ++block) {
        for (std::size_t unit = units_; unit-- > 0;) {
          if (!put_in_front({}, unit, units_, block, end, 1, kNoNode, tails)) break;
        }
      }
    }
    finish(tails);
    const std::size_t most = std::min(units_, blocks_);
    for (std::size_t stages = 2; stages <= most; ++stages) {
      std::vector<std::vector<Tail>> longer(states());
      const auto in_flight = static_cast<std::int64_t>(2 * stages - 1);
      bool any = false;
      for (std::size_t unit_end = 1; unit_end < units_; ++unit_end) {
        for (std::size_t block_end = 1; block_end < blocks_; ++block_end) {
          for (std::size_t group_end = block_end + 1; group_end <= blocks_; ++group_end) {
            const std::vector<Tail>& behind = tails[index(unit_end, block_end, group_end)];
            if (behind.empty()) continue;
            any = true;
            for (std::size_t block = 0; block < block_end; ++block) {
              for (std::size_t unit = unit_end; unit-- > 0;) {
                if (!put_in_front(behind, unit, unit_end, block, block_end, in_flight, group_end, longer)) break;
              }
            }
          }
        }
      }
      if (!any) break;
      tails = std::move(longer);
      finish(tails);
    }
  }

  // Plans to start from: equal groups of the devices with most memory, for some numbers of stages and sizes of groups.
  // They may have more stages than there are blocks.
  void start_with_even_groups() {
    const std::size_t n = problem_.devices.size(), most = std::min(units_, n);
    for (std::size_t stages = 1; stages <= most;
         stages = stages < 8 || stages == most ? stages + 1 : std::min(stages * 5 / 4, most)) {
      for (std::size_t size = n / stages; size > 0; size /= 2) {
        std::vector<std::vector<std::size_t>> groups(stages);
        for (std::size_t i = 0; i < stages * size; ++i) groups[i / size].push_back(problem_.devices[i]);
        AsteroidPlan plan = recut_units(problem_, groups);
        if (plan.found()) propose(std::move(plan));
      }
    }
  }

  void propose(AsteroidPlan plan) {
    if (plan.round_s < best_.round_s) best_ = plan;
    proposed_.push_back(std::move(plan));
  }

  [[nodiscard]] std::size_t states() const { return units_ * blocks_ * (blocks_ + 1); }
  [[nodiscard]] std::size_t index(std::size_t unit, std::size_t block, std::size_t group_end) const {
    return (unit * blocks_ + block) * (blocks_ + 1) + group_end;
  }

  [[nodiscard]] std::span<const std::size_t> members(std::size_t block, std::size_t block_end) const {
    const std::size_t n = problem_.devices.size();
    const std::size_t first = block * n / blocks_, last = block_end * n / blocks_;
    return std::span(problem_.devices).subspan(first, last - first);
  }

  const StagePace& pace_of(std::size_t unit, std::size_t unit_end, std::size_t block, std::size_t block_end,
                           std::int64_t in_flight) {
    const std::uint64_t key =
        (((static_cast<std::uint64_t>(in_flight) * 1024 + unit) * 1024 + unit_end) * 1024 + block) * 1024 + block_end;
    const auto [found, fresh] = paces_.try_emplace(key);
    if (!fresh) return found->second;
    StagePace& pace = found->second;
    AsteroidStage stage;
    const std::span<const std::size_t> group = members(block, block_end);
    Allocation allocation = allocate_samples(problem_, group, unit, unit_end, in_flight);
    if (!allocation.found()) return pace;
    stage.first = unit;
    stage.last = unit_end;
    stage.members.assign(group.begin(), group.end());
    stage.samples = std::move(allocation.samples);
    pace = {allocation.forward_s, allocation.backward_s, all_reduce_s(problem_, stage), true};
    return pace;
  }

  double communication(std::size_t unit, std::size_t block, std::size_t block_end, std::size_t group_end) {
    const std::uint64_t key = ((static_cast<std::uint64_t>(block) * 1024 + block_end) * 1024 + group_end);
    const auto [found, fresh] = links_.try_emplace(key, 0.0);
    if (fresh) found->second = communication_s(problem_, members(block, block_end), members(block_end, group_end), 1.0);
    return found->second * problem_.workload.units[unit].input_bytes;
  }

  // Puts a stage in front of every tail; false when no larger stage (lower `unit`) over these blocks can be of use.
  bool put_in_front(const std::vector<Tail>& behind, std::size_t unit, std::size_t unit_end, std::size_t block,
                    std::size_t block_end, std::int64_t in_flight, std::size_t group_end,
                    std::vector<std::vector<Tail>>& into) {
    const double least_s = static_cast<double>(problem_.micro_batch) * (flops_[unit_end] - flops_[unit]) /
                           (rates_[block_end] - rates_[block]);
    if (micro_batches_ * least_s >= best_.round_s) return false;
    const StagePace& pace = pace_of(unit, unit_end, block, block_end, in_flight);
    if (!pace.found) return false;  // more units take more memory
    std::vector<Tail>& kept = into[index(unit, block, block_end)];
    const auto add = [&](RoundSummary summary, std::size_t next) {
      summary = summary.behind(pace.forward_s, pace.backward_s, pace.reduce_s, micro_batches_);
      if (micro_batches_ * summary.dominant_s >= best_.round_s) return;
      keep({summary, kNoNode}, {unit, unit_end, block, block_end, next}, kept);
    };
    if (group_end == kNoNode) {
      add({}, kNoNode);
    } else {
      const double between_s = communication(unit_end, block, block_end, group_end);
      for (const Tail& tail : behind) add(tail.summary.behind(between_s, between_s, 0, micro_batches_), tail.node);
    }
    return true;
  }

  void keep(Tail tail, const Node& node, std::vector<Tail>& kept) {
    for (const Tail& other : kept) {
      if (other.summary.covers(tail.summary)) return;
    }
    std::erase_if(kept, [&](const Tail& other) { return tail.summary.covers(other.summary); });
    tail.node = nodes_.size();
    nodes_.push_back(node);
    kept.push_back(tail);
    if (kept.size() <= kMostTails) return;
    kept.erase(std::max_element(kept.begin(), kept.end(), [](const Tail& a, const Tail& b) {
      return a.summary.latency_s < b.summary.latency_s;
    }));
  }

  // Tails that hold every unit and start with the first block are plans.
  void finish(const std::vector<std::vector<Tail>>& tails) {
    for (std::size_t end = 1; end <= blocks_; ++end) {
      for (const Tail& tail : tails[index(0, 0, end)]) {
        if (tail.summary.latency_s < best_.round_s) propose(plan_of(tail));
      }
    }
  }

  [[nodiscard]] AsteroidPlan plan_of(const Tail& tail) const {
    AsteroidPlan plan;
    plan.round_s = tail.summary.latency_s;
    for (std::size_t n = tail.node; n != kNoNode; n = nodes_[n].next) {
      const Node& node = nodes_[n];
      AsteroidStage stage;
      stage.first = node.unit;
      stage.last = node.unit_end;
      const std::span<const std::size_t> group = members(node.block, node.block_end);
      stage.members.assign(group.begin(), group.end());
      plan.stages.push_back(std::move(stage));
    }
    const auto count = static_cast<std::int64_t>(plan.stages.size());
    for (std::int64_t p = 0; p < count; ++p) {
      AsteroidStage& stage = plan.stages[static_cast<std::size_t>(p)];
      stage.in_flight = 2 * (count - p) - 1;
      stage.samples = allocate_samples(problem_, stage.members, stage.first, stage.last, stage.in_flight).samples;
    }
    return plan;
  }

  const AsteroidProblem& problem_;
  std::size_t units_, blocks_;
  double micro_batches_;
  std::vector<double> flops_, rates_;  // sums up to a unit, up to a block
  std::unordered_map<std::uint64_t, StagePace> paces_;
  std::unordered_map<std::uint64_t, double> links_;  // seconds per byte of a sample
  std::vector<Node> nodes_;
  AsteroidPlan best_;
  std::vector<AsteroidPlan> proposed_;
};

}  // namespace

std::vector<AsteroidPlan> propose_plans(const AsteroidProblem& problem, std::size_t blocks) {
  if (problem.devices.empty()) return {};
  return AsteroidSearch(problem, blocks).run();
}

AsteroidPlan plan_asteroid(const AsteroidProblem& problem, std::size_t blocks) {
  std::vector<AsteroidPlan> plans = propose_plans(problem, blocks);
  return plans.empty() ? AsteroidPlan{} : std::move(plans.front());
}

AsteroidPlan recut_units(const AsteroidProblem& problem, const std::vector<std::vector<std::size_t>>& groups) {
  const std::size_t units = problem.workload.units.size(), stages = groups.size();
  AsteroidPlan plan;
  if (stages == 0 || stages > units) return plan;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // slowest[p][u]: units [u, end) on groups [p, stages); next[p][u]: where stage p ends.
  std::vector<std::vector<double>> slowest(stages + 1, std::vector<double>(units + 1, kNever));
  std::vector<std::vector<std::size_t>> next(stages + 1, std::vector<std::size_t>(units + 1, units));
  slowest[stages][units] = 0;
  for (std::size_t p = stages; p-- > 0;) {
    const auto in_flight = static_cast<std::int64_t>(2 * (stages - p) - 1);
    for (std::size_t u = 0; u < units; ++u) {
      for (std::size_t end = u + 1; end <= units; ++end) {
        if (slowest[p + 1][end] == kNever) continue;
        const Allocation allocation = allocate_samples(problem, groups[p], u, end, in_flight);
        if (!allocation.found()) break;
        const double value = std::max(slowest[p + 1][end], allocation.forward_s + allocation.backward_s);
        if (value < slowest[p][u]) {
          slowest[p][u] = value;
          next[p][u] = end;
        }
      }
    }
  }
  if (slowest[0][0] == kNever) return plan;
  std::size_t unit = 0;
  for (std::size_t p = 0; p < stages; ++p) {
    AsteroidStage stage;
    stage.first = unit;
    stage.last = unit = next[p][unit];
    stage.members = groups[p];
    stage.in_flight = static_cast<std::int64_t>(2 * (stages - p) - 1);
    stage.samples = allocate_samples(problem, stage.members, stage.first, stage.last, stage.in_flight).samples;
    plan.stages.push_back(std::move(stage));
  }
  plan.round_s = round_latency_s(problem, plan.stages);
  return plan;
}

}  // namespace cleave::rivals
