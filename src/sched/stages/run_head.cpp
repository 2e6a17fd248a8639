// The head in parts: when all parts have passed a sequence or a chunk, and the kernel that follows.
#include "stages/run_head.hpp"

#include <algorithm>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

// The gradient of the norm that comes before the head: the first of its kind.
OpId head_norm_gradient(const model::StepGraph& graph) {
  const auto found = std::ranges::find_if(graph.operations, [](const model::Operation& op) {
    return op.kind == model::OpKind::layer_norm_backward || op.kind == model::OpKind::rms_norm_backward;
  });
  return found == graph.operations.end() ? OpId() : found->id;
}

}  // namespace

void HeadJoin::begin() {
  norm_ = head_norm_gradient(run_.graph);
  joined_.assign(static_cast<std::size_t>(run_.batch), 0);
  begun_.assign(static_cast<std::size_t>(run_.batch), 0);
  due_.clear();
}

bool HeadJoin::is_kernel(OpId id) const { return run_.in_parts() && id == norm_; }

bool HeadJoin::is_joined(std::int64_t q) const { return joined_[static_cast<std::size_t>(q)] == run_.chunks; }

bool HeadJoin::has_passed(std::int64_t q) const {
  for (std::int32_t part = run_.head; part <= run_.top(); ++part) {
    if (run_.visit(run_.forward, part, q).done < run_.chunks) return false;
  }
  return true;
}

void HeadJoin::forward_done(std::int64_t q) {
  if (!has_passed(q)) return;
  for (std::int32_t part = run_.head; part <= run_.top(); ++part) {
    run_.sum_elsewhere(q, part);
    for (std::int64_t c = 0; c < run_.chunks; ++c) run_.arrive_backward(q, part);
  }
}

// The kernel adds the parts' shares of dX and takes the sum back through the norm. Beside the norm's own operands it
// reads one view of the shape of dX for each part, and one of the maxima and sums of the vocabulary blocks: what its
// cost is counted from.
model::Operation HeadJoin::kernel_of(std::int64_t q, std::int64_t chunk) const {
  model::Operation kernel = run_.graph.operation(norm_);
  const std::int64_t all = run_.work.tokens();
  for (auto* views : {&kernel.in, &kernel.out}) {
    for (model::TensorView& view : *views) {
      if (!view.valid() || view.rows != all) continue;
      view.row0 = q * run_.work.seq + run_.rows_from(chunk);
      view.rows = run_.rows_to(chunk) - run_.rows_from(chunk);
    }
  }
  model::TensorView folded = kernel.in.front();
  folded.cols = 0;
  for (std::int64_t part = 0; part < run_.plan.head_parts; ++part) {
    folded.cols += 2 * run_.work.pieces[run_.work.pieces.size() - 1 - static_cast<std::size_t>(part)].part.blocks;
    kernel.in.push_back(kernel.in.front());
  }
  kernel.in.push_back(folded);
  return kernel;
}

void HeadJoin::backward_done(const Purpose& purpose) {
  const std::int64_t q = purpose.sequence;
  std::int32_t& begun = begun_[static_cast<std::size_t>(q)];
  std::int32_t ready = run_.visit(run_.backward, run_.head, q).done;
  for (std::int32_t part = run_.head; part <= run_.top(); ++part)
    ready = std::min(ready, run_.visit(run_.backward, part, q).done);
  for (; begun < ready; ++begun) {
    const std::int64_t chunk = run_.chunks - 1 - begun;
    due_.emplace_back(q, chunk);
    run_.fleet.start(kernel_of(q, chunk));
  }
  if (run_.visit(run_.backward, purpose.stage, q).done < run_.chunks) return;
  if (--run_.at(purpose.stage).backward_left == 0) run_.norms_done(purpose.stage);
  run_.own_visited(q, purpose.stage);
}

void HeadJoin::kernel_done() {
  const std::int64_t q = due_.front().first;
  due_.pop_front();
  run_.arrive_backward(q, run_.head - 1);
  if (++joined_[static_cast<std::size_t>(q)] == run_.chunks) run_.sum_elsewhere(q, run_.head - 1);
}

}  // namespace cleave::sched::stages
