// Stages of equal FLOP, each of them on every device. With more stages, sequences are shared out more evenly, and more
// boundaries are sent.
#include "stages/data_parallel.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <utility>

#include "cleave/plan/cost.hpp"

namespace cleave::plan::stages {

namespace {

constexpr std::int64_t kLeastKept = 2;  // sequences: one comes back while the next goes forward

class DataParallel {
 public:
  DataParallel(const Problem& problem, std::int64_t stages, std::int64_t chunk, Passes passes)
      : problem_(problem), work_(*problem.work), chunk_(std::min(chunk, work_.seq)), passes_(passes) {
    cut(stages);
    for (const StageCost& cost : costs_) {
      const std::vector<PieceSlice> all = slices_between(work_, cost, 0, 1);
      slices_.push_back(all);
      owners_.push_back(owner_cost(work_, cost, all, chunk_));
    }
  }

  std::optional<StagePlan> plan() {
    // Each travels in one message.
    if (std::ranges::any_of(costs_, [](const StageCost& cost) { return cost.weights() > kMaxMessage; })) return {};
    if (!take_memory()) return std::nullopt;
    StagePlan plan;
    plan.chunk = chunk_;
    plan.preload = problem_.preload;
    const auto devices = std::ssize(problem_.devices);
    for (std::size_t s = 0; s < costs_.size(); ++s) {
      const StageCost& cost = costs_[s];
      Stage stage{cost.first(), cost.end(), cost.weights(), {}};
      for (std::size_t i = 0; i < problem_.devices.size(); ++i) {
        StageReplica replica;
        replica.device = problem_.devices[i].id;
        replica.kept_slots = cost.backward() ? kept_[i] : 0;
        replica.memory = cost.least_replica() + cost.kept() * replica.kept_slots;
        if (replica.kept_slots > 0) replica.memory += cost.packed();
        stage.replicas.push_back(replica);
        if (slices_[s].empty()) continue;
        GradientOwner owner;
        owner.device = replica.device;
        owner.stage = static_cast<std::int64_t>(s);
        owner.group = static_cast<std::int64_t>(i);
        owner.slices = slices_[s];
        owner.replica = true;
        owner.memory = sums(s) + owners_[s].at_work + owners_[s].waiting(true);
        plan.owners.push_back(std::move(owner));
        plan.bytes_up += Bytes(static_cast<std::int64_t>(owners_[s].elements) * size_of_sums());
      }
      plan.stages.push_back(std::move(stage));
      plan.groups.push_back(slices_[s].empty() ? 1 : devices);
      plan.bytes_down += cost.weights() * (passes_ == Passes::both ? devices : 2 * devices);
      plan.bytes_down += taken_in(cost, work_.tokens());
      plan.bytes_up += cost.sent(work_.tokens());
    }
    plan.forecast = Seconds(forecast(plan.chain));
    return plan;
  }

 private:
  void cut(std::int64_t stages) {
    const std::int64_t body = std::ssize(work_.pieces) - head_pieces(work_);
    double all = 0, before = 0;
    std::vector<double> flops;
    for (std::int64_t i = 0; i < body; ++i) {
      flops.push_back(stage_flops(work_, StageCost(work_, i, i + 1, chunk_)));
      all += flops.back();
    }
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < body; ++i) {
      before += flops[static_cast<std::size_t>(i)];
      const double due = all * static_cast<double>(costs_.size() + 1) / static_cast<double>(stages);
      if (before < due * (1 - 1e-9) && i + 1 < body) continue;
      costs_.emplace_back(work_, first, i + 1, chunk_);
      first = i + 1;
    }
    if (body < std::ssize(work_.pieces)) costs_.emplace_back(work_, body, body + 1, chunk_);
    body_ = std::max<std::int64_t>(1, std::ssize(costs_) - head_pieces(work_));
  }

  std::int64_t size_of_sums() const {
    return problem_.devices.size() == 1 ? size_of(work_.wire) : sum_bytes(work_.wire);
  }
  Bytes sums(std::size_t s) const {
    return Bytes(static_cast<std::int64_t>(owners_[s].elements) * sum_bytes(work_.wire));
  }
  Bytes taken_in(const StageCost& cost, std::int64_t rows) const {
    return cost.twice() ? cost.boundary(rows) + cost.backward_operand(rows) : cost.boundary(rows);
  }

  bool take_memory() {
    double needed = 0, kept = 0, packed = 0;
    for (std::size_t s = 0; s < costs_.size(); ++s) {
      needed += in_bytes(costs_[s].least_replica() + sums(s) + owners_[s].at_work + owners_[s].waiting(true));
      if (!costs_[s].backward()) continue;
      kept += in_bytes(costs_[s].kept());
      packed += in_bytes(costs_[s].packed());
    }
    for (const double memory : problem_.memory) {
      if (memory < needed) return false;
      const auto most = static_cast<double>(work_.batch);
      const auto slots = static_cast<std::int64_t>(kept > 0 ? std::min(most, (memory - needed - packed) / kept) : 0);
      kept_.push_back(passes_ == Passes::both && slots >= std::min(kLeastKept, work_.batch) ? slots : 0);
    }
    return true;
  }

  // Time for weights and sums, plus the longest of: processors, when each takes stages of sequences one by one; links.
  // `chain`: without weights and sums.
  double forecast(Seconds& chain) const {
    const auto devices = problem_.devices.size();
    const std::int64_t units = body_;
    double up = 0, down = 0, weights = 0, elements = 0, filling = 0;
    std::vector<double> flops(devices, 0);  // of a sequence
    for (const StageCost& cost : costs_) {
      up += in_bytes(cost.sent(work_.seq));
      down += in_bytes(taken_in(cost, work_.seq));
      weights += in_bytes(cost.weights());
      elements += cost.gradient_elements();
      filling += in_bytes(cost.boundary(chunk_));
      for (std::size_t i = 0; i < devices; ++i) flops[i] += of_sequence(cost, kept_[i] > 0);
    }
    std::vector<std::int64_t> taken(devices, 0);
    const auto computing = [&](std::size_t i, std::int64_t more) {
      return static_cast<double>(taken[i] + more) * flops[i] / static_cast<double>(units) / problem_.flops[i];
    };
    using Next = std::pair<double, std::size_t>;  // when a device would have computed one more, and which
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    for (std::size_t i = 0; i < devices; ++i) next.emplace(computing(i, 1), i);
    for (std::int64_t k = 0; k < work_.batch * units; ++k) {
      const std::size_t soonest = next.top().second;
      next.pop();
      ++taken[soonest];
      next.emplace(computing(soonest, 1), soonest);
    }
    double passing = 0, around = 0, first = 0, slowest_weights = 0;
    for (std::size_t i = 0; i < devices; ++i) {
      const double share = static_cast<double>(taken[i]) / static_cast<double>(units);
      passing = std::max({passing, computing(i, 0), share * up / problem_.up[i], share * down / problem_.down[i]});
      slowest_weights = std::max(slowest_weights, weights / problem_.down[i]);
      around = std::max(around,
                        weights / problem_.down[i] + elements * static_cast<double>(size_of_sums()) / problem_.up[i]);
      const double latency = problem_.devices[i].latency.value() * static_cast<double>(costs_.size());
      first = std::max(first, 2 * (filling / problem_.up[i] + filling / problem_.down[i] + 2 * latency));
    }
    const auto all = static_cast<double>(devices), batch = static_cast<double>(work_.batch);
    around = std::max(
        around, all * (weights / problem_.nic_out + elements * static_cast<double>(size_of_sums()) / problem_.nic_in));
    passing = std::max({passing, batch * down / problem_.nic_out, batch * up / problem_.nic_in});
    chain = Seconds(first + passing);
    // One way and then the other: weights come for each, and stages fill and drain once more.
    const double again = passes_ == Passes::one_by_one ? first + slowest_weights : 0;
    return around + first + passing + again;
  }

  double of_sequence(const StageCost& cost, bool kept) const {
    double flops = cost.forward(0, work_.seq).value();
    if (cost.twice()) flops += cost.way_back(work_.seq, kept).value();
    for (std::int64_t i = cost.first(); i < cost.end(); ++i)
      flops += work_.pieces[static_cast<std::size_t>(i)].weight_gradient * static_cast<double>(work_.seq);
    return flops;
  }

  const Problem& problem_;
  const StageWork& work_;
  std::int64_t chunk_;
  Passes passes_;
  std::int64_t body_ = 1;  // stages below the head
  std::vector<StageCost> costs_;
  std::vector<std::vector<PieceSlice>> slices_;  // of each stage
  std::vector<OwnerCost> owners_;
  std::vector<std::int64_t> kept_;  // slots of each device
};

}  // namespace

std::vector<StagePlan> data_parallel_layouts(const Problem& problem, std::int64_t chunk, Passes passes) {
  const StageWork& work = *problem.work;
  const std::int64_t body = std::ssize(work.pieces) - head_pieces(work);
  std::vector<StagePlan> plans;
  if (work.pieces.back().is_part() || (passes == Passes::both && head_pieces(work) == 0) || body == 0 ||
      std::ssize(problem.devices) > work.batch || problem.owners == OwnerPlaces::apart)
    return plans;
  // The fewest stages whose weights each travel in one message, as they are about equal.
  const double weights = in_bytes(StageCost(work, 0, body, work.seq).weights());
  const auto fewest = static_cast<std::int64_t>(std::ceil(1.05 * weights / in_bytes(kMaxMessage)));
  std::set<std::int64_t> chunks{chunk > 0 ? std::min(chunk, work.seq) : work.seq};
  if (chunk == 0) chunks.insert(std::min(2 * kChunkTokens, work.seq));
  for (const std::int64_t tokens : chunks) {
    for (const std::int64_t stages :
         std::set<std::int64_t>{fewest, 2 * fewest, std::min<std::int64_t>(4 * fewest, body), (body + 1) / 2}) {
      if (stages > body) continue;
      if (std::optional<StagePlan> plan = DataParallel(problem, stages, tokens, passes).plan())
        plans.push_back(std::move(*plan));
    }
  }
  std::ranges::stable_sort(plans, {}, &StagePlan::forecast);
  return plans;
}

}  // namespace cleave::plan::stages
