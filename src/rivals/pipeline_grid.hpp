// Pipelines with data parallelism: stages x pipelines of single devices, costed with overlap.
//
// Each pipeline runs its share of the batch in micro-batches (pipeline.hpp); when a stage's last backward pass is done
// in all pipelines, its devices exchange gradients through a sharded parameter server and update. A stage keeps as many
// micro-batches in flight as its device's memory holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replica_grid.hpp"

namespace cleave::rivals {

/// How a pipeline works through its share.
struct PipelineSchedule {
  std::vector<std::size_t> cuts;  ///< stage s has units [cuts[s], cuts[s+1])
  std::int64_t micro_batch = 1;
  bool recompute = false;              ///< keep the inputs of layers only and run their forward pass again
  std::int64_t sharing = 1;            ///< devices of a stage that share its moments and master weights
  std::vector<double> hop_share = {};  ///< of the bytes between stages s and s + 1, what travels; empty: all
  [[nodiscard]] double share_of_hop(std::size_t hop) const { return hop_share.empty() ? 1.0 : hop_share[hop]; }
};

/// Memory of a stage. State: 16 bytes a parameter; where `sharing` devices hold the same stage and each keeps a share
/// of moments and master weights (ZeRO-1), 8 + 8 / sharing, with 16-bit types 4 + 12 / sharing. In flight, per
/// micro-batch: activations, or inputs of layers. At work: with recomputation one layer's activations; the messages
/// that come and go.
struct StageMemory {
  double state = 0, per_flight = 0, at_work = 0;
  [[nodiscard]] double with(std::int64_t in_flight) const {
    return state + at_work + static_cast<double>(in_flight) * per_flight;
  }
  /// Micro-batches that fit beside the rest, at most `most`.
  [[nodiscard]] std::int64_t fit(double memory, std::int64_t most) const;
};
[[nodiscard]] StageMemory stage_memory(const Workload& workload, std::size_t first, std::size_t last,
                                       std::int64_t micro_batch, bool recompute, std::int64_t sharing = 1);

class PipelineGrid final : public ReplicaGrid {
 public:
  /// grid[pipeline][stage].
  PipelineGrid(const StudyInput& study, Workload workload, Grid grid, PipelineSchedule schedule);

  /// True when every device holds its stage with one micro-batch in flight.
  [[nodiscard]] bool fits() const;

  /// No step is shorter: what the busiest uplink or processor has to carry, without recomputation.
  [[nodiscard]] double least_s() const;

 private:
  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override;
  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override;
  [[nodiscard]] std::vector<double> run_pipelines(const Grid& grid, const std::vector<std::int64_t>& shares,
                                                  StepCost& cost) const;
  void finish_stages(const Grid& grid, const std::vector<double>& quiet_s, StepCost& cost) const;

  PipelineSchedule schedule_;
  std::vector<StageMemory> memory_;  // per stage
};

}  // namespace cleave::rivals
