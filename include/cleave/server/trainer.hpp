// Trainer: the parameter server of a run: parameters, executor, fleet and scheduler, one step at a time.
//
// app decides which steps to run, when to evaluate and when to save; the trainer makes a step happen. Invariant: after
// step() the parameters depend on the initial ones, the batches and the settings only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/comm/transport.hpp"
#include "cleave/data/batches.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/step_spec.hpp"
#include "cleave/server/fleets.hpp"
#include "cleave/server/parameter_store.hpp"
#include "cleave/server/profile.hpp"
#include "cleave/server/session.hpp"
#include "cleave/server/training.hpp"

namespace cleave::server {

/// A step in tiles, and how it is run with real numbers.
struct TrainerOptions : sched::StepSpec {
  TrainSettings train;
  ExecutorOptions executor;
  FleetTerms fleet;
  /// What a run in stages begins with, as sched::choose_layout() chose it for the same job and devices. Once devices
  /// are missing or distrusted, or where it is empty, stages are planned for those that are there.
  std::optional<plan::StagePlan> stage_plan;
};

/// How the trainer schedules: as sched::scheduler_options() says, but with clock `off` predicted times are not the real
/// ones: nothing is late, and nothing to be learned.
[[nodiscard]] sched::SchedulerOptions scheduling(const TrainerOptions& options);

/// What one step yielded and took.
struct StepResult {
  StepOutcome outcome;
  sched::StepReport report;
  Seconds time;         ///< emulated; with clock `off`, what the simulator says of an undisturbed step
  Seconds lower_bound;  ///< no schedule over the devices present can be faster; in stages: none of the step's layout
  Seconds floor;        ///< nor can any other layout with all state on the server
  Seconds wall;         ///< real
  std::optional<double> dilation;  ///< clock `wall`: real time from the first dispatch to the last event, over `time`
  /// Over several hosts: the part of `dilation` that was spent in waiting for each host, as a factor of its own:
  ///   1 + (how late the last event was because of it) / time
  /// The server's own part counts to its host; the factors less 1 add up to dilation less 1.
  std::map<std::string, double> dilation_by_host;
  VerificationReport verification;            ///< of this step's blocks
  std::vector<Unchecked> recomputed;          ///< the step was run again because of these blocks
  std::optional<PhaseTimes> phases;           ///< parts of `wall`, where a profile is kept
  std::optional<std::int64_t> promoted_rows;  ///< in stages with a 16-bit wire: of sums that needed 64 bits
};

/// What became of steps before, once devices were found out (Verification::rollback).
struct TakenBack {
  std::vector<DeviceId> devices;     ///< found out since it was last asked
  std::optional<std::int64_t> step;  ///< go on with this step (0-based): the state before it is back; empty: no need to
  bool stays = false;  ///< they also had parts, or may have had, in steps that cannot be taken back: those parts stay
  std::int64_t reach = 0;  ///< the earliest step that could be taken back
};

/// States of earlier steps outside of the trainer's memory, and its word on which of them are not to be used.
class EarlierStates {
 public:
  virtual ~EarlierStates() = default;
  /// The latest state from before step `wanted` (0-based) or earlier; where there is none, the earliest from before
  /// step `reach`. Which step comes next; empty: there is none. Requires: wanted < reach.
  [[nodiscard]] virtual std::optional<std::int64_t> find(std::int64_t wanted, std::int64_t reach) = 0;
  /// Loads parameters and moments of a state that find() named.
  virtual void load(std::int64_t step) = 0;
  /// Told as soon as devices are found out, in the middle of a step: all steps from `step` on are about to be taken
  /// back. What lies on a disk for the time after a crash should say so when this returns. May be told again with more
  /// devices; the next take_back() ends it.
  virtual void condemn(std::int64_t step, const std::vector<DeviceId>& devices) = 0;
};

class Trainer {
 public:
  /// `transport` has this process as rank 0 and device ranks behind the others; null: the server computes everything.
  /// `parameters` and `transport` must outlive the trainer.
  /// Errors: EnvironmentError when every rank refuses or does not answer; InputError when no device can hold any block.
  Trainer(ParameterStore& parameters, TrainerOptions options, comm::Transport* transport);
  ~Trainer();

  /// Runs update `step` (0-based) on `batch`. `keep_going` is asked now and then; once it says no, the step is
  /// abandoned unless its update has begun. Errors: CheckFailure for a loss or product that is not finite, unless
  /// take_back() will take the step back; sched::Interrupted (nothing of the step was kept).
  StepResult step(std::int64_t step, const data::Batch& batch, const sched::KeepGoing& keep_going = {},
                  const GradientObserver& on_gradient = {});

  /// To be asked after each step(), interrupted or not, and after evaluate() where that follows, before a checkpoint:
  /// puts parameters and moments back to before the first step, of those that Verification::rollback reaches, in which
  /// a device that was found out since had a part that nobody looked at. The steps from there on are to be run again;
  /// they end with the bits that they would have had without the device. Errors: what EarlierStates::load() throws.
  [[nodiscard]] TakenBack take_back();

  /// Where earlier states are, and who is told what is to be taken back; it must outlive the trainer.
  void use(EarlierStates& earlier);
  /// Who delivered what nobody looked at in the last steps before `step`, for a process that goes on from there; empty
  /// where steps are not taken back.
  [[nodiscard]] std::string part_record(std::int64_t step) const;
  /// Takes the record of the process before, which ended before `step`. Returns the earliest step that it tells of;
  /// empty: it tells nothing. Requires: no step was run.
  std::optional<std::int64_t> remember_parts(std::int64_t step, const std::string& record);

  /// Mean loss over all targets of the batches. Errors: as step().
  double evaluate(std::span<const data::Batch> batches, const sched::KeepGoing& keep_going = {});

  /// Logits [T, V] of one sequence of T = model.seq_len tokens, row-major.
  [[nodiscard]] std::vector<float> logits(std::span<const std::int32_t> tokens);

  /// Device ranks, by rank (rank 0 is an empty entry); empty without a transport.
  [[nodiscard]] std::vector<RankInfo> ranks() const;
  [[nodiscard]] std::span<const sched::Usage> usage() const;
  [[nodiscard]] std::vector<DeviceId> distrusted() const;
  /// Checks of returned blocks since the trainer was made.
  [[nodiscard]] const VerificationReport& verification() const;
  /// By how much real time was behind the model's at most (clock `wall`).
  [[nodiscard]] Seconds lateness() const;
  /// Where the real time of training steps went; empty unless ExecutorOptions::profile.
  [[nodiscard]] const Profile& profile() const;
  /// Most bytes of activations, gradients and logits at once so far.
  [[nodiscard]] Bytes peak_activation_memory() const;

  /// Ends the device ranks. Returns those that did not say farewell: with any, MPI must not be finalized.
  [[nodiscard]] std::vector<RankInfo> say_goodbye(Seconds at_most);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::server
