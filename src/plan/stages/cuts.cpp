// Stages by the memory of the devices. The devices are sorted by the weights that they can hold in time and divided
// into shares of equal uplink; the least device of a share bounds the stage that the share is for. The smallest stages
// are at the bottom, since their weights arrive first.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {

namespace {

constexpr double kHeadDemand = 0.5;  // uplink of a head, beside other stages: it returns dX only, they Y and dX

// Bytes of weights that a device can hold, with open sequences in proportion to them, and that it can receive in time.
class Rooms {
 public:
  Rooms(const Problem& problem, const Settings& settings) : problem_(problem), settings_(settings) {
    const StageCost layer = typical_layer(*problem.work, settings.chunk);
    at_work_ = static_cast<double>(layer.at_work().value());
    beside_ = static_cast<double>(2 * layer.open_forward().value() + 2 * layer.open_backward().value()) /
              static_cast<double>(layer.weights().value());
  }
  // Both, for a stage halfway between bottom and top.
  [[nodiscard]] double of(std::size_t device) const { return std::min(in_memory(device), in_time(device, 0.5)); }
  [[nodiscard]] double in_memory(std::size_t device) const {
    const double room = settings_.only_owners > 0
                            ? problem_.memory[device] * (1 - settings_.for_sums)
                            : (problem_.memory[device] - at_work_) * (1 - settings_.for_sums) / (1 + beside_);
    return std::min(room, settings_.largest);
  }
  // `height`: of the stage, 0 at the bottom, 1 at the top.
  [[nodiscard]] double in_time(std::size_t device, double height) const {
    return problem_.down[device] * (settings_.loading + height * settings_.deeper);
  }

 private:
  const Problem& problem_;
  const Settings& settings_;
  double at_work_ = 0, beside_ = 0;
};

}  // namespace

std::int64_t head_pieces(const StageWork& work) {
  const model::Piece& highest = work.pieces.back();
  return highest.kind == model::PieceKind::head ? highest.part.count : 0;
}

StageCost typical_layer(const StageWork& work, std::int64_t chunk) {
  return {work, 0, std::clamp<std::int64_t>(std::ssize(work.pieces) - head_pieces(work), 1, 2), chunk};
}

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
  const StageCost layer = typical_layer(work, settings.chunk);
  const auto boundary = static_cast<double>(layer.boundary(work.seq).value());
  const double flops = stage_flops(work, layer) / static_cast<double>(work.batch);
  std::vector<double> times;
  for (std::size_t i = 0; i < problem.devices.size(); ++i)
    times.push_back(std::max({2 * boundary / problem.up[i], 3 * boundary / problem.down[i], flops / problem.flops[i]}));
  return times;
}

PassingRate::PassingRate(const Problem& problem, const StageCost& stage, bool kept) : problem_(&problem) {
  const std::int64_t seq = problem.work->seq;
  const double sent = in_bytes(stage.sent(seq));
  const Flops flops = stage.forward(0, seq) + (stage.twice() ? stage.way_back(seq, kept) : Flops(0));
  per_byte_ = sent / in_bytes(stage.taken_in(seq, kept));
  per_flop_ = sent / flops.value();
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

double replica_bytes(const StageDraft& draft) {
  return static_cast<double>((draft.cost.least_replica() - draft.cost.at_work()).value());
}

bool is_kept(const Settings& settings, const StageCost& stage) { return settings.keeping && stage.may_keep(); }

std::int64_t least_kept(const StageWork& work) { return std::min(kFewestKept, work.batch); }

double replica_bytes(const StageWork& work, const StageDraft& draft, const Settings& settings) {
  if (!is_kept(settings, draft.cost)) return replica_bytes(draft);
  const Bytes kept = draft.cost.packed() + draft.cost.kept() * least_kept(work);
  return replica_bytes(draft) + static_cast<double>(kept.value());
}

double rounding_bytes(const StageWork& work, const StageDraft& draft) {
  double most = 0, columns = 0;
  for (std::int64_t i = draft.cost.first(); i < draft.cost.end(); ++i) {
    const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
    const auto elements = static_cast<double>(piece.weight_elements() + piece.vector_elements());
    most = std::max(most, elements / static_cast<double>(piece.units));
    std::int64_t cut = 0;
    for (const model::SlicedTensor& tensor : piece.tensors) cut += tensor.vector ? 0 : tensor.extent;
    columns = std::max(columns, static_cast<double>(cut) / static_cast<double>(piece.units));
  }
  const auto wire = static_cast<double>(size_of(work.wire));
  const std::int64_t waits = draft.cost.has_logits() ? kLeastOpen : 1;
  const double waiting = static_cast<double>(waits * work.seq) * columns * wire;  // OwnerCost::waiting
  return 2 * (most * (static_cast<double>(sum_bytes(work.wire)) + wire) + waiting) + 64;
}

StageCutter::StageCutter(const Problem& problem, const Settings& settings) : problem_(problem), settings_(settings) {
  const Rooms rooms(problem, settings);
  const double least = *std::min_element(problem.piece_weights.begin(), problem.piece_weights.begin() + body());
  const std::vector<bool> may = may_replicate(problem, settings);
  std::vector<std::pair<double, std::size_t>> order;  // by room
  for (std::size_t i = 0; i < problem.devices.size(); ++i) {
    const double room = rooms.of(i);
    if (room < least || !may[i]) continue;
    order.emplace_back(room, i);
    uplink_ += problem.up[i];
  }
  std::ranges::sort(order);
  for (const auto& [room, device] : order)
    able_.push_back({.device = device,
                     .room = rooms.in_memory(device),
                     .bottom = rooms.in_time(device, 0),
                     .deeper = rooms.in_time(device, 1) - rooms.in_time(device, 0)});
}

std::int64_t StageCutter::body() const { return std::ssize(problem_.work->pieces) - head_pieces(*problem_.work); }

// Divides the devices, in the order of what they can hold, into shares of equal uplink.
std::vector<StageCutter::Share> StageCutter::deal(std::int64_t shares) const {
  const std::int64_t parts = head_pieces(*problem_.work);
  const double heads = parts == 1 ? kHeadDemand : static_cast<double>(parts);
  const double part = uplink_ / (static_cast<double>(shares) + heads);
  std::vector<Share> list;
  double reached = 0;
  Share share;
  for (std::size_t k = 0; k < able_.size() && std::ssize(list) < shares; ++k) {
    const Able& able = able_[k];
    const double height = static_cast<double>(list.size()) / static_cast<double>(shares + 1);
    share.room = std::min(share.room, std::min(able.room, able.bottom + height * able.deeper));
    share.memory = std::min(share.memory, problem_.memory[able.device] * (1 - settings_.for_sums));
    share.flops += problem_.flops[able.device];
    reached += problem_.up[able.device];
    if (reached < part * static_cast<double>(list.size() + 1) - 1e-9 && k + 1 < able_.size()) continue;
    list.push_back(std::exchange(share, {}));
  }
  return list;
}

std::vector<StageDraft> StageCutter::cut(std::int64_t shares) const {
  if (able_.size() < 2) return {};
  const StageWork& work = *problem_.work;
  const auto holds = [&](const Share& share, std::int64_t begin, std::int64_t end) {
    if (settings_.only_owners == 0) return true;
    const StageDraft draft(problem_.book->cost(begin, end, settings_.chunk));
    return static_cast<double>(draft.cost.least_replica().value()) <= share.memory;
  };
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // of pieces
  std::int64_t at = 0;
  for (const Share& share : deal(shares)) {
    const std::int64_t begin = at;
    double held = 0, computed = 0;
    for (; at < body(); ++at) {
      const auto piece = static_cast<std::size_t>(at);
      if (held + problem_.piece_weights[piece] > share.room + 1 || !holds(share, begin, at + 1)) break;
      if (at > begin && computed + problem_.piece_flops[piece] > settings_.computing * share.flops) break;
      held += problem_.piece_weights[piece];
      computed += problem_.piece_flops[piece];
    }
    if (at > begin) runs.emplace_back(begin, at);
    if (at == body()) break;
  }
  if (at < body()) return {};
  for (std::int64_t i = body(); i < std::ssize(work.pieces); ++i) runs.emplace_back(i, i + 1);
  std::vector<StageDraft> stages;
  for (const auto& [begin, end] : runs) stages.emplace_back(problem_.book->cost(begin, end, settings_.chunk));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const double height = static_cast<double>(s) / static_cast<double>(stages.size());
    stages[s].demand = (stages[s].cost.is_head() ? kHeadDemand : 1.0) * (1 + settings_.tilt * height);
  }
  return stages;
}

}  // namespace cleave::plan::stages
