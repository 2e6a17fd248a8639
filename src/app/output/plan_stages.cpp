// The table and the JSON of a layout in stages.
#include "output/plan_stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <unordered_map>
#include <utility>

#include "cleave/plan/stage_cost.hpp"
#include "input/run_setup.hpp"

namespace cleave::app {

namespace {

using nlohmann::ordered_json;

using Profiles = std::unordered_map<DeviceId, const fleet::DeviceProfile*>;

Profiles profiles_by_id(const std::vector<fleet::DeviceProfile>& devices) {
  Profiles profiles;
  for (const fleet::DeviceProfile& device : devices) profiles.emplace(device.id, &device);
  return profiles;
}

std::string name_of_piece(const plan::StageWork& work, std::int64_t piece) {
  return work.pieces[static_cast<std::size_t>(piece)].name();
}

std::string pieces_of_stage(const plan::StageWork& work, const plan::Stage& stage) {
  const std::string first = name_of_piece(work, stage.first), last = name_of_piece(work, stage.end - 1);
  return first == last ? first : first + " .. " + last;
}

std::array<std::pair<const char*, Seconds>, 4> times_of(const StageFigures& figures) {
  return {{{"uplinks", figures.passes},
           {"owners' links", figures.owner_links},
           {"weights", figures.weights},
           {"processors", figures.processors}}};
}

Bytes sum_of(const plan::StageWork& work, const plan::TensorSlice& slice) {
  return Bytes((slice.end - slice.begin) * plan::sum_bytes(work.wire));
}

// The slices of an owner, tensor by tensor. Their memory adds up to the owner's: the sums of each, and of weights and
// operands at work a part in proportion.
void add_slices(ordered_json& list, const model::StepGraph& graph, const plan::StageWork& work,
                const plan::GradientOwner& owner) {
  std::vector<plan::TensorSlice> parts;
  for (const plan::PieceSlice& slice : owner.slices) {
    const auto more = tensor_slices(work.pieces[static_cast<std::size_t>(slice.piece)], slice);
    parts.insert(parts.end(), more.begin(), more.end());
  }
  Bytes sums{0};
  for (const plan::TensorSlice& part : parts) sums += sum_of(work, part);
  const double beside = std::max(0.0, static_cast<double>((owner.memory - sums).value())) /
                        std::max(1.0, static_cast<double>(sums.value()));
  Bytes left = owner.memory;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Bytes own = sum_of(work, parts[i]);
    const Bytes memory =
        i + 1 == parts.size()
            ? left
            : std::min(left, own + Bytes(static_cast<std::int64_t>(beside * static_cast<double>(own.value()))));
    left -= memory;
    list.push_back({{"device", owner.device.value},
                    {"stage", owner.stage},
                    {"group", owner.group},
                    {"tensor", graph.tensor(parts[i].tensor).name},
                    {"axis", parts[i].cut_rows ? "rows" : "columns"},
                    {"begin", parts[i].begin},
                    {"end", parts[i].end},
                    {"memory_bytes", memory.value()}});
  }
}

}  // namespace

Seconds StageFigures::longest() const {
  Seconds most{0};
  for (const auto& [name, time] : times_of(*this)) most = std::max(most, time);
  return most;
}

std::vector<StageFigures> stage_figures(const plan::StageWork& whole, const plan::StagePlan& plan,
                                        const std::vector<fleet::DeviceProfile>& devices) {
  const plan::StageWork work = plan::with_head_parts(whole, plan.head_parts);
  const Profiles profiles = profiles_by_id(devices);
  std::vector<StageFigures> all;
  std::vector<plan::StageCost> costs;
  for (const plan::Stage& stage : plan.stages) {
    const plan::StageCost& cost = costs.emplace_back(work, stage.first, stage.end, plan.chunk);
    StageFigures& of = all.emplace_back();
    of.pieces = pieces_of_stage(work, stage);
    of.tiles = stage.tiles;
    if (stage.tiles) continue;
    of.least_memory = stage.replicas.empty() ? Bytes(0) : stage.replicas.front().memory;
    FlopsPerSecond compute(0);
    of.uplinks = BytesPerSecond(0);
    for (const plan::StageReplica& replica : stage.replicas) {
      const fleet::DeviceProfile& device = *profiles.at(replica.device);
      of.least_memory = std::min(of.least_memory, replica.memory);
      of.most_memory = std::max(of.most_memory, replica.memory);
      of.uplinks += device.uplink;
      compute += device.compute;
      of.weights = std::max(of.weights, stage.weights / device.downlink);
    }
    const bool kept = stage.kept_slots() > 0;
    Flops flops = cost.forward(0, work.seq);
    if (cost.twice()) flops += cost.way_back(work.seq, kept);
    of.down = stage.weights * std::ssize(stage.replicas) + cost.taken_in(work.tokens(), kept);
    of.up = cost.sent(work.tokens());
    of.passes = of.up / of.uplinks;
    of.processors = flops * static_cast<double>(work.batch) / compute;
  }
  for (const plan::GradientOwner& owner : plan.owners) {
    const auto s = static_cast<std::size_t>(owner.stage);
    StageFigures& of = all[s];
    const fleet::DeviceProfile& device = *profiles.at(owner.device);
    const plan::OwnerCost cost = plan::owner_cost(work, costs[s], owner.slices, plan.chunk);
    const std::int64_t size = plan.groups[s] == 1 ? size_of(work.wire) : plan::sum_bytes(work.wire);
    // What a replica runs itself is not sent to it again: its share of the stage's uplinks.
    const double own =
        owner.replica ? std::min(1.0, static_cast<double>(plan.groups[s]) * (device.uplink / of.uplinks)) : 0.0;
    const double sequences = (1 - own) * static_cast<double>(work.batch) / static_cast<double>(plan.groups[s]);
    const Bytes operands =
        owner.weights + Bytes(static_cast<std::int64_t>(static_cast<double>(cost.operands.value()) * sequences));
    const Bytes sums(static_cast<std::int64_t>(cost.elements) * size);
    ++of.owners;
    of.slices = std::max(of.slices, owner.memory);
    of.owner_links = std::max(of.owner_links, operands / device.downlink + sums / device.uplink);
    of.down += operands;
    of.up += sums;
  }
  for (StageFigures& of : all) {
    of.bound_by =
        of.tiles ? "tiles" : std::ranges::max(times_of(of), {}, &std::pair<const char*, Seconds>::second).first;
  }
  return all;
}

std::string stage_table(const plan::StageWork& work, const plan::StagePlan& plan,
                        const std::vector<fleet::DeviceProfile>& devices) {
  std::string text =
      fmt::format("{:>5} {:<22} {:>10} {:>8} {:>10} {:>12} {:>11} {:>11} {:>10} {:>6} {:>10} {:>13}  {}\n", "stage",
                  "pieces", "weights", "replicas", "memory", "uplinks", "passes", "weights in", "computing", "owners",
                  "slices", "owners' links", "bound by");
  const std::vector<StageFigures> figures = stage_figures(work, plan, devices);
  for (std::size_t s = 0; s < figures.size(); ++s) {
    const StageFigures& of = figures[s];
    if (plan.rounds() > 1 && (s == 0 || plan.stages[s].round != plan.stages[s - 1].round))
      text += fmt::format("round {} of {}\n", plan.stages[s].round + 1, plan.rounds());
    if (of.tiles) {
      text += fmt::format("{:>5} {:<22} in tiles over all devices: no device has room for one of its pieces\n", s,
                          of.pieces);
      continue;
    }
    text += fmt::format("{:>5} {:<22} {:>10} {:>8} {:>10} {:>7.1f} MB/s {:>11} {:>11} {:>10} {:>6} {:>10} {:>13}  {}\n",
                        s, of.pieces, show(plan.stages[s].weights), plan.stages[s].replicas.size(),
                        show(of.most_memory), of.uplinks.value() / 1e6, show(of.passes), show(of.weights),
                        show(of.processors), of.owners, show(of.slices), show(of.owner_links), of.bound_by);
  }
  const auto kept = std::ranges::count_if(plan.stages, [](const plan::Stage& stage) { return stage.kept_slots() > 0; });
  if (kept > 0) {
    const auto [least, most] = std::ranges::minmax(plan.stages | std::views::transform(&plan::Stage::kept_slots) |
                                                   std::views::filter([](auto n) { return n > 0; }));
    text +=
        fmt::format("replicas of {} stages keep what {} to {} sequences need on their way back\n", kept, least, most);
  }
  const auto slowest = std::ranges::max_element(figures, {}, &StageFigures::longest);
  if (slowest == figures.end()) return text;
  return text + fmt::format("taken longest: {} of stage {} ({}), {}\n", slowest->bound_by, slowest - figures.begin(),
                            slowest->pieces, show(slowest->longest()));
}

void add_stages(ordered_json& out, const model::StepGraph& graph, const plan::StageWork& whole,
                const plan::StagePlan& plan) {
  const plan::StageWork work = plan::with_head_parts(whole, plan.head_parts);
  out["chunk_tokens"] = plan.chunk;
  out["stages"] = ordered_json::array();
  for (const plan::Stage& stage : plan.stages) {
    ordered_json replicas = ordered_json::array(), memory = ordered_json::array();
    Bytes least = stage.replicas.empty() ? Bytes(0) : stage.replicas.front().memory;
    for (const plan::StageReplica& replica : stage.replicas) {
      replicas.push_back(replica.device.value);
      memory.push_back(replica.memory.value());
      least = std::min(least, replica.memory);
    }
    out["stages"].push_back({{"first", name_of_piece(work, stage.first)},
                             {"last", name_of_piece(work, stage.end - 1)},
                             {"round", stage.round},
                             {"tiles", stage.tiles},
                             {"weights_bytes", stage.weights.value()},
                             {"replicas", std::move(replicas)},
                             {"memory_bytes", least.value()},
                             {"replica_memory_bytes", std::move(memory)}});
  }
  out["gradient_slices"] = ordered_json::array();
  out["further_groups"] = ordered_json::array();
  for (const plan::GradientOwner& owner : plan.owners)
    add_slices(out[owner.group == 0 ? "gradient_slices" : "further_groups"], graph, work, owner);
}

ordered_json layout_json(const plan::StageWork& work, const plan::StagePlan& plan,
                         const std::vector<fleet::DeviceProfile>& devices) {
  ordered_json out{{"format", 1},
                   {"layout", "stages"},
                   {"chunk_tokens", plan.chunk},
                   {"forecast_s", plan.forecast.value()},
                   {"stages", ordered_json::array()},
                   {"devices", ordered_json::array()}};
  struct Memory {
    Bytes weights, sequences, sums;
    [[nodiscard]] Bytes all() const { return weights + sequences + sums; }
  };
  struct Held {
    std::vector<Memory> rounds;
    ordered_json replica_of = ordered_json::array(), owner_of = ordered_json::array();
  };
  std::unordered_map<DeviceId, Held> held;
  const auto in_round = [&](Held& own, std::int64_t round) -> Memory& {
    own.rounds.resize(static_cast<std::size_t>(plan.rounds()));
    return own.rounds[static_cast<std::size_t>(round)];
  };
  const std::vector<StageFigures> figures = stage_figures(work, plan, devices);
  for (std::size_t s = 0; s < figures.size(); ++s) {
    const plan::Stage& stage = plan.stages[s];
    const StageFigures& of = figures[s];
    ordered_json replicas = ordered_json::array();
    for (const plan::StageReplica& replica : stage.replicas) {
      replicas.push_back(replica.device.value);
      Held& own = held[replica.device];
      Memory& memory = in_round(own, stage.round);
      memory.weights += stage.weights;
      memory.sequences += replica.memory - stage.weights;
      own.replica_of.push_back(s);
    }
    out["stages"].push_back({{"pieces", of.pieces},
                             {"round", stage.round},
                             {"tiles", stage.tiles},
                             {"weights_bytes", stage.weights.value()},
                             {"replicas", std::move(replicas)},
                             {"least_memory_bytes", of.least_memory.value()},
                             {"most_memory_bytes", of.most_memory.value()},
                             {"kept_sequences", stage.kept_slots()},
                             {"uplinks", of.uplinks.value()},
                             {"passes_s", of.passes.value()},
                             {"weights_s", of.weights.value()},
                             {"compute_s", of.processors.value()},
                             {"owners", of.owners},
                             {"slices_bytes", of.slices.value()},
                             {"owner_links_s", of.owner_links.value()},
                             {"bytes_down", of.down.value()},
                             {"bytes_up", of.up.value()},
                             {"bound_by", of.bound_by}});
  }
  for (const plan::GradientOwner& owner : plan.owners) {
    Held& own = held[owner.device];
    Memory& memory = in_round(own, plan.stages[static_cast<std::size_t>(owner.stage)].round);
    memory.weights += owner.weights;
    memory.sums += owner.memory - owner.weights;
    own.owner_of.push_back(owner.stage);
  }
  for (const fleet::DeviceProfile& device : devices) {
    Held& own = held[device.id];
    (void)in_round(own, 0);
    const Memory& most = *std::ranges::max_element(own.rounds, {}, &Memory::all);  // that it holds at a time
    out["devices"].push_back({{"id", device.id.value},
                              {"name", device.name},
                              {"memory", device.memory.value()},
                              {"uplink", device.uplink.value()},
                              {"weights_bytes", most.weights.value()},
                              {"sequences_bytes", most.sequences.value()},
                              {"sums_bytes", most.sums.value()},
                              {"replica_of", std::move(own.replica_of)},
                              {"owner_of", std::move(own.owner_of)}});
  }
  return out;
}

}  // namespace cleave::app
