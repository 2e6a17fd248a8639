// Recovery: plans blocks again that will not be answered, and asks a second device for blocks that are late.
//
// The scheduler tells it what happened: a device left with what it held, a message was lost, a device answered wrongly,
// a deadline passed. Recovery decides which devices compute the blocks instead, and records what each loss cost.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "by_device.hpp"
#include "cleave/sched/scheduler.hpp"
#include "outstanding.hpp"
#include "planning.hpp"
#include "recovery/deadline.hpp"
#include "recovery/losses.hpp"
#include "recovery/operation_deadlines.hpp"
#include "step_progress.hpp"

namespace cleave::sched {

class Recovery {
 public:
  /// How a piece is sent again: for a loss (its number; -1: none), or as another copy of a block. `losses`: how often
  /// what it asks for was lost before, at most.
  using Send = std::function<void(OpId op, const plan::TaskletPlan& piece, int loss, std::optional<std::int64_t> block,
                                  int losses)>;
  /// How a tasklet that is under way is forgotten.
  using Forget = std::function<void(const InFlight& flight)>;

  /// All that it is given must outlive it.
  Recovery(const Fleet& fleet, const SchedulerOptions& options, StepProgress& progress, const Outstanding& outstanding,
           Planning& planning, StepReport& report, Send send, Forget forget);

  void begin(const model::StepGraph& graph);

  /// Takes tasklets that will not be answered off the book, at once, before the fleet is asked anything: an answer that
  /// is already there must not be placed beside a new one. Returns those whose block nobody else has in hand.
  std::vector<InFlight> give_up(const std::vector<InFlight>& unanswered);
  /// Plans blocks that were given up again over the devices that remain. `silent`: for how long the devices had been
  /// silent before it was noticed.
  void redo(const std::vector<InFlight>& idle, Seconds silent);

  /// All blocks of an operation are sent: its answers are expected within OperationProgress::expected.
  void expect(OpId op) { wait_for(op, progress_.at(op).expected); }
  /// An answer took so long where so long was expected, or was the one that a loss waited for.
  void answered(const InFlight& flight, const Measured& measured);
  void complete(OpId op);

  /// When the next operation is late.
  [[nodiscard]] std::optional<Seconds> next_deadline() const;
  /// That time has come: the operation's last blocks are asked of other devices too.
  void pass_deadline();

  [[nodiscard]] const std::vector<Loss>& losses() const { return losses_.all(); }

 private:
  void wait_for(OpId op, Seconds expected);
  void wait_until_late(OpId op, Seconds limit);
  [[nodiscard]] Seconds limit(Seconds expected) const;
  [[nodiscard]] Seconds began(const OperationProgress& op, const std::vector<InFlight>& missing) const;
  [[nodiscard]] Seconds gives_way_for(const OperationProgress& op, const std::vector<InFlight>& missing);
  Seconds copy_late(OpId id, const std::vector<InFlight>& missing);

  const Fleet& fleet_;
  const SchedulerOptions& options_;
  StepProgress& progress_;
  const Outstanding& outstanding_;
  Planning& planning_;
  StepReport& report_;
  Send send_;
  Forget forget_;
  const model::StepGraph* graph_ = nullptr;
  Deadline deadline_;
  OperationDeadlines deadlines_;
  struct Answer {
    Seconds at{0};
    Priority priority{};  // of the tasklet
  };
  ByDevice<Answer> punctual_;  // a device's last one in good time
  Losses losses_;
};

}  // namespace cleave::sched
