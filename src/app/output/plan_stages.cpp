// The table and the JSON of a layout in stages.
#include "output/plan_stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cleave/plan/stage_cost.hpp"
#include "input/run_setup.hpp"

namespace cleave::app {

namespace {

using nlohmann::ordered_json;

const fleet::DeviceProfile& profile_of(const std::vector<fleet::DeviceProfile>& devices, DeviceId id) {
  return *std::ranges::find(devices, id, &fleet::DeviceProfile::id);
}

Bytes memory_of(const plan::Stage& stage) {
  Bytes most{0};
  for (const plan::StageReplica& replica : stage.replicas) most = std::max(most, replica.memory);
  return most;
}

}  // namespace

std::string stage_table(const plan::StageWork& work, const plan::StagePlan& plan,
                        const std::vector<fleet::DeviceProfile>& devices) {
  std::string text =
      fmt::format("{:>5} {:<22} {:>10} {:>8} {:>10} {:>12} {:>12} {:>7} {:>10} {:>14}\n", "stage", "pieces", "weights",
                  "replicas", "memory", "uplinks", "passes take", "owners", "slices", "owner's links");
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Stage& stage = plan.stages[s];
    const plan::StageCost cost(work, stage.first, stage.end, plan.chunk);
    double uplinks = 0;
    for (const plan::StageReplica& replica : stage.replicas)
      uplinks += profile_of(devices, replica.device).uplink.value();
    const double passes =
        static_cast<double>(cost.boundary(work.tokens()).value()) * (cost.is_head() || !cost.backward() ? 1 : 2);
    std::int64_t owners = 0;
    Bytes slices{0};
    double busiest = 0;
    for (const plan::GradientOwner& owner : plan.owners) {
      if (owner.stage != static_cast<std::int64_t>(s)) continue;
      ++owners;
      slices = std::max(slices, owner.memory);
      const auto operands =
          plan::owner_cost(work, cost, owner.slices, plan.chunk).operands * (work.batch / plan.groups[s]);
      busiest = std::max(busiest, ((operands + owner.weights) / profile_of(devices, owner.device).downlink).value());
    }
    const std::string first = work.pieces[static_cast<std::size_t>(stage.first)].name();
    const std::string last = work.pieces[static_cast<std::size_t>(stage.end - 1)].name();
    text += fmt::format("{:>5} {:<22} {:>10} {:>8} {:>10} {:>9.1f} MB/s {:>12} {:>7} {:>10} {:>14}\n", s,
                        first == last ? first : first + " .. " + last, show(stage.weights), stage.replicas.size(),
                        show(memory_of(stage)), uplinks / 1e6, show(Seconds(passes / uplinks)), owners, show(slices),
                        show(Seconds(busiest)));
  }
  return text;
}

void add_stages(ordered_json& out, const model::StepGraph& graph, const plan::StageWork& work,
                const plan::StagePlan& plan) {
  out["chunk_tokens"] = plan.chunk;
  out["stages"] = ordered_json::array();
  for (const plan::Stage& stage : plan.stages) {
    ordered_json replicas = ordered_json::array();
    for (const plan::StageReplica& replica : stage.replicas) replicas.push_back(replica.device.value);
    out["stages"].push_back({{"first", work.pieces[static_cast<std::size_t>(stage.first)].name()},
                             {"last", work.pieces[static_cast<std::size_t>(stage.end - 1)].name()},
                             {"weights_bytes", stage.weights.value()},
                             {"replicas", std::move(replicas)},
                             {"memory_bytes", memory_of(stage).value()}});
  }
  // Parts of a tensor that follow each other on a device are one slice.
  out["gradient_slices"] = ordered_json::array();
  for (const plan::GradientOwner& owner : plan.owners) {
    for (const plan::PieceSlice& slice : owner.slices) {
      for (const plan::TensorSlice& part : tensor_slices(work.pieces[static_cast<std::size_t>(slice.piece)], slice)) {
        out["gradient_slices"].push_back({{"device", owner.device.value},
                                          {"stage", owner.stage},
                                          {"group", owner.group},
                                          {"tensor", graph.tensor(part.tensor).name},
                                          {"axis", part.cut_rows ? "rows" : "columns"},
                                          {"begin", part.begin},
                                          {"end", part.end},
                                          {"memory_bytes", owner.memory.value()}});
      }
    }
  }
}

}  // namespace cleave::app
