// One case per server kernel.
#include "server_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/activations.hpp"
#include "cleave/kernels/cross_entropy.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/embedding.hpp"
#include "cleave/kernels/norms.hpp"
#include "cleave/kernels/optimizer.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "cleave/server/training.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

namespace {

using model::Operation;
using model::OpKind;
using model::TensorView;

// Writes that nobody wants go to scratch, where a kernel computes all of its outputs.
class Outputs {
 public:
  Outputs(TensorStore& store, std::deque<std::vector<float>>& scratch) : store_(store), scratch_(scratch) {}
  kernels::Rows rows(const TensorView& view, std::int64_t rows, std::int64_t cols) {
    if (view.valid()) return store_.rows(view);
    if (used_ == scratch_.size()) scratch_.emplace_back();
    std::vector<float>& memory = scratch_[used_++];
    const auto size = static_cast<std::size_t>(rows * cols);
    if (memory.size() < size) memory.resize(size);
    return {memory.data(), rows, cols};
  }
  float* vector(const TensorView& view, std::int64_t cols) { return rows(view, 1, cols).data; }

 private:
  TensorStore& store_;
  std::deque<std::vector<float>>& scratch_;
  std::size_t used_ = 0;
};

// Sums over tokens count fixed units, in which an infinite or NaN gradient has no room either.
CheckFailure gradient_too_large(const Operation& op) {
  return CheckFailure(
      fmt::format("{}: a gradient is 1024 or larger, or not finite: the training has diverged", op.name));
}

}  // namespace

void ServerKernels::run(const Operation& op) {
  const Profile::Scope scope(work_.profile(), Phase::kernel, op.id);
  TensorStore& store = work_.tensors();
  store.begin(op);
  kernels::Parallel& parallel = work_.parallel();
  const auto in = [&](std::size_t i) { return store.rows(op.in[i]); };
  const auto out = [&](std::size_t i) { return store.rows(op.out[i]); };
  Outputs outputs(store, unwanted_);

  switch (op.kind) {
    case OpKind::embed: {
      const kernels::ConstRows positions = op.in.size() > 2 ? kernels::ConstRows(in(2)) : kernels::ConstRows();
      kernels::embed(parallel, store.integers(op.in[0]), op.attention.seq, in(1), positions, op.integer, out(0));
      break;
    }
    case OpKind::embed_backward: {
      const bool positions = op.out.size() > 1 && op.out[1].valid();
      const kernels::Rows table = op.out[0].valid() ? out(0) : kernels::Rows();
      kernels::embed_backward(parallel, store.integers(op.in[0]), op.attention.seq, in(1), table,
                              positions ? out(1) : kernels::Rows(), op.integer,
                              std::ldexp(1.0F, -work_.graph().loss_bits));
      break;
    }
    case OpKind::layer_norm:
      kernels::layer_norm(parallel, in(0), in(1).data, in(2).data, op.scalar, out(0), out(1).data, out(2).data);
      break;
    case OpKind::layer_norm_backward:
    case OpKind::rms_norm_backward: norm_backward(op); break;
    case OpKind::rms_norm: kernels::rms_norm(parallel, in(0), in(1).data, op.scalar, out(0), out(1).data); break;
    case OpKind::add_bias: kernels::add_bias(parallel, out(0), in(0).data); break;
    case OpKind::bias_gradient: bias_gradient(op); break;
    case OpKind::gelu: kernels::gelu_new(parallel, in(0), out(0)); break;
    case OpKind::gelu_backward: kernels::gelu_new_backward(parallel, in(1), in(0), out(0)); break;
    case OpKind::relu: kernels::relu(parallel, in(0), out(0)); break;
    case OpKind::relu_backward: kernels::relu_backward(parallel, in(1), in(0), out(0)); break;
    case OpKind::swiglu: kernels::swiglu(parallel, in(0), in(1), out(0)); break;
    case OpKind::swiglu_backward:
      kernels::swiglu_backward(parallel, in(1), in(2), in(0), outputs.rows(op.out[0], in(0).rows, in(0).cols),
                               outputs.rows(op.out[1], in(0).rows, in(0).cols));
      break;
    case OpKind::rope:
    case OpKind::rope_backward: {
      if (!rope_table_ || !rope_table_->is_for(op.attention.seq, op.integer, op.scalar))
        rope_table_.emplace(op.attention.seq, op.integer, op.scalar);
      kernels::rope(parallel, *rope_table_,
                    op.kind == OpKind::rope ? kernels::Rotate::forward : kernels::Rotate::backward, out(0));
      break;
    }
    case OpKind::add: kernels::add(parallel, in(0), in(1), out(0)); break;
    case OpKind::accumulate: kernels::accumulate(parallel, in(0), out(0)); break;
    case OpKind::zero: {
      const kernels::Rows rows = out(0);
      for (std::int64_t i = 0; i < rows.rows; ++i) std::fill_n(rows.row(i), rows.cols, 0.0F);
      break;
    }
    case OpKind::cross_entropy:
    case OpKind::cross_entropy_loss: {
      const std::span<const std::int32_t> targets = store.integers(op.in[1]);
      const double sum = op.kind == OpKind::cross_entropy
                             ? kernels::cross_entropy_backward(parallel, in(0), targets, static_cast<float>(op.scalar))
                             : kernels::cross_entropy(parallel, in(0), targets);
      double& total = store.scalar(op.out[0].tensor);
      total = op.accumulate ? total + sum : sum;
      break;
    }
    case OpKind::square_norm: {
      const kernels::Rows rows = in(0);
      store.scalar(op.out[0].tensor) =
          kernels::sum_squares(parallel, {rows.data, static_cast<std::size_t>(rows.rows * rows.cols)});
      break;
    }
    case OpKind::global_norm: {
      double sum = 0;
      for (const TensorView& part : op.in) sum += store.scalar(part.tensor);
      store.scalar(op.out[0].tensor) = std::sqrt(sum);
      break;
    }
    case OpKind::adamw: update(op); break;
    case OpKind::gemm:
    case OpKind::attention_forward:
    case OpKind::attention_backward: CLEAVE_ASSERT(false, "{} is no server kernel", op.name);
  }
  if (op.rounded) round_rows(out(0));
}

void ServerKernels::round_rows(const kernels::Rows& rows) {
  work_.parallel().for_chunks(rows.rows, rows_of_band(rows.cols), [&](std::int64_t begin, std::int64_t end) {
    kernels::round_to(work_.graph().boundary, rows.band(begin, end));
  });
}

// Gradients of biases and gains are summed as devices sum them in stages: in blocks of rows of a sequence; of norms
// also rounded once a sequence (docs/numerics.md, "Sums over tokens"). What is larger than units reach is summed as
// floats.
void ServerKernels::bias_gradient(const Operation& op) {
  const kernels::Rows dy = work_.tensors().rows(op.in[0]);
  const std::span<float> gradient(work_.tensors().rows(op.out[0]).data, static_cast<std::size_t>(dy.cols));
  if (work_.wire() != DType::f32) {
    const kernels::TokenUnit unit = work_.unit();
    const RoundedBlock rounded({dy.data, dy.ld}, dy.rows, dy.cols, work_.wire());
    kernels::TokenSumMatrix sums(1, dy.cols, unit);
    const auto status = sums.add_columns(work_.parallel(), {rounded.view.data, dy.rows, dy.cols}, work_.graph().seq);
    if (status != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("an operand of {} is not finite: the training has diverged", op.name));
    (void)sums.finish(work_.parallel(), sums.whole(), {gradient.data(), dy.cols});
    return kernels::round_gradient(work_.parallel(), unit, {gradient.data(), 1, dy.cols});
  }
  KeptVector<std::int64_t> sums(gradient.size(), 0);
  if (kernels::add_column_sums(work_.parallel(), dy, work_.graph().seq, sums) != kernels::ProductStatus::ok)
    throw gradient_too_large(op);
  kernels::finish_token_sums(sums, gradient);
}

void ServerKernels::norm_backward(const Operation& op) {
  TensorStore& store = work_.tensors();
  const bool layer = op.kind == OpKind::layer_norm_backward;
  const kernels::NormBackward of{.x = store.rows(op.in[1]),
                                 .dy = store.rows(op.in[0]),
                                 .gain = store.rows(op.in[2]).data,
                                 .mean = layer ? store.rows(op.in[3]).data : nullptr,
                                 .rstd = store.rows(op.in[layer ? 4 : 3]).data,
                                 .dx = op.out[0].valid() ? store.rows(op.out[0]) : kernels::Rows()};
  const kernels::TokenBlocks blocks{of.dy.rows, work_.graph().seq};
  KeptVector<float> of_blocks(static_cast<std::size_t>(blocks.count() * of.sums()));
  kernels::norm_backward_by_blocks(work_.parallel(), of, blocks, of_blocks.data());
  if (std::none_of(op.out.begin() + 1, op.out.end(), [](const TensorView& out) { return out.valid(); })) return;
  const auto size = static_cast<std::size_t>(of.sums());
  KeptVector<std::int64_t> total(size, 0), of_sequence(size, 0);
  KeptVector<float> rounded(size);
  bool good = true;
  for (std::int64_t block = 0; block < blocks.count(); ++block) {
    good &= kernels::add_to_token_sums({of_blocks.data() + block * of.sums(), size}, of_sequence,
                                       work_.graph().loss_bits) == kernels::ProductStatus::ok;
    if ((block + 1) % blocks.of_sequence() != 0) continue;
    kernels::finish_token_sums(of_sequence, rounded);
    good &= kernels::add_to_token_sums(rounded, total) == kernels::ProductStatus::ok;
    std::ranges::fill(of_sequence, 0);
  }
  if (!good) throw gradient_too_large(op);
  kernels::finish_token_sums(total, rounded);
  for (std::size_t v = 1; v < op.out.size(); ++v) {
    const float* const from = rounded.data() + static_cast<std::int64_t>(v - 1) * of.dy.cols;
    if (op.out[v].valid()) std::copy_n(from, of.dy.cols, store.rows(op.out[v]).data);
  }
}

void ServerKernels::update(const Operation& op) {
  updating_ = true;
  TensorStore& store = work_.tensors();
  const StepInputs& inputs = work_.inputs();
  const UpdateTerms& terms = inputs.update;
  Parameter& parameter = store.parameter(op.out[0].tensor);
  const kernels::Rows rows = store.rows(op.in[0]);
  const std::span<const float> gradient(rows.data, static_cast<std::size_t>(rows.rows * rows.cols));
  if (inputs.on_gradient) inputs.on_gradient(parameter.name, gradient);
  kernels::AdamW settings{.lr = terms.lr,
                          .beta1 = terms.beta1,
                          .beta2 = terms.beta2,
                          .eps = terms.eps,
                          .weight_decay = parameter.vector ? 0.0 : terms.weight_decay,
                          .clip = 1.0,
                          .step = terms.k};
  if (op.in.size() > 1) settings.clip = clip_factor(terms.grad_clip, store.scalar(op.in[1].tensor));
  CLEAVE_ASSERT(parameter.exp_avg.size() == parameter.value.size(), "moments of {}", parameter.name);
  undo_.note(parameter);
  kernels::adamw_update(work_.parallel(), settings, gradient, parameter.value, parameter.exp_avg, parameter.exp_avg_sq);
}

}  // namespace cleave::server
