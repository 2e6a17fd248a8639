// Cuts the pieces into rounds of about the same weights, and searches a layout for each round as for work of its own.
// Pieces that no device has room for run in tiles, in rounds between the others.
#include "stages/rounds.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "stages/data_parallel.hpp"
#include "stages/finish.hpp"
#include "stages/layout.hpp"
#include "stages/level_owners.hpp"
#include "stages/tile_rounds.hpp"

namespace cleave::plan::stages {

namespace {

constexpr std::int64_t kLeastPieces = 1;  // pieces of a round, without the head
constexpr std::int64_t kMoreRounds = 3;   // numbers of rounds that are tried beyond the least that fits
constexpr std::int64_t kFewDevices =
    128;  // up to so many, all layouts of a round are compared; more would take seconds
// The first layouts of a round in search(), which are always offered; others where their forecast is this x the least
// of these.
constexpr std::ptrdiff_t kUsual = 4;
constexpr double kPromise = 0.97;
// Layouts of a round that follow the quickest by their own times, with few devices.
constexpr std::size_t kNextQuickest = 6;
// Data-parallel layouts of a round, which differ in their numbers of stages.
constexpr std::size_t kWhole = 3;
// The last round takes this factor of the time until its last owner ends, since weights and operands come at the same
// time. Fitted to simulated steps of 256 devices of 512, 600 and 700 MB.
constexpr double kLastRound = 1.07;
constexpr double kNext = 1.25;  // factor from a number of rounds that does not fit to the next one

// Bytes of a replica with the least number of open sequences and a chunk at work.
double memory_of_replica(const StageDraft& draft) { return static_cast<double>(draft.cost.least_replica().value()); }

// For each piece: whether some device has room for it alone.
std::vector<bool> pieces_that_fit(const StageWork& work, std::span<const fleet::DeviceProfile> devices) {
  Bytes most;
  for (const fleet::DeviceProfile& device : devices) most = std::max(most, device.memory);
  std::vector<bool> fit;
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i) {
    const StageDraft draft(StageCost(work, i, i + 1, std::min(kChunkTokens, work.seq)));
    fit.push_back(memory_of_replica(draft) <= static_cast<double>(most.value()));
  }
  return fit;
}

// A lower bound of the number of rounds: weights and sums alone, over the memory of all devices.
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

// A round: pieces [first, end).
struct Round {
  std::int64_t first = 0, end = 0;
  bool tiles = false;
};

// Cuts pieces [first, end) into so many rounds of about the same weights; none where there are too few pieces.
std::vector<Round> cut_into_rounds(const StageWork& work, std::int64_t first, std::int64_t end, std::int64_t rounds) {
  const bool with_head = end == std::ssize(work.pieces);
  const std::int64_t body = end - (with_head ? head_pieces(work) : 0);
  if (body - first < rounds * kLeastPieces && (rounds > 1 || end == first)) return {};
  std::vector<double> weights;
  for (std::int64_t i = first; i < end; ++i)
    weights.push_back(static_cast<double>(StageCost(work, i, i + 1, work.seq).weights().value()));
  const double all = std::reduce(weights.begin(), weights.end());
  std::vector<std::int64_t> begins{first};
  double before = 0;
  for (std::int64_t i = first; i < body; ++i) {
    const std::int64_t round = std::ssize(begins), least = begins.back() + kLeastPieces;
    const bool full = before >= all * static_cast<double>(round) / static_cast<double>(rounds);
    const bool must = body - i <= (rounds - round) * kLeastPieces;  // so that enough pieces are left for the others
    if (round < rounds && i >= least && (full || must)) begins.push_back(i);
    before += weights[static_cast<std::size_t>(i - first)];
  }
  begins.push_back(end);
  std::vector<Round> cut;
  for (std::size_t k = 0; k + 1 < begins.size(); ++k) cut.push_back({begins[k], begins[k + 1], false});
  return cut;
}

// The pieces of one round.
StageWork work_of_round(const StageWork& work, std::int64_t first, std::int64_t end) {
  StageWork part = work;
  part.pieces.assign(work.pieces.begin() + first, work.pieces.begin() + end);
  return part;
}

// Appends the stages and owners of a round to a plan.
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

// Time of a round with this layout, in all of its phases.
double time_of_round(const Problem& problem, const Layout& layout, bool last) {
  if (last) return kLastRound * beside_interface(problem, layout, owners_end(problem, layout));
  const bool back = std::ranges::any_of(problem.work->pieces, &model::Piece::backward);
  return forecast_one_way(problem, layout, false) + (back ? forecast_one_way(problem, layout, true) : 0);
}

// The layout of the last round with levelled owners. The last round is passed both ways, as a step without rounds is.
Layout levelled(const Problem& problem, const Layout& layout) {
  std::optional<Layout> level = level_owners(problem, layout, false, owners_end(problem, layout));
  return level && within_memory(problem, finish(problem, *level)) ? *std::move(level) : layout;
}

// Makes devices without a part in a round replicas of one of its stages, those with the quickest uplinks first, where
// they have room for it and the round becomes quicker.
template <class Time>
Layout with_idle_devices(const Problem& problem, Layout layout, const Time& time) {
  std::vector<bool> busy(problem.devices.size(), false);
  for (const StageDraft& draft : layout.stages) {
    for (const std::size_t device : draft.replicas) busy[device] = true;
  }
  for (const OwnerShare& owned : layout.owners) busy[owned.device] = true;
  std::vector<std::size_t> idle;
  for (std::size_t i = 0; i < busy.size(); ++i) {
    if (!busy[i]) idle.push_back(i);
  }
  std::ranges::stable_sort(idle, std::greater(), [&](std::size_t i) { return problem.up[i]; });
  double least = time(layout);
  for (const std::size_t device : idle) {
    std::optional<std::size_t> best;
    for (std::size_t r = 0; r < layout.stages.size(); ++r) {
      StageDraft& draft = layout.stages[r];
      if (memory_of_replica(draft) > problem.memory[device]) continue;
      draft.replicas.push_back(device);
      if (const double with = time(layout); with < least) {
        least = with;
        best = r;
      }
      draft.replicas.pop_back();
    }
    if (best) layout.stages[*best].replicas.push_back(device);
  }
  return layout;
}

// Lays out work round by round. Rounds of alike pieces have the same layout, which is searched once.
class RoundLayouts {
 public:
  RoundLayouts(const StageWork& work, std::span<const fleet::DeviceProfile> devices, const StageOptions& options)
      : work_(work),
        devices_(devices),
        options_(options),
        chunk_(std::min(options.chunk > 0 ? options.chunk : kChunkTokens, work.seq)) {}

  // Plans for these rounds, which differ in the layouts of their rounds (search()); none where a round does not fit. Of
  // those beyond the first four, the ones that promise something: rehearsals end after so many layouts.
  std::vector<StagePlan> lay_out(const std::vector<Round>& rounds) {
    if (rounds.empty()) return {};
    StagePlan plan;
    plan.chunk = chunk_;
    plan.preload = options_.preload;
    plan.head_parts = std::max<std::int64_t>(1, head_pieces(work_));
    std::vector<StagePlan> plans(variants(), plan);
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      const Round& round = rounds[r];
      const bool last = r + 1 == rounds.size();
      const Found* const found = round.tiles ? nullptr : &find(round, last);
      if (found != nullptr && !found->fits()) return {};
      for (std::size_t k = 0; k < plans.size(); ++k) {
        if (found == nullptr) {
          append_tiles(plans[k], round, static_cast<std::int64_t>(r));
        } else {
          StagePlan part = found->plans[k];
          plans[k].forecast += part.forecast;
          plans[k].chain += part.chain;
          append(plans[k], std::move(part), round.first, static_cast<std::int64_t>(r));
        }
      }
    }
    if (plans.size() > kUsual) {
      const auto usual = plans.begin() + kUsual;
      const Seconds least = std::min_element(plans.begin(), usual, [](const auto& a, const auto& b) {
                              return a.forecast < b.forecast;
                            })->forecast;
      plans.erase(
          std::remove_if(usual, plans.end(), [&](const StagePlan& of) { return of.forecast > least * kPromise; }),
          plans.end());
    }
    return plans;
  }

  // The least number of rounds of pieces [first, end) for which all fit; none where no number does.
  std::vector<Round> fewest(std::int64_t first, std::int64_t end) {
    for (std::int64_t count = 1; count <= std::max<std::int64_t>(1, end - first); ++count) {
      const std::vector<Round> rounds = cut_into_rounds(work_, first, end, count);
      const auto fits = [&](const Round& round) { return find(round, round.end == std::ssize(work_.pieces)).fits(); };
      if (!rounds.empty() && std::ranges::all_of(rounds, fits)) return rounds;
    }
    return {};
  }

 private:
  // The figures of pieces that their layout depends on.
  using Alike = std::vector<std::tuple<model::PieceKind, std::int64_t, std::int64_t, double, bool>>;
  struct Found {
    std::vector<StagePlan> plans;
    [[nodiscard]] bool fits() const { return !plans.empty(); }
  };

  [[nodiscard]] std::size_t variants() const { return looks_at_all() ? 5 + kNextQuickest + kWhole : 1; }
  [[nodiscard]] bool looks_at_all() const { return std::ssize(devices_) <= kFewDevices; }

  const Found& find(const Round& round, bool last) {
    Alike alike;
    for (std::int64_t i = round.first; i < round.end; ++i) {
      const model::Piece& piece = work_.pieces[static_cast<std::size_t>(i)];
      const double trained = StageCost(work_, i, i + 1, chunk_).gradient_elements();
      alike.emplace_back(piece.kind, piece.weight_elements(), piece.units, trained, piece.backward);
    }
    const auto [found, is_new] = found_.try_emplace({std::move(alike), last});
    if (is_new) found->second = search(round, last);
    return found->second;
  }

  // Layouts of a round: the best of the search, whose forecast is for sequences that pass both ways at once. With few
  // devices more: the quickest by the time of the phases; each of the two with devices that were idle; the quickest in
  // which replicas alone own gradients; the next ones by the time of the phases; and the data-parallel one. Where there
  // is none of a kind, the quickest stands in its place.
  Found search(const Round& round, bool last) const {
    const StageWork part = work_of_round(work_, round.first, round.end);
    const Problem problem = problem_of(part, devices_, options_);
    std::vector<StagePlan> whole = data_parallel_layouts(problem, chunk_, last ? Passes::both : Passes::one_by_one);
    const std::vector<Layout> layouts = search_layouts(problem, chunk_, looks_at_all());
    if (layouts.empty()) {
      Found found;
      for (std::size_t k = 0; k < variants() && !whole.empty(); ++k)
        found.plans.push_back(whole[std::min(k, whole.size() - 1)]);
      return found;
    }
    const auto time = [&](const Layout& layout) { return time_of_round(problem, layout, last); };
    std::vector<Layout> chosen{layouts.front()};
    if (looks_at_all()) {
      const std::vector<const Layout*> order = by_time(layouts, time);
      const Layout& quickest = *order.front();
      chosen.push_back(quickest);
      for (const std::size_t k : {0, 1}) chosen.push_back(with_idle_devices(problem, chosen[k], time));
      chosen.push_back(owned_by_replicas(problem, time).value_or(quickest));
      for (std::size_t k = 1; k <= kNextQuickest; ++k) chosen.push_back(k < order.size() ? *order[k] : quickest);
    }
    Found found;
    for (Layout& layout : chosen) {
      if (last) layout = levelled(problem, layout);
      StagePlan plan = finish(problem, layout);
      if (!last) {  // weights are sent for the forward and for the backward phase
        for (const StageDraft& draft : layout.stages)
          plan.bytes_down += draft.cost.weights() * std::ssize(draft.replicas);
      }
      plan.forecast = Seconds(time(layout));
      plan.chain = Seconds(chain_time(problem, layout, false));
      found.plans.push_back(std::move(plan));
    }
    if (looks_at_all()) {
      const StagePlan& quickest = *std::ranges::min_element(found.plans, {}, &StagePlan::forecast);
      if (whole.empty()) whole.push_back(quickest);
      for (std::size_t k = 0; k < kWhole; ++k) found.plans.push_back(whole[std::min(k, whole.size() - 1)]);
    }
    return found;
  }

  template <class Time>
  static std::vector<const Layout*> by_time(const std::vector<Layout>& layouts, const Time& time) {
    std::vector<std::pair<double, const Layout*>> timed;
    for (const Layout& layout : layouts) timed.emplace_back(time(layout), &layout);
    std::ranges::stable_sort(timed, {}, [](const auto& of) { return of.first; });
    std::vector<const Layout*> order;
    for (const auto& [seconds, layout] : timed) order.push_back(layout);
    return order;
  }

  // Owners that are no replicas read all that they sum. Where downlinks are slow that takes long, and the search, which
  // looks at one setting after another, may not come upon layouts without them.
  template <class Time>
  std::optional<Layout> owned_by_replicas(Problem problem, const Time& time) const {
    if (problem.owners != OwnerPlaces::automatic) return std::nullopt;
    problem.owners = OwnerPlaces::replicas;
    const std::vector<Layout> layouts = search_layouts(problem, chunk_, true);
    if (layouts.empty()) return std::nullopt;
    return *std::ranges::min_element(layouts, {}, time);
  }

  void append_tiles(StagePlan& plan, const Round& round, std::int64_t number) const {
    Stage stage;
    stage.first = round.first;
    stage.end = round.end;
    stage.round = number;
    stage.tiles = true;
    plan.stages.push_back(stage);
    plan.groups.push_back(1);
    for (const bool back : {false, true})
      plan.forecast += Seconds(forecast_tiles(work_, round.first, round.end, back, devices_, options_.server));
  }

  const StageWork& work_;
  std::span<const fleet::DeviceProfile> devices_;
  const StageOptions& options_;
  std::int64_t chunk_;
  std::map<std::pair<Alike, bool>, Found> found_;
};

// Rounds where some pieces fit no device: those pieces run in tiles, the pieces between them in as few rounds of
// stages as can be. None where the head does not fit, or no layer does.
std::vector<Round> mix(const StageWork& work, const std::vector<bool>& fit, RoundLayouts& rounds) {
  const std::int64_t pieces = std::ssize(work.pieces), body = pieces - head_pieces(work);
  const auto end_of_body = fit.begin() + static_cast<std::ptrdiff_t>(body);
  if (body == pieces || std::find(end_of_body, fit.end(), false) != fit.end() ||
      std::find(fit.begin(), end_of_body, true) == end_of_body)
    return {};
  std::vector<Round> all;
  for (std::int64_t first = 0, end = 0; first < pieces; first = end) {
    const bool tiles = !fit[static_cast<std::size_t>(first)];
    while (end < pieces && fit[static_cast<std::size_t>(end)] != tiles) ++end;
    const std::vector<Round> next = tiles ? std::vector{Round{first, end, true}} : rounds.fewest(first, end);
    if (next.empty()) return {};
    all.insert(all.end(), next.begin(), next.end());
  }
  return all;
}

}  // namespace

std::vector<StagePlan> layouts_in_rounds(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                         const StageOptions& options) {
  RoundLayouts rounds(work, devices, options);
  const std::vector<bool> fit = pieces_that_fit(work, devices);
  if (std::ranges::find(fit, false) != fit.end()) {
    if (!options.tiles || work.in_tiles == nullptr) return {};
    return rounds.lay_out(mix(work, fit, rounds));
  }
  std::vector<StagePlan> plans;
  const std::int64_t most = (std::ssize(work.pieces) - head_pieces(work)) / kLeastPieces;
  std::int64_t tried = 0;
  for (std::int64_t count = least_rounds(work, devices); count <= most && tried <= kMoreRounds;) {
    std::ranges::move(rounds.lay_out(cut_into_rounds(work, 0, std::ssize(work.pieces), count)),
                      std::back_inserter(plans));
    if (!plans.empty()) ++tried;
    count =
        plans.empty() ? std::max(count + 1, static_cast<std::int64_t>(kNext * static_cast<double>(count))) : count + 1;
  }
  std::ranges::stable_sort(plans, {}, &StagePlan::forecast);
  return plans;
}

}  // namespace cleave::plan::stages
