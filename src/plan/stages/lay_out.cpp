// One candidate: stages, replicas and owners for the settings that it is given.
#include <algorithm>
#include <optional>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {

namespace {

// Of one candidate, with more and more stages: deals of replicas, and those of them whose sums may not fit.
constexpr std::int64_t kMostDeals = 16, kMostWithoutOwners = 8;

}  // namespace

double weights_of(const StageWork& work) {
  double sum = 0;
  for (const model::Piece& piece : work.pieces)
    sum += static_cast<double>(piece.weight_elements() * size_of(work.wire) + 4 * piece.vector_elements());
  return sum;
}

std::optional<Layout> lay_out(const Problem& problem, const Settings& settings) {
  if (settings.even_stages > 0) {
    Layout layout{};
    layout.settings = settings;
    layout.stages = cut_evenly(problem, settings);
    if (layout.stages.empty() || !assign_owners(problem, layout)) return std::nullopt;
    return layout;
  }
  const std::int64_t pieces = std::ssize(problem.work->pieces);
  const double memory = *std::ranges::max_element(problem.memory);
  std::int64_t deals = 0, without_owners = 0;
  const StageCutter cutter(problem, settings);
  for (auto shares = std::max<std::int64_t>(1, static_cast<std::int64_t>(weights_of(*problem.work) / memory) - 1);
       shares <= 3 * pieces && deals < kMostDeals; shares += 1 + shares / 40) {
    Layout layout{};
    layout.settings = settings;
    layout.stages = cutter.cut(shares);
    if (layout.stages.empty()) continue;
    ++deals;
    if (!deal_replicas(problem, settings, layout.stages)) continue;
    if (assign_owners(problem, layout)) return layout;
    if (settings.only_owners > 0) {
      if (++without_owners == kMostWithoutOwners) break;
      continue;
    }
    // Where sums do not fit beside the replicas as they were dealt by uplink, they are dealt again by memory.
    layout.owners.clear();
    layout.groups.clear();
    make_room_for_sums(problem, settings, layout.stages);
    if (assign_owners(problem, layout)) return layout;
    if (++without_owners == kMostWithoutOwners) break;
  }
  return std::nullopt;
}

std::optional<Layout> own_anew(const Problem& problem, const Layout& layout, const Settings& settings) {
  Layout anew{};
  anew.settings = settings;
  anew.stages = layout.stages;
  if (!assign_owners(problem, anew)) return std::nullopt;
  return anew;
}

Problem problem_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices, const StageOptions& options) {
  Problem problem;
  problem.work = &work;
  problem.book = std::make_shared<RunBook>(work);
  problem.devices = devices;
  problem.nic_out = options.server.nic_out.value();
  problem.nic_in = options.server.nic_in.value();
  problem.owners = options.owners;
  problem.preload = options.preload;
  for (const fleet::DeviceProfile& device : devices) {
    problem.memory.push_back(static_cast<double>(device.memory.value()));
    problem.down.push_back(std::min(device.downlink.value(), options.server.nic_out.value()));
    problem.up.push_back(std::min(device.uplink.value(), options.server.nic_in.value()));
    problem.flops.push_back(device.compute.value());
  }
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i) {
    const StageCost piece(work, i, i + 1, work.seq);
    problem.piece_weights.push_back(static_cast<double>(piece.weights().value()));
    problem.piece_flops.push_back(stage_flops(work, piece));
  }
  return problem;
}

}  // namespace cleave::plan::stages
