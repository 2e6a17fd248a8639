// StageScheduler: runs steps of a StagePlan over a Fleet: weights out, sequences through the stages, gradients in.
//
// It stands beside Scheduler, which runs steps in tiles, on the same Fleet interface: every transfer and computation is
// a tasklet of panels, and the server's own work is kernels of the StepGraph. A sequence goes to the replica of a stage
// that will be done with it first. Nothing on a device is the only copy: the server keeps every boundary until the
// gradient that needs it is in, so whatever is lost is computed again from boundaries.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/quorum_fleet.hpp"
#include "cleave/sched/scheduler.hpp"

namespace cleave::sched {

/// When the server sums gradients itself, in the place of a device that was lost or is late. It has all operands, so
/// nothing travels; its processor sums one sequence at a time, beside its kernels.
enum class ServerSums : std::uint8_t {
  never,
  if_nobody_else,  ///< only where no device has room and nothing else is under way: the step would fail otherwise
  if_sooner,       ///< then, and also where no device that has the stage's weights would be in time
};

/// How steps in stages are planned and scheduled.
struct StageSchedulerOptions {
  plan::StageOptions stages;
  DType wire = DType::f32;
  SchedulerOptions tiles{};  ///< for stages that run in tiles; its wire and server are replaced by those above
  /// Give the work of a device that turns out far slower than believed to others (docs/churn.md).
  bool watch = true;
  /// The fleet is a SimulatedFleet without churn: no device is ever late or silent, and `watch` has no effect.
  bool rehearsal = false;
  /// The caller can run the step in another layout. Where nothing is under way and no device has room for what is left,
  /// run() then waits for devices to join for 1 s plus the step's forecast before it throws; otherwise for 60 s plus
  /// twice the forecast.
  bool may_give_up = false;
  /// Times are those of the declared rates. False (clock `off`): then run() waits for as long as the step has taken so
  /// far, in place of the forecast.
  bool forecasts_hold = true;
  /// Plan a step after a change of the roster with rehearsals where forecasts do not settle it, as the first step was;
  /// false: by forecasts alone.
  bool rehearse = false;
  bool learn = true;  ///< plan with rates learned from answers in earlier steps, not with declared ones
  ServerSums server_sums = ServerSums::if_sooner;
  /// A share of the visits and of the sums is recomputed by second devices, whose digests are compared; empty: none.
  std::optional<QuorumOptions> quorum{};
};

/// What was done in the last step, by stage. Each chunk counts once, however often it was sent.
struct StageTally {
  std::vector<std::int64_t> forward, backward;  ///< chunks whose results have arrived
  std::vector<double> summed;                   ///< elements of the gradient, times sequences that were summed over
};

/// See the file comment. Devices may leave and join while a step runs. Work of a device that left is given to others:
/// sequences start again from their first chunk, sums are recomputed from boundaries, and a stage that is short of
/// uplink gets helpers. A step after a change of the roster is planned anew. Where no plan fits the devices that are
/// there, the plan of the step before is kept, and the work of its missing devices counts as lost.
class StageScheduler {
 public:
  /// Plans for the devices that are there now. Requires: `graph` has one row group; it and `fleet` outlive the
  /// scheduler. Errors: InputError where the step does not fit the devices (plan::plan_stages()).
  StageScheduler(Fleet& fleet, const model::StepGraph& graph, StageSchedulerOptions options);
  /// Begins with a given plan. Requires: its devices are there; as above.
  StageScheduler(Fleet& fleet, const model::StepGraph& graph, plan::StagePlan plan, StageSchedulerOptions options);
  ~StageScheduler();

  [[nodiscard]] const plan::StagePlan& plan() const;
  [[nodiscard]] const StageTally& tally() const;
  /// Makes the next step plan for the devices that are there then, even if nothing has changed.
  void plan_anew();
  /// As Scheduler's. distrust() also makes the next step plan anew.
  [[nodiscard]] std::vector<DeviceId> distrusted() const;
  void distrust(DeviceId device);
  [[nodiscard]] TaskletId next_tasklet() const;
  void number_from(TaskletId next);

  /// Runs the graph once. Collective: rank 0 only.
  /// Errors: InputError where no plan fits, or where the devices that are left cannot hold the work of those that left;
  /// Interrupted; what the fleet throws.
  StepReport run(const KeepGoing& keep_going = {});

  /// Gives up what is in flight and waits for the server's kernels, so that the step can be run again, in any layout.
  /// Returns the report of the abandoned attempt. Requires: run() has thrown.
  StepReport abandon();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::sched
