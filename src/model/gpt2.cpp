// GPT-2: learned positions, LayerNorm before each branch, fused q|k|v, tanh GELU, biases everywhere, tied head.
//
// Weights are Conv1D's [in, out]. Source: Radford et al. 2019; names of Hugging Face's GPT2LMHeadModel.
#include <fmt/format.h>

#include "builder.hpp"
#include "parameter_list.hpp"

namespace cleave::model {

namespace {

void declare(ParameterList& list, const ModelConfig& c) {
  using enum ParameterList::Bias;
  using enum ParameterList::Use;
  list.embedding("transformer.wte", c.vocab_size, c.d_model);
  list.embedding("transformer.wpe", c.max_pos, c.d_model);
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    const std::string h = fmt::format("transformer.h.{}.", i);
    list.norm(h + "ln_1", c.d_model, zero);
    list.linear(h + "attn.c_attn", c.d_model, 3 * c.d_model, zero);
    list.linear(h + "attn.c_proj", c.d_model, c.d_model, zero, residual);
    list.norm(h + "ln_2", c.d_model, zero);
    list.linear(h + "mlp.c_fc", c.d_model, c.d_ff, zero);
    list.linear(h + "mlp.c_proj", c.d_ff, c.d_model, zero, residual);
  }
  list.norm("transformer.ln_f", c.d_model, zero);
  if (!c.tie_embeddings) list.embedding("lm_head", c.vocab_size, c.d_model);
}

Value block(GraphBuilder& b, Value x) {
  const auto [q, k, v] = b.split3(b.linear(b.layer_norm(x, "ln_1"), "attn.c_attn"));
  const Value a = b.linear(b.attention(q, k, v, "attn"), "attn.c_proj");
  x = b.add(x, a, "attn.residual");

  const Value h = b.gelu(b.linear(b.layer_norm(x, "ln_2"), "mlp.c_fc"), "mlp.gelu");
  return b.add(x, b.linear(h, "mlp.c_proj"), "mlp.residual");
}

void forward(GraphBuilder& b, const ModelConfig& c) {
  Value x = b.embed("wte", "wpe");
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    b.enter_layer("h", i);
    x = block(b, x);
  }
  b.leave_layers();
  b.loss(b.layer_norm(x, "ln_f"), c.tie_embeddings ? "wte" : "lm_head");
}

}  // namespace

FamilyDefinition gpt2() {
  FamilyDefinition family;
  family.traits.activation = "gelu_new";
  family.layout = Layout::in_out;
  family.prefix = "transformer.";
  family.default_d_ff = four_times;
  family.declare = declare;
  family.forward = forward;
  return family;
}

}  // namespace cleave::model
