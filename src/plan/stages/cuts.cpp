// Stages from the memory of the devices: shares of the fleet's uplink, in order of what the devices can hold in time;
// the least device of a share bounds its stage. Smallest stages at the bottom: their weights are there first.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

constexpr double kHeadDemand = 0.5;  // of uplink: it returns dX only, other stages X and dX

// What a device can hold of weights, with the sequences that come with them, and what of it comes in time.
class Rooms {
 public:
  Rooms(const Problem& problem, const Settings& settings) : problem_(problem), settings_(settings) {
    const StageWork& work = *problem.work;
    const StageCost layer(work, 0, std::min<std::int64_t>(2, std::ssize(work.pieces) - 1), settings.chunk);
    at_work_ = static_cast<double>(layer.at_work().value());
    beside_ = static_cast<double>(2 * layer.open_forward().value() + 2 * layer.open_backward().value()) /
              static_cast<double>(layer.weights().value());
  }
  // At a height in [0, 1].
  [[nodiscard]] double of(std::size_t device, double height = 0.5) const {
    const double room = settings_.only_owners > 0
                            ? problem_.memory[device] * (1 - settings_.for_sums)
                            : (problem_.memory[device] - at_work_) * (1 - settings_.for_sums) / (1 + beside_);
    return std::min(room, in_time(device, height));
  }
  // Weights that come in time.
  [[nodiscard]] double in_time(std::size_t device, double height) const {
    return problem_.down[device] * (settings_.loading + height * settings_.deeper);
  }

 private:
  const Problem& problem_;
  const Settings& settings_;
  double at_work_ = 0, beside_ = 0;
};

struct Share {
  double room = 0, downlink = 0, flops = 0;
  double memory = 0;  // that the least of its devices has for a stage
};

}  // namespace

double stage_flops(const StageWork& work, const StageCost& stage, bool kept) {
  double of_sequence = stage.forward(0, work.seq).value();
  if (!stage.is_head()) of_sequence += stage.way_back(work.seq, kept && stage.may_keep()).value();
  double sums = 0;
  for (std::int64_t i = stage.first(); i < stage.end(); ++i)
    sums += work.pieces[static_cast<std::size_t>(i)].weight_gradient;
  return static_cast<double>(work.batch) * (of_sequence + sums * static_cast<double>(work.seq));
}

std::vector<double> passing_times(const Problem& problem, const Settings& settings) {
  // X and dX go out, X, X again and dY come in.
  const StageWork& work = *problem.work;
  const StageCost layer(work, 0, std::min<std::int64_t>(2, std::ssize(work.pieces) - 1), settings.chunk);
  const auto boundary = static_cast<double>(layer.boundary(work.seq).value());
  const double flops = stage_flops(work, layer) / static_cast<double>(work.batch);
  std::vector<double> times;
  for (std::size_t i = 0; i < problem.devices.size(); ++i)
    times.push_back(std::max({2 * boundary / problem.up[i], 3 * boundary / problem.down[i], flops / problem.flops[i]}));
  return times;
}

std::vector<bool> may_replicate(const Problem& problem, const Settings& settings) {
  if (settings.only_owners == 0 && settings.holding >= 1) return std::vector<bool>(problem.devices.size(), true);
  std::vector<std::size_t> order(problem.devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // X, X again and dY come in for X and dX that go out.
  const auto able = [&](std::size_t i) {
    return settings.tight ? std::min(problem.up[i] / 2, problem.down[i] / 3) : problem.up[i];
  };
  std::vector<bool> may(order.size(), true);
  if (settings.holding < 1) {
    const std::vector<double> times = passing_times(problem, settings);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return -times[i]; });
    const auto count = static_cast<std::size_t>((1 - settings.holding) * static_cast<double>(order.size()));
    for (std::size_t k = 0; k < count; ++k) may[order[k]] = false;
    return may;
  }
  std::ranges::stable_sort(order, {}, able);
  const auto count = static_cast<std::size_t>(settings.only_owners * static_cast<double>(order.size()));
  for (std::size_t k = 0; k < count; ++k) may[order[k]] = false;
  return may;
}

double replica_bytes(const Role& role) {
  return static_cast<double>(
      (role.cost.weights() + role.cost.open_forward() * 2 + role.cost.open_backward() * 2).value());
}

bool is_kept(const Settings& settings, const StageCost& stage) { return settings.keeping && stage.may_keep(); }

std::int64_t least_kept(const StageWork& work) { return std::min(kFewestKept, work.batch); }

double replica_bytes(const StageWork& work, const Role& role, const Settings& settings) {
  if (!is_kept(settings, role.cost)) return replica_bytes(role);
  const Bytes kept = role.cost.packed() + role.cost.kept() * least_kept(work);
  return replica_bytes(role) + static_cast<double>(kept.value());
}

double rounding_bytes(const StageWork& work, const Role& role) {
  double most = 0;
  const auto wire = static_cast<double>(size_of(work.wire));
  for (std::int64_t i = role.cost.first(); i < role.cost.end(); ++i) {
    const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
    const auto elements = static_cast<double>(piece.weight_elements() + piece.vector_elements());
    most = std::max(most, elements / static_cast<double>(piece.units));
  }
  const double kept = role.cost.is_part() ? 2 * static_cast<double>(work.seq) * wire : 0;  // OwnerCost::kept
  return 2 * (most * (static_cast<double>(sum_bytes(work.wire)) + wire) + kept) + 64;
}

std::vector<Role> cut_stages(const Problem& problem, const Settings& settings, std::int64_t shares) {
  const StageWork& work = *problem.work;
  const std::int64_t parts = work.pieces.back().part.count;
  const std::int64_t body = std::ssize(work.pieces) - parts;
  const Rooms rooms(problem, settings);
  const std::vector<double>&weights = problem.piece_weights, &flops = problem.piece_flops;
  const double least = *std::min_element(weights.begin(), weights.begin() + body);

  std::vector<std::pair<double, std::size_t>> able;  // by room
  const std::vector<bool> may = may_replicate(problem, settings);
  double uplink = 0;
  for (std::size_t i = 0; i < problem.devices.size(); ++i) {
    const double room = rooms.of(i);
    if (room < least || !may[i]) continue;
    able.emplace_back(room, i);
    uplink += problem.up[i];
  }
  if (able.size() < 2) return {};
  std::ranges::sort(able);
  const double heads = parts > 1 ? static_cast<double>(parts) : kHeadDemand;
  const double part = uplink / (static_cast<double>(shares) + heads);
  std::vector<Share> list;
  std::vector<double> downlinks;
  double reached = 0, room = 0, processors = 0, memory = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < able.size() && std::ssize(list) < shares; ++k) {
    const std::size_t device = able[k].second;
    const double height = static_cast<double>(list.size()) / static_cast<double>(shares + 1);
    room = downlinks.empty() ? rooms.of(device, height) : std::min(room, rooms.of(device, height));
    memory = std::min(memory, problem.memory[device] * (1 - settings.for_sums));
    downlinks.push_back(problem.down[device]);
    reached += problem.up[device];
    processors += problem.flops[device];
    if (reached < part * static_cast<double>(list.size() + 1) - 1e-9 && k + 1 < able.size()) continue;
    std::ranges::nth_element(downlinks, downlinks.begin() + std::ssize(downlinks) / 2);
    list.push_back({room, downlinks[downlinks.size() / 2], processors, memory});
    downlinks.clear();
    processors = 0;
    memory = std::numeric_limits<double>::infinity();
  }
  const auto holds = [&](const Share& share, std::int64_t begin, std::int64_t end) {
    if (settings.only_owners == 0) return true;
    const Role role(StageCost(work, begin, end, settings.chunk));
    return replica_bytes(role) + static_cast<double>(role.cost.at_work().value()) <= share.memory;
  };
  std::vector<Role> roles;
  std::int64_t at = 0;
  for (const Share& share : list) {
    const std::int64_t begin = at;
    double held = 0, computed = 0;
    for (; at < body; ++at) {
      const auto piece = static_cast<std::size_t>(at);
      if (held + weights[piece] > share.room + 1 || !holds(share, begin, at + 1)) break;
      if (at > begin && computed + flops[piece] > settings.computing * share.flops) break;
      held += weights[piece];
      computed += flops[piece];
    }
    if (at > begin) roles.emplace_back(StageCost(work, begin, at, settings.chunk));
    if (at == body) break;
  }
  if (at < body) return {};
  for (std::int64_t i = body; i < std::ssize(work.pieces); ++i)
    roles.emplace_back(StageCost(work, i, i + 1, settings.chunk));
  for (std::size_t s = 0; s < roles.size(); ++s) {
    const double height = static_cast<double>(s) / static_cast<double>(roles.size());
    roles[s].demand = (roles[s].cost.is_head() ? kHeadDemand : 1.0) * (1 + settings.tilt * height);
  }
  return roles;
}

}  // namespace cleave::plan::stages
