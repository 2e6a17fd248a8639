// The head in parts: the server puts together what the parts return. Maxima and sums of all parts make one softmax, so
// no part goes backward before all of them have gone forward; the dX of a chunk is the sum of what all parts return.
#include <algorithm>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

bool StageRun::head_passed(std::int64_t q) {
  for (std::int32_t part = head; part <= top(); ++part) {
    if (visit(forward, part, q).done < chunks) return false;
  }
  return true;
}

void StageRun::part_forward_done(std::int64_t q) {
  if (!head_passed(q)) return;
  for (std::int32_t part = head; part <= top(); ++part) {
    sum_elsewhere(q, part);
    for (std::int64_t c = 0; c < chunks; ++c) arrive_backward(q, part);
  }
}

// Partial sums are read, and their sum goes through the norm: views of the same shape as dX for each part, and one of
// the blocks' maxima and sums, which were folded before.
model::Operation StageRun::kernel_of_join(std::int64_t q, std::int64_t chunk) const {
  model::Operation kernel = graph.operation(joined.norm);
  const std::int64_t all = work.tokens();
  for (auto* views : {&kernel.in, &kernel.out}) {
    for (model::TensorView& view : *views) {
      if (!view.valid() || view.rows != all) continue;
      view.row0 = q * work.seq + rows_from(chunk);
      view.rows = rows_to(chunk) - rows_from(chunk);
    }
  }
  model::TensorView folded = kernel.in.front();
  folded.cols = 0;
  for (std::int64_t part = 0; part < plan.head_parts; ++part) {
    folded.cols += 2 * work.pieces[work.pieces.size() - 1 - static_cast<std::size_t>(part)].part.blocks;
    kernel.in.push_back(kernel.in.front());
  }
  kernel.in.push_back(folded);
  return kernel;
}

void StageRun::part_backward_done(const Purpose& purpose) {
  const std::int64_t q = purpose.sequence;
  std::int32_t& begun = joined.begun[static_cast<std::size_t>(q)];
  std::int32_t ready = visit(backward, head, q).done;
  for (std::int32_t part = head; part <= top(); ++part) ready = std::min(ready, visit(backward, part, q).done);
  for (; begun < ready; ++begun) {
    const std::int64_t chunk = chunks - 1 - begun;
    joined.due.emplace_back(q, chunk);
    fleet.start(kernel_of_join(q, chunk));
  }
  if (visit(backward, purpose.stage, q).done < chunks) return;
  if (--at(purpose.stage).backward_left == 0) norms_done(purpose.stage);
  own_visited(q, purpose.stage);
}

void StageRun::chunk_joined() {
  const std::int64_t q = joined.due.front().first;
  joined.due.pop_front();
  arrive_backward(q, head - 1);
  if (++joined.joined[static_cast<std::size_t>(q)] == chunks) sum_elsewhere(q, head - 1);
}

}  // namespace cleave::sched::stages
