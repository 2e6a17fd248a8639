// Scheduler: walks a StepGraph over a Fleet: ready operations -> plan -> submit -> collect -> re-plan what was lost.
//
// Written once against the Fleet interface; `train`, `simulate` and the fault tests all run this code. A block is idle,
// in flight or done: a device that leaves or answers wrongly turns its blocks back to idle, and they are planned again
// over the devices that remain. With no device left, the server computes. A step is complete when every block of every
// operation is done.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/plan/plan.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/operation_set.hpp"

namespace cleave::sched {

/// How steps in tiles are scheduled.
struct SchedulerOptions {
  plan::PlanOptions plan;
  DType wire = DType::f32;
  bool learn = true;   ///< plan with rates learned from answers, not with declared ones
  bool copies = true;  ///< ask a second device for blocks that are late
  /// True: an operation begins when its inputs are ready. False: operations run one after another.
  bool asynchronous = true;
};

/// When one operation ran, in the fleet's time.
struct OperationTiming {
  OpId op;
  Seconds start, end;
  Seconds planned;      ///< the plan's own time for it, alone
  Seconds lower_bound;  ///< zero for server kernels
};

/// Blocks of one operation that were lost at one time, and what that cost.
struct Loss {
  OpId op;
  std::string name;                      ///< of the operation, or of the stage
  Seconds at;                            ///< when the loss was noticed
  std::int64_t devices = 0, blocks = 0;  ///< that were lost
  Seconds detection;                     ///< from the devices' first silence to `at`
  Seconds planning;                      ///< processor time for planning the blocks again
  Seconds resending;                     ///< longest time in which the operands of one of the blocks were sent again
  Seconds recomputing;                   ///< from then until the last of the blocks had arrived
  Seconds added;      ///< how much later the operation ended than its other blocks and its plan would have let it
  Seconds operation;  ///< time that the operation would have taken without the loss
};

/// What one step took. Bytes, tasklets and energy count whatever was sent, lost or not.
struct StepReport {
  Seconds time;
  Bytes bytes_down, bytes_up;
  std::int64_t devices = 0;      ///< that completed at least one block
  std::int64_t tasklets = 0;     ///< submitted
  std::int64_t lost = 0;         ///< in flight when their device left
  std::int64_t redone = 0;       ///< submitted again after a loss or a rejection
  std::int64_t rejected = 0;     ///< answered wrongly or refused
  std::int64_t witnesses = 0;    ///< second devices that were asked for a digest (quorum_fleet.hpp)
  std::int64_t copies = 0;       ///< blocks asked of a second device, because the first was late
  std::int64_t late = 0;         ///< devices whose work was given to others, because they were late (stages)
  std::int64_t server_sums = 0;  ///< parts of gradients that the server summed, as devices were lost or late (stages)
  Seconds recovery;              ///< by which losses delayed the operations that they hit
  Seconds planning;              ///< processor time spent in the planner
  Joules energy;
  std::vector<OperationTiming> operations;  ///< in order of completion
  std::vector<Loss> losses;                 ///< in order of time
};

/// Adds the report of an abandoned attempt to that of the attempt that completed the step.
void add_abandoned(StepReport& report, const StepReport& abandoned);
/// Adds the report of a part of a step to the step's report, except time and energy.
void add_part(StepReport& report, const StepReport& part);

/// Called now and then while a step runs, and whenever a device has answered wrongly. Where it returns false the step
/// is abandoned: run() throws Interrupted.
using KeepGoing = std::function<bool()>;

/// Thrown by run() where KeepGoing returned false. Nothing of the step may be kept.
struct Interrupted {};

/// See the file comment. It may run any number of steps, one after another.
class Scheduler {
 public:
  /// `fleet` must outlive the scheduler.
  Scheduler(Fleet& fleet, SchedulerOptions options);
  ~Scheduler();

  /// Runs every operation of `graph` once. Collective: rank 0 only. Errors: InputError where no device can hold the
  /// smallest block of an operation; Interrupted; what the fleet throws.
  StepReport run(const model::StepGraph& graph, const KeepGoing& keep_going = {});

  /// Gives up what is in flight and waits for the server's kernels, so that the step can be run again. Returns the
  /// report of the abandoned attempt. Requires: run() has thrown Interrupted.
  StepReport abandon();

  // A part of a step, where another scheduler (StageScheduler) runs the rest of it. That one asks the fleet for events
  // and passes on those that concern the part.

  /// Begins these operations. Requires: no step is under way; the fleet's step is of `graph`; whatever these operations
  /// read of others is complete.
  void begin_part(const model::StepGraph& graph, const OperationSet& part);
  /// Submits what is ready, and again what lost devices had. Errors: as run().
  void advance_part();
  [[nodiscard]] bool part_is_complete() const;
  /// The tasklet is of the part, and its result is wanted.
  [[nodiscard]] bool waits_for(TaskletId tasklet) const;
  /// When the part wants a timeout event, if nothing happens before.
  [[nodiscard]] Seconds part_deadline() const;
  /// Handles an event: of a tasklet that it waits for, of one of its kernels, a device that left, or a timeout at
  /// part_deadline().
  void take(const Event& event);
  /// Ends the part and returns its report.
  StepReport end_part();
  /// Gives up what is in flight, and returns the number of the part's server kernels that are still to end.
  std::int64_t abandon_part();

  /// Devices that answered wrongly and get no more work.
  [[nodiscard]] std::vector<DeviceId> distrusted() const;
  /// Adds a device that was found out elsewhere. Requires: no step is under way.
  void distrust(DeviceId device);
  /// The id of the next tasklet; number_from() sets it, so that schedulers that take turns on one fleet use no id
  /// twice.
  [[nodiscard]] TaskletId next_tasklet() const;
  void number_from(TaskletId next);
  /// True while `device` gets no work because it keeps failing.
  [[nodiscard]] bool leaves_out(DeviceId device) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Lower bound of the step in tiles over these devices, whatever the schedule (docs/cost_model.md).
[[nodiscard]] Seconds step_lower_bound(const model::StepGraph& graph, std::span<const plan::DeviceState> devices,
                                       const SchedulerOptions& options);

/// Energy of a device in `elapsed`: the sum over computing, radio and idle of power times time.
[[nodiscard]] Joules energy_of(const fleet::DeviceProfile& device, const Usage& usage, Seconds elapsed);
/// The same of all devices of a fleet, whether they are still there or not, since their usage was `before`, `elapsed`
/// ago.
[[nodiscard]] Joules energy_since(const Fleet& fleet, std::span<const Usage> before, Seconds elapsed);

}  // namespace cleave::sched
