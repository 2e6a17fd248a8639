// What the fleets behind a transport have in common: what an answer means to the scheduler, and what a device that
// comes or goes is told.
#pragma once

#include <map>

#include "exchange.hpp"
#include "executor.hpp"

namespace cleave::server {

/// What a witness's answer, or the server's own in its place (`answer` null), means to the scheduler. Who refuses
/// witnesses nothing.
void compare(Executor& executor, const sched::Tasklet& witness, const Answer* answer, sched::Event& event);

/// Looks at an answer and, if it is good, puts the block in its place; says what it means to the scheduler.
void accept(Executor& executor, Answer& answer, sched::Event& event);

/// The first part of a tasklet's message (Exchange::Packer). Tasklets of a step in stages travel whole.
[[nodiscard]] comm::MessagePart first_part(Executor& executor, const sched::Tasklet& tasklet, Bytes room);

/// Sums that a device was sent and nobody wants any more, by tasklet.
class SentSums {
 public:
  void submitted(const sched::Tasklet& tasklet) {
    if (tasklet.errand == sched::Errand::sum && tasklet.piece.device != kServerDevice)
      sums_.emplace(tasklet.id, tasklet);
  }
  void clear() { sums_.clear(); }
  /// A tasklet is forgotten: what was added is taken away again.
  void forget(TaskletId id, bool sent, Executor& executor, Exchange& exchange) {
    const auto found = sums_.find(id);
    if (found == sums_.end()) return;
    const DeviceId device = found->second.piece.device;
    if (sent && !exchange.is_gone(device)) exchange.send(device, executor.stages().take_away(found->second));
    sums_.erase(found);
  }

 private:
  std::map<TaskletId, sched::Tasklet> sums_;  // of this step
};

/// Tells devices that a step in stages begins: whoever takes part, and who joins, whatever runs then: it holds nothing
/// of a step that it took part in before it left.
inline void begin_on(DeviceId device, Executor& executor, Exchange& exchange) {
  if (executor.stages().was_begun()) exchange.send(device, executor.stages().begin_message(device));
}

/// Answers that came before their turn, by tasklet.
using EarlyAnswers = std::pmr::map<TaskletId, Answer>;

/// A device that leaves may go on with what it was asked: nobody waits for that, and it is not sent the rest.
inline void forget_all(DeviceId device, Exchange& exchange, EarlyAnswers& answers) {
  exchange.forget_all(device);
  std::erase_if(answers, [&](const auto& early) { return early.second.tasklet.piece.device == device; });
}

}  // namespace cleave::server
