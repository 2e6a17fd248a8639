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

struct SchedulerOptions {
  plan::PlanOptions plan;
  DType wire = DType::f32;
  bool learn = true;   ///< plan with rates learned from answers, not with declared ones
  bool copies = true;  ///< ask a second device for blocks that are late
  /// An operation begins when its inputs are ready. If not, they run one after another, with a barrier between them.
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
  std::string name;  ///< of the operation
  Seconds at;        ///< noticed
  std::int64_t devices = 0, blocks = 0;
  Seconds detection;    ///< from the first silence to `at`
  Seconds planning;     ///< processor time spent in planning them again
  Seconds resending;    ///< longest time for the operands of one block that was computed again
  Seconds recomputing;  ///< from then to the last of these blocks
  Seconds added;        ///< by which the operation ended later than its other blocks and its plan say
  Seconds operation;    ///< time that the operation would have taken
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

/// Adds what a step took before it was abandoned to what it took when it was run again.
void add_abandoned(StepReport& report, const StepReport& abandoned);
/// Adds what a part of a step took, time and energy aside, which are the step's.
void add_part(StepReport& report, const StepReport& part);

/// Called now and then while a step runs, and whenever a device has answered wrongly; returning false abandons the step
/// (run() then throws Interrupted).
using KeepGoing = std::function<bool()>;

/// Thrown out of run() when KeepGoing said no: nothing of the step may be kept.
struct Interrupted {};

class Scheduler {
 public:
  /// `fleet` must outlive the scheduler.
  Scheduler(Fleet& fleet, SchedulerOptions options);
  ~Scheduler();

  /// Runs every operation of `graph` once. Collective: rank 0 only.
  /// Errors: InputError when not even the first plan is possible (no device holds the smallest block and none left).
  StepReport run(const model::StepGraph& graph, const KeepGoing& keep_going = {});

  /// After run() has thrown Interrupted: gives up what is in flight and waits for the server's kernels, so that the
  /// step can be run again. Returns what the abandoned part took.
  StepReport abandon();

  // Part of a step, where another scheduler runs the rest of it, asks the fleet for events, and passes on those that
  // concern this part.

  /// Begins these operations. Requires: no step is under way; the fleet's own step is the graph's, and what these
  /// operations read of others is complete.
  void begin_part(const model::StepGraph& graph, const OperationSet& part);
  /// Sends what is ready, and what lost devices had. Errors: as run().
  void advance_part();
  [[nodiscard]] bool part_is_complete() const;
  /// The tasklet is of the part, and wanted.
  [[nodiscard]] bool waits_for(TaskletId tasklet) const;
  /// When the part wants to be told that nothing has happened.
  [[nodiscard]] Seconds part_deadline() const;
  /// An answer to what it waits for, one of its kernels, a device that leaves, or its deadline.
  void take(const Event& event);
  /// What the part took.
  StepReport end_part();
  /// Gives up what is in flight. What is left are the server's kernels; returns how many.
  std::int64_t abandon_part();

  /// Devices that answered wrongly and get no more work.
  [[nodiscard]] std::vector<DeviceId> distrusted() const;
  /// One was found out elsewhere. Requires: no step is under way.
  void distrust(DeviceId device);
  /// The number that the next tasklet gets, and from where on to count: schedulers that take turns on one fleet use no
  /// number twice.
  [[nodiscard]] TaskletId next_tasklet() const;
  void number_from(TaskletId next);
  /// True while `device` gets no work because it keeps failing.
  [[nodiscard]] bool leaves_out(DeviceId device) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A time that no schedule of the graph's tasklets over these devices can beat (docs/cost_model.md).
[[nodiscard]] Seconds step_lower_bound(const model::StepGraph& graph, std::span<const plan::DeviceState> devices,
                                       const SchedulerOptions& options);

/// Energy of a device that was there for `elapsed`: computing, its radio on, and idle, each at its own power.
[[nodiscard]] Joules energy_of(const fleet::DeviceProfile& device, const Usage& usage, Seconds elapsed);

}  // namespace cleave::sched
