// The order in which the executor's parts act.
#include "executor.hpp"

#include <algorithm>

namespace cleave::server {

using model::Operation;

Executor::Executor(ParameterStore& parameters, DType wire, const ExecutorOptions& options)
    : work_(parameters, wire, options),
      kernels_(work_, undo_),
      scatter_(work_),
      computer_(work_),
      verifier_(work_, computer_, options.verification),
      gather_(work_, verifier_, options.parts),
      stages_(work_, kernels_) {}

void Executor::begin_step(const model::StepGraph& graph, const StepInputs& inputs) {
  work_.begin_step(graph, inputs);
  stages_.end();
  verifier_.begin_step();
  kernels_.begin_step();
  undo_.open(verifier_.samples());
  device_operations_ =
      std::ranges::count_if(graph.operations, [](const Operation& op) { return model::runs_on_devices(op.kind); });
}

Verdict Executor::place(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Profile::Scope scope(work_.profile(), Phase::place, tasklet.op);
  if (tasklet.is_run()) {
    verifier_.count(result.header.compute);
    return stages_.place(tasklet, result) ? Verdict::good : verifier_.accuse(tasklet, false, 0);
  }
  const comm::Header asked = work_.header_of(tasklet), &got = result.header;
  verifier_.count(got.compute);
  // Sums over tokens that do not fit come in 64 bits (kernels/token_sum_matrix.hpp); decode() knows where they may.
  const bool of_type = got.output == asked.output || (asked.output == DType::i32 && got.output == DType::i64);
  if (got.work != asked.work || got.wire != asked.wire || !of_type || got.gemm != asked.gemm ||
      got.part != asked.part || got.attention != asked.attention || got.device != asked.device) {
    return verifier_.accuse(tasklet, false, 0);
  }
  const bool adds = scatter_.adds(tasklet);
  if (adds || verifier_.is_drawn(tasklet)) {
    const Verdict verdict = verifier_.check(tasklet, result);
    if (verdict != Verdict::good) return verdict;
  }
  if (adds) {
    scatter_.add(tasklet, result.outputs[0], got.output);
  } else if (!scatter_.write(tasklet, result)) {
    return verifier_.accuse(tasklet, false, 0);
  }
  verifier_.placed(tasklet);
  if (tasklet.witnessed) verifier_.keep_digest(tasklet, result);
  return Verdict::good;
}

void Executor::begin_stages(const plan::StagePlan& plan) {
  stages_.begin(plan);
  // Where updates wait for the norm of all gradients, none begins before the last sum has come.
  const std::vector<Operation>& all = work_.graph().operations;
  undo_.open(std::ranges::any_of(
      all, [](const Operation& op) { return op.kind == model::OpKind::adamw && op.in.size() == 1; }));
}

void Executor::finish(OpId id) {
  const Profile::Scope scope(work_.profile(), Phase::place, id);
  scatter_.finish(work_.operation(id));
}

void Executor::retire(OpId id) {
  const Profile::Scope scope(work_.profile(), Phase::place, id);
  const Operation& op = work_.operation(id);
  verifier_.retire(id);
  work_.retire(op);
  // Nobody can be found out after the last of them; who was found out with it still has the step undone.
  if (model::runs_on_devices(op.kind) && --device_operations_ == 0 && verifier_.spoiled().empty()) undo_.close();
}

double Executor::loss() {
  const model::StepGraph& graph = work_.graph();
  if (stages_.active()) return stages_.loss() / static_cast<double>(graph.batch * graph.seq);
  return work_.tensors().scalar(graph.loss) / static_cast<double>(graph.batch * graph.seq);
}

double Executor::grad_norm() {
  const TensorId norm = work_.graph().grad_norm;
  return norm.valid() ? work_.tensors().scalar(norm) : 0.0;
}

kernels::ConstRows Executor::logits() {
  const model::StepGraph& graph = work_.graph();
  const model::TensorSpec& spec = graph.tensor(graph.logits);
  return work_.tensors().rows({graph.logits, 0, spec.rows, 0, spec.cols});
}

}  // namespace cleave::server
