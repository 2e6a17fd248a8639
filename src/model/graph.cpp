// Names of the operations and the graph's own questions; cost.cpp has those about FLOP and bytes.
#include "cleave/model/graph.hpp"

#include <bit>

namespace cleave::model {

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::gemm: return "gemm";
    case OpKind::attention_forward: return "attention_forward";
    case OpKind::attention_backward: return "attention_backward";
    case OpKind::embed: return "embed";
    case OpKind::embed_backward: return "embed_backward";
    case OpKind::layer_norm: return "layer_norm";
    case OpKind::layer_norm_backward: return "layer_norm_backward";
    case OpKind::rms_norm: return "rms_norm";
    case OpKind::rms_norm_backward: return "rms_norm_backward";
    case OpKind::add_bias: return "add_bias";
    case OpKind::bias_gradient: return "bias_gradient";
    case OpKind::gelu: return "gelu";
    case OpKind::gelu_backward: return "gelu_backward";
    case OpKind::relu: return "relu";
    case OpKind::relu_backward: return "relu_backward";
    case OpKind::swiglu: return "swiglu";
    case OpKind::swiglu_backward: return "swiglu_backward";
    case OpKind::rope: return "rope";
    case OpKind::rope_backward: return "rope_backward";
    case OpKind::add: return "add";
    case OpKind::accumulate: return "accumulate";
    case OpKind::zero: return "zero";
    case OpKind::cross_entropy: return "cross_entropy";
    case OpKind::cross_entropy_loss: return "cross_entropy_loss";
    case OpKind::square_norm: return "square_norm";
    case OpKind::global_norm: return "global_norm";
    case OpKind::adamw: return "adamw";
  }
  return "?";
}

int loss_bits(DType wire, std::int64_t tokens) {
  return wire == DType::f16 ? static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens))) - 1 : 0;
}

std::vector<TensorId> StepGraph::parameters() const {
  std::vector<TensorId> ids;
  for (const TensorSpec& spec : tensors) {
    if (spec.role == TensorRole::parameter) ids.push_back(spec.id);
  }
  return ids;
}

std::int64_t StepGraph::parameter_count() const {
  std::int64_t count = 0;
  for (const TensorSpec& spec : tensors) {
    if (spec.role == TensorRole::parameter) count += spec.elements();
  }
  return count;
}

}  // namespace cleave::model
