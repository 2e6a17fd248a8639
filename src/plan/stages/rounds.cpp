// Pieces are cut into runs of about the same weights; each is searched as work of its own.
#include "stages/rounds.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "stages/finish.hpp"
#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

constexpr std::int64_t kLeastPieces = 1;   // of a round, beside the head
constexpr std::int64_t kMoreRounds = 3;    // that are tried beside the fewest that fit
constexpr std::int64_t kFewDevices = 128;  // of which all layouts of a round are looked at: it takes seconds with more
constexpr double kNext = 1.25;             // from one number of rounds that does not fit to the next one

// Some device has room for each piece, whatever else there is.
bool fits_piece_by_piece(const StageWork& work, std::span<const fleet::DeviceProfile> devices) {
  Bytes most;
  for (const fleet::DeviceProfile& device : devices) most = std::max(most, device.memory);
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i) {
    const Role role(StageCost(work, i, i + 1, std::min(kChunkTokens, work.seq)));
    if (replica_bytes(role) + static_cast<double>(role.cost.at_work().value()) > static_cast<double>(most.value()))
      return false;
  }
  return true;
}

// No fewer rounds can fit: weights and sums alone take so many times what devices have.
std::int64_t least_rounds(const StageWork& work, std::span<const fleet::DeviceProfile> devices) {
  double needed = 0, memory = 0;
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i) {
    const StageCost cost(work, i, i + 1, work.seq);
    needed += static_cast<double>(cost.weights().value()) +
              cost.gradient_elements() * static_cast<double>(sum_bytes(work.wire));
  }
  for (const fleet::DeviceProfile& device : devices) memory += static_cast<double>(device.memory.value());
  return std::max<std::int64_t>(2, static_cast<std::int64_t>(std::ceil(needed / memory)));
}

// Where each round begins, and the end; empty where there are too few pieces.
std::vector<std::int64_t> cut_into_rounds(const StageWork& work, std::int64_t rounds) {
  const std::int64_t body = std::ssize(work.pieces) - head_pieces(work);
  if (body < rounds * kLeastPieces) return {};
  std::vector<double> weights;
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i)
    weights.push_back(static_cast<double>(StageCost(work, i, i + 1, work.seq).weights().value()));
  const double all = std::reduce(weights.begin(), weights.end());
  std::vector<std::int64_t> begins{0};
  double before = 0;
  for (std::int64_t i = 0; i < body; ++i) {
    const std::int64_t round = std::ssize(begins), least = begins.back() + kLeastPieces;
    const bool full = before >= all * static_cast<double>(round) / static_cast<double>(rounds);
    const bool must = body - i <= (rounds - round) * kLeastPieces;  // so that the others have enough
    if (round < rounds && i >= least && (full || must)) begins.push_back(i);
    before += weights[static_cast<std::size_t>(i)];
  }
  begins.push_back(std::ssize(work.pieces));
  return begins;
}

// The pieces of one round.
StageWork work_of_round(const StageWork& work, std::int64_t first, std::int64_t end) {
  StageWork part = work;
  part.pieces.assign(work.pieces.begin() + first, work.pieces.begin() + end);
  return part;
}

// Stages of a round come after those of the rounds below.
void append(StagePlan& plan, StagePlan&& round, std::int64_t first_piece, std::int64_t number) {
  const auto first_stage = std::ssize(plan.stages);
  for (Stage& stage : round.stages) {
    stage.first += first_piece;
    stage.end += first_piece;
    stage.round = number;
    plan.stages.push_back(std::move(stage));
  }
  for (GradientOwner& owner : round.owners) {
    owner.stage += first_stage;
    for (PieceSlice& slice : owner.slices) slice.piece += first_piece;
    plan.owners.push_back(std::move(owner));
  }
  plan.groups.insert(plan.groups.end(), round.groups.begin(), round.groups.end());
  plan.bytes_down += round.bytes_down;
  plan.bytes_up += round.bytes_up;
}

// How long a layout's round takes, in all its phases.
double time_of_round(const Problem& problem, const Layout& layout, bool last) {
  if (last) return forecast(problem, layout, true);
  const bool back = std::ranges::any_of(problem.work->pieces, &model::Piece::backward);
  return forecast_one_way(problem, layout, false) + (back ? forecast_one_way(problem, layout, true) : 0);
}

// Of the layouts that are quickest on both ways at once, and with few devices also of those that are one way after the
// other: the second forecast is that of the phases, but the first layouts are chosen among fewer. None where a round
// does not fit.
std::vector<StagePlan> lay_out_in_rounds(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                         const StageOptions& options, std::int64_t rounds) {
  const std::vector<std::int64_t> begins = cut_into_rounds(work, rounds);
  if (begins.empty()) return {};
  const std::int64_t chunk = std::min(options.chunk > 0 ? options.chunk : kChunkTokens, work.seq);
  StagePlan plan;
  plan.chunk = chunk;
  plan.preload = options.preload;
  plan.head_parts = std::max<std::int64_t>(1, head_pieces(work));
  const bool all = std::ssize(devices) <= kFewDevices;
  std::vector<StagePlan> plans(all ? 2 : 1, plan);
  for (std::int64_t r = 0; r < rounds; ++r) {
    const auto first = begins[static_cast<std::size_t>(r)], end = begins[static_cast<std::size_t>(r) + 1];
    const StageWork part = work_of_round(work, first, end);
    const Problem problem = problem_of(part, devices, options);
    const std::vector<Layout> layouts = search_layouts(problem, chunk, all);
    if (layouts.empty()) return {};
    const bool last = r + 1 == rounds;
    const auto time = [&](const Layout& layout) { return time_of_round(problem, layout, last); };
    const Layout* const chosen[] = {&layouts.front(), &*std::ranges::min_element(layouts, {}, time)};
    for (std::size_t k = 0; k < plans.size(); ++k) {
      append(plans[k], finish(problem, *chosen[k]), first, r);
      if (!last) {  // weights come for both ways
        for (const Role& role : chosen[k]->roles)
          plans[k].bytes_down += role.cost.weights() * std::ssize(role.replicas);
      }
      plans[k].forecast += Seconds(time(*chosen[k]));
      plans[k].chain += Seconds(chain_time(problem, *chosen[k], false));
    }
  }
  return plans;
}

}  // namespace

std::vector<StagePlan> layouts_in_rounds(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                         const StageOptions& options) {
  std::vector<StagePlan> plans;
  if (!fits_piece_by_piece(work, devices)) return plans;
  const std::int64_t most = (std::ssize(work.pieces) - head_pieces(work)) / kLeastPieces;
  std::int64_t tried = 0;
  for (std::int64_t rounds = least_rounds(work, devices); rounds <= most && tried <= kMoreRounds;) {
    std::ranges::move(lay_out_in_rounds(work, devices, options, rounds), std::back_inserter(plans));
    if (!plans.empty()) ++tried;
    rounds = plans.empty() ? std::max(rounds + 1, static_cast<std::int64_t>(kNext * static_cast<double>(rounds)))
                           : rounds + 1;
  }
  std::ranges::stable_sort(plans, {}, &StagePlan::forecast);
  return plans;
}

}  // namespace cleave::plan::stages
