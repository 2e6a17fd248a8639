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

/// The step, and how it is run with real numbers.
struct TrainerOptions : sched::StepSpec {
  TrainSettings train;
  ExecutorOptions executor;
  FleetTerms fleet;
  /// In stages: the plan of the first step, from sched::choose_layout() for the same step and devices. Empty, or once
  /// devices are missing or distrusted: stages are planned for the devices that are there.
  std::optional<plan::StagePlan> stage_plan;
};

/// The trainer's options of scheduling in tiles: sched::scheduler_options(); with clock `off` no block counts as late
/// and no rate is learned, since predicted times are not the real ones.
[[nodiscard]] sched::SchedulerOptions scheduling(const TrainerOptions& options);

/// Outcome and cost of one step.
struct StepResult {
  StepOutcome outcome;
  sched::StepReport report;
  Seconds time;                    ///< emulated; with clock `off`, the simulated time of an undisturbed step
  Seconds lower_bound;             ///< of `time` over the devices present; in stages: with the step's layout
  Seconds floor;                   ///< lower bound of `time` for any layout with all state on the server
  Seconds wall;                    ///< real time
  std::optional<double> dilation;  ///< clock `wall`: real time from the first dispatch to the last event, over `time`
  /// Over several hosts: the part of `dilation` that was spent in waiting for each host, as a factor of its own:
  ///   1 + (how late the last event was because of it) / time
  /// The server's own part counts to its host; the factors less 1 add up to dilation less 1.
  std::map<std::string, double> dilation_by_host;
  VerificationReport verification;            ///< of this step's blocks
  std::vector<Unchecked> recomputed;          ///< unchecked blocks because of which the step was run again
  std::optional<PhaseTimes> phases;           ///< parts of `wall`; empty unless ExecutorOptions::profile
  std::optional<std::int64_t> promoted_rows;  ///< in stages with a 16-bit wire: rows of sums that needed 64 bits
};

/// The result of Trainer::take_back() (Verification::rollback).
struct TakenBack {
  std::vector<DeviceId> devices;     ///< devices that were found out since the last call
  std::optional<std::int64_t> step;  ///< the step (0-based) to go on with, whose state is restored; empty: none is
                                     ///< taken back
  bool stays = false;      ///< the devices had, or may have had, parts in steps that cannot be taken back; those stay
  std::int64_t reach = 0;  ///< the earliest step that could be taken back
};

/// States before earlier steps that are not in the trainer's memory, such as checkpoints. Implemented by app.
class EarlierStates {
 public:
  virtual ~EarlierStates() = default;
  /// Names a state by the step (0-based) that it comes before: the latest at or before step `wanted`; where there is
  /// none, the earliest before step `reach`; empty: there is none. Requires: wanted < reach.
  [[nodiscard]] virtual std::optional<std::int64_t> find(std::int64_t wanted, std::int64_t reach) = 0;
  /// Loads parameters and moments of a state that find() returned.
  virtual void load(std::int64_t step) = 0;
  /// Called in the middle of a step, as soon as devices are found out: all steps from `step` on are about to be taken
  /// back. An implementation records that durably before it returns, so that a process which resumes after a crash
  /// knows it. May be called again with more devices; the next take_back() ends it.
  virtual void condemn(std::int64_t step, const std::vector<DeviceId>& devices) = 0;
};

/// See the file comment. Collective: every call is of rank 0 only.
class Trainer {
 public:
  /// `transport`: this process is rank 0, and the other ranks run device::run_device_host(); null: the server computes
  /// everything itself. Requires: `parameters` and `transport` outlive the trainer. Errors: EnvironmentError where
  /// every rank refuses or does not answer; InputError where no device can hold any block.
  Trainer(ParameterStore& parameters, TrainerOptions options, comm::Transport* transport);
  ~Trainer();

  /// Runs update `step` (0-based) on `batch`. `keep_going` is called now and then; once it returns false, the step is
  /// abandoned unless its update has begun. `on_gradient` is called with each parameter's gradient.
  /// Errors: CheckFailure for a loss or product that is not finite, unless take_back() will take the step back;
  /// sched::Interrupted, where nothing of the step was kept.
  StepResult step(std::int64_t step, const data::Batch& batch, const sched::KeepGoing& keep_going = {},
                  const GradientObserver& on_gradient = {});

  /// Restores parameters and moments to before the first step, among those that Verification::rollback reaches, in
  /// which a device that was found out since delivered results that were not checked. The caller then runs the steps
  /// from there on again; they end with the bits that they would have had without the device. To be called after each
  /// step(), interrupted or not, and after evaluate() where that follows, before a checkpoint is written. Errors: what
  /// EarlierStates::load() throws.
  [[nodiscard]] TakenBack take_back();

  /// Sets the source of earlier states for take_back(). Requires: it outlives the trainer.
  void use(EarlierStates& earlier);
  /// A record, as text, of which devices delivered unchecked results in the last steps before `step`: for the
  /// checkpoint before `step` (RunState::parts). Empty where steps are not taken back.
  [[nodiscard]] std::string part_record(std::int64_t step) const;
  /// Takes over the record of the process that wrote the checkpoint before `step`. Returns the earliest step in it;
  /// empty where the record is empty or unreadable. Requires: no step was run.
  std::optional<std::int64_t> remember_parts(std::int64_t step, const std::string& record);

  /// Mean loss over all targets of the batches. Errors: as step().
  double evaluate(std::span<const data::Batch> batches, const sched::KeepGoing& keep_going = {});

  /// Logits [T, V] of one sequence of T = model.seq_len tokens, row-major.
  [[nodiscard]] std::vector<float> logits(std::span<const std::int32_t> tokens);

  /// Device ranks, by rank (rank 0 is an empty entry); empty without a transport.
  [[nodiscard]] std::vector<RankInfo> ranks() const;
  /// Usage since the trainer was made, by device id.
  [[nodiscard]] std::span<const sched::Usage> usage() const;
  /// Devices that answered wrongly and get no more work.
  [[nodiscard]] std::vector<DeviceId> distrusted() const;
  /// Checks of returned blocks since the trainer was made.
  [[nodiscard]] const VerificationReport& verification() const;
  /// Clock `wall`: the most by which real time was behind emulated time.
  [[nodiscard]] Seconds lateness() const;
  /// The profile of the training steps; empty unless ExecutorOptions::profile.
  [[nodiscard]] const Profile& profile() const;
  /// Most bytes of activations, gradients and logits at once so far.
  [[nodiscard]] Bytes peak_activation_memory() const;

  /// Tells the device ranks to leave, and waits for at most `at_most` for their farewells. Returns the ranks that did
  /// not say farewell; if there are any, MPI must not be finalized (comm::MpiSession::leave_now()).
  [[nodiscard]] std::vector<RankInfo> say_goodbye(Seconds at_most);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::server
