// Executor: the numbers behind a StepGraph, as the server's fleets use them: messages of tasklets out, returned blocks
// in, server kernels, and blocks that no device computes.
//
// Each of these is a class of its own (gather, scatter, verifier, server kernels, block computer) that works on one
// workspace; the executor has them and says in which order they act. The scheduler never calls it. It decides nothing:
// what runs where and when is the scheduler's, how blocks travel is the exchange's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "block_computer.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/server/parameter_store.hpp"
#include "cleave/server/profile.hpp"
#include "cleave/server/session.hpp"
#include "gather.hpp"
#include "scatter.hpp"
#include "server_kernels.hpp"
#include "stages/server_sums.hpp"
#include "stages/stage_check.hpp"
#include "stages/stage_numbers.hpp"
#include "undo_log.hpp"
#include "verifier.hpp"
#include "workspace.hpp"

namespace cleave::server {

class Executor {
 public:
  /// `parameters` must outlive the executor.
  Executor(ParameterStore& parameters, DType wire, const ExecutorOptions& options);

  /// Binds `graph`, which must live as long as the executor, to this step's batch. `every_block`: as
  /// Verifier::begin_step().
  void begin_step(const model::StepGraph& graph, const StepInputs& inputs, bool every_block = false);

  /// Runs a server kernel. Requires: its inputs are complete.
  void run(const model::Operation& kernel);

  /// The step that has begun is run in stages. Requires: as StageNumbers::begin().
  void begin_stages(const plan::StagePlan& plan);
  /// Tasklets with errands.
  [[nodiscard]] StageNumbers& stages() { return stages_; }
  /// The task message of one.
  [[nodiscard]] comm::Frame stage_message(const sched::Tasklet& tasklet, const FaultOrder& fault,
                                          const Reader& reader) {
    return stages_.message(tasklet, fault, reader, tasklet.is_witness() ? &stage_check_.key_of(tasklet.id) : nullptr);
  }
  /// A device refused a tasklet of a step in stages because of values that are not finite. If the server cannot compute
  /// it either, those who brought that about are found out instead; nobody where the step is suspect. Errors:
  /// CheckFailure where nobody did.
  [[nodiscard]] PairVerdict judge_refusal(const sched::Tasklet& tasklet);

  /// The same in tiles: whether the server can compute what a device refused. Where it cannot, and there are blocks of
  /// this step that nobody looked at, the step is suspect; in a step whose other part is in stages, devices may be
  /// found out first. Errors: CheckFailure where there is neither.
  [[nodiscard]] bool can_compute(const sched::Tasklet& tasklet);
  /// Some value of this step is not finite, which a block in tiles that nobody looked at may have brought about: the
  /// step must be run again in tiles, as spoiled() says, and each block looked at.
  [[nodiscard]] bool suspect() const { return suspect_; }
  /// What was thrown when a message was made makes the step suspect, if anything can.
  [[nodiscard]] bool becomes_suspect();
  /// True once for a step that has become suspect: nothing more is to be begun in it.
  [[nodiscard]] bool stops_step() { return std::exchange(stops_, false); }

  /// Task messages of tasklets.
  [[nodiscard]] Gather& gather() { return gather_; }

  /// Whether place() checks this block: what it looks at must not change meanwhile. In stages it is stored twice, as
  /// what counts and as what is compared later: both must be the same.
  [[nodiscard]] bool checks(const sched::Tasklet& tasklet) const {
    return tasklet.is_run() ? verifier_.looks() : verifier_.is_drawn(tasklet);
  }

  /// Checks a returned block (as verification says) and puts it in its place. A result of another size, type or device
  /// than the tasklet's is wrong. Requires: comm::decode_result() accepted the result, and it names this tasklet.
  Verdict place(const sched::Tasklet& tasklet, const comm::ResultView& result);

  /// What a witness answered to a task: a digest, or nothing of use. As Verifier::compare().
  [[nodiscard]] PairVerdict compare(const sched::Tasklet& witness, const std::optional<SipTag>& answer) {
    return witness.is_run() ? compare_in_stages(witness, answer) : verifier_.compare(witness, answer);
  }

  /// Does on the server what a tasklet is for, with the bits that a device would return: a block is put in its place;
  /// in stages a sequence is added to sums, or these are put in theirs.
  void compute(const sched::Tasklet& tasklet);

  /// Finishes partial sums.
  void finish(OpId op);
  /// Gives up what only this operation needed.
  void retire(OpId op);

  [[nodiscard]] double loss();
  [[nodiscard]] double grad_norm();
  [[nodiscard]] kernels::ConstRows logits();
  /// True once an update of this step has begun: from then on the step must be completed.
  [[nodiscard]] bool updating() const { return kernels_.updating(); }
  /// Not empty: these blocks of this step may be wrong, and with them whatever was computed from them. The step must be
  /// run again, from undo_updates() and begin_step() on.
  [[nodiscard]] const std::vector<Unchecked>& spoiled() const { return verifier_.spoiled(); }
  /// Who delivered blocks of this step that the server has not looked at itself.
  [[nodiscard]] std::vector<DeviceId> unverified() const { return verifier_.unverified(); }
  /// Puts parameters and moments back to where they were when the step began.
  void undo_updates() { undo_.undo(); }
  [[nodiscard]] DType wire() const { return work_.wire(); }
  [[nodiscard]] const VerificationReport& verification() const { return verifier_.report(); }
  [[nodiscard]] Bytes peak_memory() const { return work_.pool().peak(); }
  /// Calls `meanwhile` now and then while kernels run (kernels::Parallel); it must not use the executor.
  void set_meanwhile(std::function<void()> meanwhile) { work_.parallel().set_meanwhile(std::move(meanwhile)); }
  /// Where real time goes; who else works on a step claims his part of it here.
  [[nodiscard]] Profile& profile() { return work_.profile(); }

 private:
  PairVerdict compare_in_stages(const sched::Tasklet& witness, const std::optional<SipTag>& answer);
  Verdict place_in_stages(const sched::Tasklet& tasklet, const comm::ResultView& result);
  // Does something, unless nothing of this step will be kept. Where it meets what is not finite, the step becomes
  // suspect, or devices are found out. Errors: CheckFailure where there is neither.
  template <class Work>
  void do_unless_suspect(const Work& work);
  // Everybody who answered wrongly in this step of stages is found out; whether there is anybody.
  bool find_wrong();
  // A value of this step of stages is not finite: find_wrong(), or else becomes_suspect(). Errors: CheckFailure.
  void find_cause();

  Workspace work_;
  UndoLog undo_;
  ServerKernels kernels_;
  Scatter scatter_;
  BlockComputer computer_;
  Verifier verifier_;
  Gather gather_;
  StageNumbers stages_;
  StageCheck stage_check_;
  ServerSums server_sums_;
  bool spoiled_ = false;                  // this step of stages: kernels are passed over
  bool suspect_ = false, stops_ = false;  // stops_: the fleet has not been told
  std::int64_t device_operations_ = 0;    // of this step, that are not retired
};

}  // namespace cleave::server
