// Asteroid's plan in use: the step under our accounting, and pipeline replay when devices are lost.
#pragma once

#include <vector>

#include "asteroid_plan.hpp"
#include "placement.hpp"

namespace cleave::rivals {

class AsteroidPlacement final : public Placement {
 public:
  /// `plan` was made for `problem` (its references may go; its values are taken over). The study must outlive this.
  AsteroidPlacement(const StudyInput& study, Workload workload, const AsteroidProblem& problem, AsteroidPlan plan);
  AsteroidPlacement(const AsteroidPlacement&) = delete;
  AsteroidPlacement& operator=(const AsteroidPlacement&) = delete;

  [[nodiscard]] StepCost step() const override { return cost_of(plan_); }
  [[nodiscard]] bool uses(std::size_t device) const override;
  Remedy lose(std::span<const std::size_t> devices, double progress) override;
  void restore(std::size_t device) override;
  void slow(std::size_t device, double factor) override;

 private:
  [[nodiscard]] AsteroidProblem problem() const;
  [[nodiscard]] StepCost cost_of(const AsteroidPlan& plan) const;
  /// The plan for what is left of the original groups: samples allocated anew, or units cut anew where that is needed.
  /// `fill`: idle devices, those with most memory first, stand in for the lost ones.
  [[nodiscard]] AsteroidPlan repaired(bool recut, bool fill) const;
  /// Time until every member of `to` has the units that it lacks, fetched at once from the members of `from` (those
  /// that are lost excepted: their stage's backup is sent by the stage after it).
  [[nodiscard]] double migration_s(const AsteroidPlan& from, const AsteroidPlan& to) const;
  /// Stages that lost every member, and whether a backup of each is left.
  [[nodiscard]] bool state_is_safe(const AsteroidPlan& plan) const;

  std::vector<fleet::DeviceProfile> declared_, devices_;
  Workload workload_;
  Network network_;
  std::vector<std::size_t> order_;  // devices by memory
  std::int64_t micro_batch_, micro_batches_;
  bool recompute_, sharded_, copies_;
  std::size_t blocks_;
  AsteroidPlan original_, plan_;
  std::vector<bool> lost_;
};

/// Runs of devices between which the planner may cut, for a fleet of that size and a model of so many units.
[[nodiscard]] std::size_t planner_blocks(std::size_t devices, std::size_t units);

}  // namespace cleave::rivals
