// Copies of the whole model, one on each device, that share the batch: what data parallelism and local steps share.
//
// The all-reduce of a layer may start when its gradient is complete everywhere; it is also tried as one message ring at
// the end, which pays fewer latencies, and the shorter counts. Of the devices that hold the model, the best-connected n
// are used, for the n (falling by a fifth from all) that makes the step shortest.
#pragma once

#include <cstdint>

#include "replica_grid.hpp"

namespace cleave::rivals {

struct CopyOptions {
  std::int64_t exchange_every = 1;  ///< steps; over 1, gradients stay on the device and what is exchanged is averaged
  std::int64_t extra_state = 0;     ///< bytes a parameter beside weight, gradient and moments
};

class CopyGrid final : public ReplicaGrid {
 public:
  CopyGrid(const StudyInput& study, const Workload& model, Grid grid, CopyOptions options)
      : ReplicaGrid(study, model, std::move(grid)), options_(options) {}

 private:
  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override;
  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override;
  [[nodiscard]] double memory_of(std::int64_t micro_batch, bool recompute) const;
  [[nodiscard]] std::int64_t largest_micro_batch(double have, std::int64_t share, bool recompute) const;
  [[nodiscard]] Seconds update_time(std::size_t device) const;

  CopyOptions options_;
};

/// The grid of the shortest step. Returns how many devices could hold the model; with 0, `why` says what is missing.
struct CopyChoice {
  Grid grid;
  std::size_t able = 0;
  std::string why;
};
[[nodiscard]] CopyChoice choose_copies(const StudyInput& study, const Workload& workload, CopyOptions options);

}  // namespace cleave::rivals
