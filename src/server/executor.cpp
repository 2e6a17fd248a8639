// The order in which the executor's parts act.
#include "executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "cleave/base/error.hpp"

namespace cleave::server {

using model::Operation;

Executor::Executor(ParameterStore& parameters, DType wire, const ExecutorOptions& options)
    : work_(parameters, wire, options),
      kernels_(work_, undo_),
      scatter_(work_),
      computer_(work_),
      verifier_(work_, computer_, options.verification),
      gather_(work_, verifier_, options.parts),
      stages_(work_, kernels_),
      stage_check_(work_, stages_),
      server_sums_(work_, stages_) {
  if (options.verification.mode != VerifyMode::off) stages_.keep_partial_sums();
}

void Executor::begin_step(const model::StepGraph& graph, const StepInputs& inputs, bool every_block) {
  work_.begin_step(graph, inputs);
  stages_.end();
  stage_check_.begin();
  server_sums_.begin();
  spoiled_ = suspect_ = stops_ = false;
  verifier_.begin_step(every_block);
  kernels_.begin_step();
  undo_.open(verifier_.samples());
  device_operations_ =
      std::ranges::count_if(graph.operations, [](const Operation& op) { return model::runs_on_devices(op.kind); });
}

Verdict Executor::place(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Profile::Scope scope(work_.profile(), Phase::place, tasklet.op);
  if (tasklet.is_run()) return place_in_stages(tasklet, result);
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

namespace {

std::string name_of_visit(const sched::Tasklet& tasklet) {
  const bool back = tasklet.errand == sched::Errand::backward || tasklet.item.back;
  switch (tasklet.errand) {
    case sched::Errand::sum:
    case sched::Errand::send_sums:
    case sched::Errand::witness_sums: return fmt::format("sums of stage {}", tasklet.stage);
    default:
      return fmt::format("stage {}, sequence {}, {}", tasklet.stage, tasklet.item.sequence, back ? "back" : "forward");
  }
}

}  // namespace

Verdict Executor::place_in_stages(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  verifier_.count(result.header.compute);
  const DeviceId device = tasklet.piece.device;
  bool placed = stages_.place(tasklet, result);
  if (!placed && tasklet.errand == sched::Errand::send_sums && tasklet.item.partial) {
    const Verifier::Charge charge(verifier_);
    placed =
        stage_check_.has_sums(tasklet, result.outputs[0]) && stages_.place(tasklet, result, StageNumbers::Sums64::any);
  }
  if (!placed) return verifier_.accuse_in_stages(device, tasklet.id, name_of_visit(tasklet));
  stage_check_.placed(tasklet);
  verifier_.placed_unseen(device);
  if (!verifier_.audits() || !stage_check_.completes(tasklet) || !verifier_.is_drawn(tasklet)) return Verdict::good;
  const Verifier::Charge charge(verifier_);
  const StageCheck::Wrong wrong = stage_check_.audit(tasklet);
  verifier_.looked_at(wrong.answers, wrong.firsts);
  for (const DeviceId liar : wrong.firsts) (void)verifier_.accuse_in_stages(liar, tasklet.id, name_of_visit(tasklet));
  return wrong.firsts.contains(device) ? Verdict::wrong : Verdict::good;
}

PairVerdict Executor::compare_in_stages(const sched::Tasklet& witness, const std::optional<SipTag>& answer) {
  const bool by_server = witness.piece.device == kServerDevice;
  const Verifier::Charge charge(verifier_);
  const StageCheck::Wrong wrong = stage_check_.compare(witness, answer);
  verifier_.compared(wrong.made_again && !by_server, wrong.firsts.empty());
  if (wrong.made_again) verifier_.looked_at(wrong.answers, wrong.firsts);
  std::vector<DeviceId> liars(wrong.firsts.begin(), wrong.firsts.end());
  const std::string name = name_of_visit(witness);
  for (const DeviceId liar : liars) (void)verifier_.accuse_in_stages(liar, witness.id, name);
  if (wrong.witness) {
    liars.push_back(witness.piece.device);
    (void)verifier_.accuse_in_stages(liars.back(), witness.id, name, true);
  }
  PairVerdict verdict;
  if (!liars.empty()) verdict.wrong = liars[0];
  if (liars.size() > 1) verdict.also = liars[1];
  return verdict;
}

bool Executor::find_wrong() {
  const Verifier::Charge charge(verifier_);
  const std::set<DeviceId> liars = stage_check_.trace();
  for (const DeviceId liar : liars) (void)verifier_.accuse_in_stages(liar, {}, "a step in stages");
  spoiled_ = spoiled_ || !liars.empty();
  return !liars.empty();
}

// In a step of which a part is in tiles, that may have been a block that nobody looked at.
void Executor::find_cause() {
  if (!find_wrong() && !becomes_suspect()) throw CheckFailure("values are not finite: the training has diverged");
  stops_ = true;
}

PairVerdict Executor::judge_refusal(const sched::Tasklet& tasklet) {
  PairVerdict verdict;
  if (spoiled_ || suspect_) return verdict;
  if (!stage_check_.cannot_be_computed(tasklet)) {
    verdict.wrong = tasklet.piece.device;
    (void)verifier_.accuse_in_stages(tasklet.piece.device, tasklet.id, name_of_visit(tasklet));
    return verdict;
  }
  const std::size_t before = verifier_.report().wrong.size();
  find_cause();
  const std::vector<Finding>& wrong = verifier_.report().wrong;
  if (wrong.size() > before) verdict.wrong = wrong[before].device;
  if (wrong.size() > before + 1) verdict.also = wrong[before + 1].device;
  return verdict;
}

template <class Work>
void Executor::do_unless_suspect(const Work& work) {
  if (suspect_ || spoiled_) return;
  try {
    work();
  } catch (const CheckFailure&) {
    if (stages_.active()) return find_cause();
    if (!becomes_suspect()) throw;
    stops_ = true;
  }
}

bool Executor::becomes_suspect() {
  const bool can_be_undone = device_operations_ > 0 || !kernels_.updating();
  const bool has_blocks = !stages_.active() || (stages_.has_tiles() && verifier_.samples());
  suspect_ =
      suspect_ || (can_be_undone && has_blocks && !verifier_.looks_at_every_block() && !verifier_.unverified().empty());
  return suspect_;
}

bool Executor::can_compute(const sched::Tasklet& tasklet) {
  bool can = false;
  do_unless_suspect([&] {
    const Verifier::Charge charge(verifier_);
    can = computer_.can_compute(tasklet);
    if (!can) throw CheckFailure("values are not finite: the training has diverged");
  });
  return can;
}

void Executor::run(const Operation& kernel) {
  const bool in_stages = stages_.active() && !stages_.runs_in_tiles(kernel.id);
  do_unless_suspect([&] { in_stages ? stages_.run(kernel) : kernels_.run(kernel); });
  if (kernel.kind != model::OpKind::global_norm || suspect_ || spoiled_ || std::isfinite(grad_norm())) return;
  // If nobody is to blame, the trainer says that training has diverged.
  if ((stages_.active() && find_wrong()) || becomes_suspect()) stops_ = true;
}

void Executor::compute(const sched::Tasklet& tasklet) {
  if (!tasklet.is_run()) return do_unless_suspect([&] { computer_.compute(tasklet, scatter_); });
  const Profile::Scope scope(work_.profile(), Phase::kernel, tasklet.op);
  do_unless_suspect([&] { server_sums_.carry_out(tasklet); });
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
  do_unless_suspect([&] { scatter_.finish(work_.operation(id)); });
}

void Executor::retire(OpId id) {
  const Profile::Scope scope(work_.profile(), Phase::place, id);
  const Operation& op = work_.operation(id);
  verifier_.retire(id);
  work_.retire(op);
  // Nobody can be found out after the last of them; who was found out with it still has the step undone.
  if (model::runs_on_devices(op.kind) && --device_operations_ == 0 && verifier_.spoiled().empty() && !suspect_)
    undo_.close();
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
