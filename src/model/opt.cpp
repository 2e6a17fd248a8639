// OPT: learned positions from row 2 on, LayerNorm before each branch, ReLU, biases everywhere, tied head.
//
// The 350m model, which normalises after each branch and projects its embeddings, is not this architecture.
// Source: Zhang et al. 2022; names of Hugging Face's OPTForCausalLM.
#include <fmt/format.h>

#include "builder.hpp"
#include "parameter_list.hpp"

namespace cleave::model {

namespace {

constexpr std::int64_t kPositionOffset = 2;  // fairseq kept two rows for padding

void declare(ParameterList& list, const ModelConfig& c) {
  using enum ParameterList::Bias;
  using enum ParameterList::Use;
  list.embedding("model.decoder.embed_tokens", c.vocab_size, c.d_model);
  list.embedding("model.decoder.embed_positions", c.max_pos + kPositionOffset, c.d_model);
  list.norm("model.decoder.final_layer_norm", c.d_model, zero);
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    const std::string layer = fmt::format("model.decoder.layers.{}.", i);
    list.linear(layer + "self_attn.k_proj", c.d_model, c.d_model, zero);
    list.linear(layer + "self_attn.v_proj", c.d_model, c.d_model, zero);
    list.linear(layer + "self_attn.q_proj", c.d_model, c.d_model, zero);
    list.linear(layer + "self_attn.out_proj", c.d_model, c.d_model, zero, residual);
    list.norm(layer + "self_attn_layer_norm", c.d_model, zero);
    list.linear(layer + "fc1", c.d_model, c.d_ff, zero);
    list.linear(layer + "fc2", c.d_ff, c.d_model, zero, residual);
    list.norm(layer + "final_layer_norm", c.d_model, zero);
  }
  if (!c.tie_embeddings) list.embedding("lm_head", c.vocab_size, c.d_model);
}

Value block(GraphBuilder& b, Value x) {
  const Value y = b.layer_norm(x, "self_attn_layer_norm");
  const Value q = b.linear(y, "self_attn.q_proj");
  const Value k = b.linear(y, "self_attn.k_proj");
  const Value v = b.linear(y, "self_attn.v_proj");
  const Value a = b.linear(b.attention(q, k, v, "self_attn"), "self_attn.out_proj");
  x = b.add(x, a, "self_attn.residual");

  const Value h = b.relu(b.linear(b.layer_norm(x, "final_layer_norm"), "fc1"), "relu");
  return b.add(x, b.linear(h, "fc2"), "residual");
}

void forward(GraphBuilder& b, const ModelConfig& c) {
  Value x = b.embed("embed_tokens", "embed_positions", kPositionOffset);
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    b.enter_layer("layers", i);
    x = block(b, x);
  }
  b.leave_layers();
  b.loss(b.layer_norm(x, "final_layer_norm"), c.tie_embeddings ? "embed_tokens" : "lm_head");
}

}  // namespace

FamilyDefinition opt() {
  FamilyDefinition family;
  family.traits.activation = "relu";
  family.traits.pos_offset = kPositionOffset;
  family.prefix = "model.decoder.";
  family.default_d_ff = four_times;
  family.declare = declare;
  family.forward = forward;
  return family;
}

}  // namespace cleave::model
