// Draws from a keyed hash: of tasklets, and of devices by rejection.
#include "quorum/witness_draw.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/timing/panels.hpp"

namespace cleave::sched {

namespace {

constexpr std::int64_t kDrawOfTasklet = 0, kFirstDrawOfDevice = 1;
/// So often a device is drawn for each that there is; each draw finds one with a chance of at least its share.
constexpr std::int64_t kDrawsOfDevice = 8;
/// Who would take so many times as long as a quick device is not asked: the step might have to wait for it. One device
/// in kQuick counts as quick, so that never less than that share of them is drawn from.
constexpr double kSlowest = 2.0;
constexpr std::ptrdiff_t kQuick = 4;
/// Of a downlink that other work always fills this much is counted on all the same.
constexpr double kLeastSpare = 0.05;

}  // namespace

double secret_uniform(const SipKey& secret, std::int64_t subject, std::int64_t draw) {
  const std::array<std::int64_t, 2> message{subject, draw};
  const SipTag tag = siphash(secret, std::as_bytes(std::span(message)));
  std::uint64_t bits = 0;
  std::memcpy(&bits, tag.data(), sizeof bits);
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

bool are_apart(const QuorumOptions& options, const fleet::DeviceProfile& first, const fleet::DeviceProfile& second) {
  if (!first.owner.empty() && first.owner == second.owner) return false;
  if (!first.group.empty() && first.group == second.group) return false;
  const auto host = [&](DeviceId device) -> std::string_view {
    const auto at = static_cast<std::size_t>(device.value);
    return at < options.hosts.size() ? options.hosts[at] : std::string_view();
  };
  return host(first.id).empty() || host(first.id) != host(second.id);
}

void WitnessDraw::begin_step(const model::StepGraph& graph) {
  graph_ = &graph;
  columns_.clear();
  in_hand_.clear();
}

bool WitnessDraw::is_drawn(TaskletId tasklet) const {
  return uniform(tasklet.value, kDrawOfTasklet) < options_.fraction;
}

// What devices have left changes slowly: they are looked at once for as many draws as there are devices, in parts.
void WitnessDraw::renew_candidates() {
  constexpr std::size_t kLooks = 16;
  const bool changed = roster_ != fleet_.roster() || candidates_.empty();
  if (!changed && ++draws_ * kLooks < candidates_.size()) return;
  roster_ = fleet_.roster();
  draws_ = 0;
  candidates_.clear();
  const std::span<const Usage> usage = fleet_.usage();
  const double elapsed = fleet_.now().value();
  for (const plan::DeviceState& state : fleet_.devices()) {
    const Seconds busy = usage[static_cast<std::size_t>(state.profile.id.value)].down;
    const double spare = elapsed > 0 ? std::clamp(1 - busy.value() / elapsed, kLeastSpare, 1.0) : 1.0;
    candidates_.push_back({state.profile, state.profile.downlink * spare});
    if (changed) known_.insert_or_assign(state.profile.id, state.profile);
  }
  if (candidates_.empty()) return;
  const auto quick = [&](const auto& rate_of) {
    const auto at = candidates_.begin() + std::ssize(candidates_) / kQuick;
    std::ranges::nth_element(candidates_, at, std::ranges::greater(), rate_of);
    return rate_of(*at);
  };
  quick_down_ = quick([](const Candidate& candidate) { return candidate.profile.downlink; });
  quick_spare_ = quick([](const Candidate& candidate) { return candidate.spare_down; });
  quick_compute_ = quick([](const Candidate& candidate) { return candidate.profile.compute; });
  std::ranges::sort(candidates_, {}, [](const Candidate& candidate) { return candidate.profile.id; });
}

bool WitnessDraw::may_witness(const fleet::DeviceProfile& first, const fleet::DeviceProfile& second) const {
  return first.id != second.id && !distrusted_.contains(second.id) && are_apart(options_, first, second);
}

// Whole, with its own columns: what the second device would need to return the same block in one message.
std::optional<plan::TaskletPlan> WitnessDraw::piece_for(const Tasklet& tasklet, const fleet::DeviceProfile& device) {
  plan::TaskletPlan piece = tasklet.piece;
  piece.device = device.id;
  plan::DeviceState state{device, {}, {}, {}};
  if (const auto columns = columns_.find(device.id); columns != columns_.end()) state.profile.memory -= columns->second;
  try {
    const std::vector<plan::TaskletPlan> pieces = plan::with_own_columns(
        plan::work_of(graph_->operation(tasklet.op), options_.wire), piece, std::span(&state, 1), options_.plan);
    if (pieces.size() != 1) return std::nullopt;
    piece = pieces.front();
  } catch (const InputError&) { return std::nullopt; }  // no room
  piece.bytes_up = timing::message_bytes(kDigestPayload.value());
  return piece;
}

std::optional<WitnessDraw::Witness> WitnessDraw::draw(const Tasklet& tasklet, std::int64_t attempt) {
  renew_candidates();
  const auto first = known_.find(tasklet.piece.device);
  if (first == known_.end()) return std::nullopt;  // nothing is known of its owner
  const plan::Work work = plan::work_of(graph_->operation(tasklet.op), options_.wire);
  const Flops flops = plan::volume_of(work, tasklet.piece).flops;
  const Bytes bytes = tasklet.piece.bytes_down;
  const Seconds quick = bytes / quick_down_ + flops / quick_compute_;
  const Seconds soon = bytes / quick_spare_ + flops / quick_compute_;
  const auto count = std::ssize(candidates_), draws = kDrawsOfDevice * count;
  for (std::int64_t draw = 0; draw < draws; ++draw) {
    const std::int64_t index = kFirstDrawOfDevice + 2 * ((attempt - 1) * draws + draw);
    const Candidate& second =
        candidates_[static_cast<std::size_t>(uniform(tasklet.id.value, index) * static_cast<double>(count))];
    if (!may_witness(first->second, second.profile)) continue;
    const Seconds takes = bytes / second.profile.downlink + flops / second.profile.compute;
    const Seconds until = bytes / second.spare_down + flops / second.profile.compute + in_hand_[second.profile.id];
    const bool last_ones = draw >= draws / 2;  // those that are left may all be slow
    if (takes > quick * kSlowest && !last_ones) continue;
    if (uniform(tasklet.id.value, index + 1) * until.value() > soon.value() && !last_ones) continue;
    const std::optional<plan::TaskletPlan> piece = piece_for(tasklet, second.profile);
    if (!piece) continue;
    in_hand_[second.profile.id] += takes;
    return Witness{*piece, takes};
  }
  return std::nullopt;
}

}  // namespace cleave::sched
