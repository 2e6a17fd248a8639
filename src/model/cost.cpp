// FLOP, memory traffic and peak memory, from shapes alone.
#include <algorithm>
#include <vector>

#include "cleave/model/graph.hpp"

namespace cleave::model {

namespace {

constexpr std::int64_t kElement = 4;  // bytes of f32 and of a token

std::int64_t elements(const TensorView& view) { return view.valid() ? view.rows * view.cols : 0; }

/// The view whose elements a server kernel goes through once, and its operations per element (a division, exponential
/// or hyperbolic tangent counts as one; server kernels are bound by memory, so this figure is for reports).
struct Work {
  std::int64_t elements;
  double flops_per_element;
};

Work work_of(const Operation& op) {
  const auto in = [&op](std::size_t i) { return elements(op.in.at(i)); };
  const auto out = [&op](std::size_t i) { return elements(op.out.at(i)); };
  switch (op.kind) {
    case OpKind::embed: return {out(0), op.in.size() > 2 ? 1.0 : 0.0};
    case OpKind::embed_backward: return {in(1), static_cast<double>(op.out.size())};
    case OpKind::layer_norm: return {in(0), 7};            // mean 1, variance 3, (x - mean) * rstd * gain + bias 3
    case OpKind::layer_norm_backward: return {in(0), 14};  // xhat 2, dgain 2, dbias 1, two means 4, dx 5
    case OpKind::rms_norm: return {in(0), 4};
    case OpKind::rms_norm_backward: return {in(0), 10};
    case OpKind::add_bias: return {out(0), 1};
    case OpKind::bias_gradient: return {in(0), 1};
    case OpKind::gelu: return {in(0), 9};
    case OpKind::gelu_backward: return {in(0), 18};
    case OpKind::relu:
    case OpKind::relu_backward: return {in(0), 1};
    case OpKind::swiglu: return {in(0), 5};
    case OpKind::swiglu_backward: return {in(0), 11};
    case OpKind::rope:
    case OpKind::rope_backward: return {out(0), 3};
    case OpKind::add:
    case OpKind::accumulate: return {out(0), 1};
    case OpKind::cross_entropy: return {in(0), 6};  // maximum 1, exponential and sum 3, gradient 2
    case OpKind::cross_entropy_loss: return {in(0), 4};
    case OpKind::square_norm: return {in(0), 2};
    case OpKind::global_norm: return {static_cast<std::int64_t>(op.in.size()), 1};
    case OpKind::adamw: return {out(0), kUpdateFlops};
    case OpKind::zero:
    case OpKind::gemm:
    case OpKind::attention_forward:
    case OpKind::attention_backward: break;
  }
  return {0, 0};
}

Flops attention_flops(const AttentionShape& shape, double products) {
  return head_flops(shape.head_dim, 0, shape.seq, products) * static_cast<double>(shape.batch * shape.n_head);
}

std::int64_t element_size(TensorRole role) { return role == TensorRole::scalar ? 8 : kElement; }

}  // namespace

Flops head_flops(std::int64_t head_dim, std::int64_t t0, std::int64_t t1, double products) {
  const double pairs = 0.5 * static_cast<double>(t1 * (t1 + 1) - t0 * (t0 + 1));
  return Flops(products * 2.0 * static_cast<double>(head_dim) * pairs);
}

Flops flops_of(const Operation& op) {
  switch (op.kind) {
    case OpKind::gemm:
      return Flops(2.0 * static_cast<double>(op.instances) * static_cast<double>(op.gemm.m) *
                   static_cast<double>(op.gemm.n) * static_cast<double>(op.gemm.k));
    case OpKind::attention_forward: return attention_flops(op.attention, kAttentionForward);
    case OpKind::attention_backward: return attention_flops(op.attention, kAttentionBackward);
    default: break;
  }
  const Work work = work_of(op);
  return Flops(static_cast<double>(work.elements) * work.flops_per_element);
}

Bytes traffic_of(const Operation& op) {
  std::int64_t count = 0;
  for (const TensorView& view : op.in) count += elements(view);
  for (const TensorView& view : op.out) count += elements(view);
  switch (op.kind) {
    case OpKind::embed:  // tokens, y, and as many rows of each table
      count = elements(op.in[0]) + static_cast<std::int64_t>(op.in.size()) * elements(op.out[0]);
      break;
    case OpKind::embed_backward: {  // tokens, dy, and as many rows of each gradient read and written
      const auto tables = std::ranges::count_if(op.out, [](const TensorView& view) { return view.valid(); });
      count = elements(op.in[0]) + (1 + 2 * static_cast<std::int64_t>(tables)) * elements(op.in[1]);
      break;
    }
    case OpKind::add_bias:
    case OpKind::accumulate:
    case OpKind::rope:
    case OpKind::rope_backward: count += elements(op.out[0]); break;
    case OpKind::adamw: count += 5 * elements(op.out[0]); break;  // parameter read, both moments read and written
    default: break;
  }
  return Bytes(count * kElement);
}

Flops device_flops(const StepGraph& graph) {
  Flops total;
  for (const Operation& op : graph.operations) {
    if (runs_on_devices(op.kind)) total += flops_of(op);
  }
  return total;
}

Bytes peak_activation_bytes(const StepGraph& graph) {
  const std::size_t steps = graph.operations.size();
  constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  std::vector<std::size_t> first(graph.tensors.size(), kNever), last(graph.tensors.size(), 0);
  for (std::size_t i = 0; i < steps; ++i) {
    for (const auto* views : {&graph.operations[i].in, &graph.operations[i].out}) {
      for (const TensorView& view : *views) {
        if (!view.valid()) continue;
        const auto tensor = static_cast<std::size_t>(view.tensor.value);
        if (first[tensor] == kNever) first[tensor] = i;
        last[tensor] = i;
      }
    }
  }
  for (const TensorId kept : {graph.loss, graph.grad_norm, graph.logits}) {
    if (kept.valid() && steps > 0) last[static_cast<std::size_t>(kept.value)] = steps - 1;
  }
  std::vector<std::int64_t> change(steps + 1, 0);
  for (const TensorSpec& spec : graph.tensors) {
    const auto tensor = static_cast<std::size_t>(spec.id.value);
    if (spec.role == TensorRole::parameter || first[tensor] == kNever) continue;
    const bool given = spec.role == TensorRole::tokens || spec.role == TensorRole::targets;
    const std::int64_t bytes = spec.elements() * element_size(spec.role);
    change[given ? 0 : first[tensor]] += bytes;
    change[last[tensor] + 1] -= bytes;
  }
  std::int64_t alive = 0, peak = 0;
  for (const std::int64_t bytes : change) {
    alive += bytes;
    peak = std::max(peak, alive);
  }
  return Bytes(peak);
}

}  // namespace cleave::model
