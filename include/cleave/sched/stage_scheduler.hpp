// StageScheduler: runs steps of a StagePlan over a Fleet: weights out, sequences through the stages, gradients in.
//
// It stands beside Scheduler, which runs steps in tiles, on the same Fleet interface: every transfer and computation is
// a tasklet of panels, and the server's own work are kernels of the StepGraph. A sequence goes to the replica of a
// stage that will be done with it first. Nothing on a device is the only copy: the server keeps every boundary tensor
// until the gradient that needs it is in, so whatever is lost is computed again from there.
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

/// When the server makes sums of gradients itself, in the place of a device that was lost or late. It has all that they
/// are made of, so nothing travels; its processor takes them one sequence at a time, beside its kernels.
enum class ServerSums : std::uint8_t {
  never,
  if_nobody_else,  ///< where no device has room, and nothing else is under way: the step would end with an error
  if_sooner,       ///< and as far as devices that have the stage's weights are not in time
};

struct StageSchedulerOptions {
  plan::StageOptions stages;
  DType wire = DType::f32;
  SchedulerOptions tiles{};  ///< of stages that run in tiles; the wire and the server are those of the others
  /// What a device has that turns out far slower than believed is given to others (docs/churn.md).
  bool watch = true;
  /// The fleet is a SimulatedFleet that nobody leaves: no device is late or silent, however long nothing comes. Without
  /// `watch`.
  bool rehearsal = false;
  /// The caller can do the step in another way. So where nothing is under way, and nobody has room for what is left, it
  /// ends with an error as soon as devices have had a second and the step's forecast to come back; otherwise a minute
  /// and twice the forecast.
  bool may_give_up = false;
  /// A step after a change of the roster is planned as the first one is, with rehearsals where forecasts do not settle
  /// it; otherwise by forecasts alone.
  bool rehearse = false;
  bool learn = true;  ///< a step is planned with rates learned from answers of those before, not with declared ones
  ServerSums server_sums = ServerSums::if_sooner;
  /// A share of the visits and of the sums is made again by second devices, whose digests are compared; empty: none.
  std::optional<QuorumOptions> quorum{};
};

/// What of the last step was done, by stage: each chunk counts once, however often it was sent.
struct StageTally {
  std::vector<std::int64_t> forward, backward;  ///< chunks whose results came
  std::vector<double> summed;                   ///< elements of the gradient times sequences that were summed over
};

/// Devices may leave and join while a step runs. What one had is given to others: sequences go again from their first
/// chunk, sums are made again from the boundaries that the server kept, and a stage that is short of uplink gets
/// helpers. A step after a change of the roster is planned anew; where nothing fits those that are there, it has the
/// plan of the step before, and what that wants of others counts as lost.
class StageScheduler {
 public:
  /// Plans for the devices that are there now. `graph` has one row group; it and `fleet` must outlive the scheduler.
  /// Errors: InputError where the step does not fit the devices (plan::plan_stages).
  StageScheduler(Fleet& fleet, const model::StepGraph& graph, StageSchedulerOptions options);
  /// With a plan that was made before. Requires: its devices are there.
  StageScheduler(Fleet& fleet, const model::StepGraph& graph, plan::StagePlan plan, StageSchedulerOptions options);
  ~StageScheduler();

  [[nodiscard]] const plan::StagePlan& plan() const;
  [[nodiscard]] const StageTally& tally() const;
  /// The next step is planned for the devices that are there then, whatever plan there is.
  void plan_anew();
  /// As of Scheduler.
  [[nodiscard]] std::vector<DeviceId> distrusted() const;
  void distrust(DeviceId device);
  [[nodiscard]] TaskletId next_tasklet() const;
  void number_from(TaskletId next);

  /// Runs the graph once. Collective: rank 0 only.
  /// Errors: InputError where devices that are left cannot hold what those that left had.
  StepReport run(const KeepGoing& keep_going = {});

  /// After run() has thrown: gives up what is in flight and waits for the server's kernels, so that the step can be run
  /// again, in whatever layout. Returns what the abandoned part took.
  StepReport abandon();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::sched
