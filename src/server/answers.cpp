// What an answer means to the scheduler.
#include "answers.hpp"

#include <optional>

namespace cleave::server {

using sched::Event;
using sched::EventKind;
using sched::Tasklet;

void compare(Executor& executor, const Tasklet& witness, const Answer* answer, Event& event) {
  if (answer != nullptr && answer->kind != Answer::Kind::result) {
    event.kind = EventKind::lost;
    return;
  }
  std::optional<SipTag> digest;
  if (answer != nullptr) {
    const auto header = comm::decode(answer->frame);
    if (header && header->kind == comm::Kind::digest && header->device == witness.piece.device)
      digest = comm::tag_of(answer->frame);
  }
  const PairVerdict verdict = executor.compare(witness, digest);
  event.kind = verdict.wrong.valid() ? EventKind::rejected : EventKind::done;
  if (verdict.wrong.valid()) event.device = verdict.wrong;
  event.also = verdict.also;
}

void accept(Executor& executor, Answer& answer, Event& event) {
  if (answer.tasklet.is_witness()) return compare(executor, answer.tasklet, &answer, event);
  event.kind = EventKind::rejected;
  if (answer.kind == Answer::Kind::lost) event.kind = EventKind::lost;
  if (answer.kind == Answer::Kind::refused && answer.tasklet.is_run()) {
    if (answer.why == comm::Reason::non_finite) {
      const PairVerdict verdict = executor.judge_refusal(answer.tasklet);
      if (!verdict.wrong.valid()) {
        event.kind = EventKind::lost;
      } else {
        event.device = verdict.wrong;
        event.also = verdict.also;
      }
    } else if (answer.why == comm::Reason::memory) {
      // Sums that leave the range of the usual case take more memory than anybody plans for (docs/numerics.md).
      event.kind = EventKind::lost;
      event.lacks_memory = true;
    }
  }
  const bool of_tiles = answer.kind == Answer::Kind::refused && !answer.tasklet.is_run();
  if (of_tiles && answer.why == comm::Reason::non_finite && !executor.can_compute(answer.tasklet))
    event.kind = EventKind::lost;
  if (answer.kind != Answer::Kind::result) return;
  // Its sender can still write to a frame that is read in place: what is checked and what is kept must be one.
  if (answer.frame.borrowed() && executor.checks(answer.tasklet)) answer.frame = answer.frame.copy();
  // The exchange has decoded the whole frame, checksum included, when it came in.
  const auto header = comm::decode_header(answer.frame.bytes(), answer.frame.size());
  if (!header || header->kind != comm::Kind::result) return;
  comm::ResultView result = comm::view_result(answer.frame, *header);
  result.header.compute = std::min(result.header.compute, answer.took);  // whatever it says
  if (executor.place(answer.tasklet, result) != Verdict::good) return;
  event.kind = EventKind::done;
  if (executor.stages().is_read_later(answer.tasklet)) executor.stages().keep(std::move(answer.frame));
}

comm::MessagePart first_part(Executor& executor, const Tasklet& tasklet, Bytes room) {
  return tasklet.is_run() ? comm::MessagePart{} : executor.gather().first_part(tasklet, room);
}

}  // namespace cleave::server
