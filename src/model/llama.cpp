// Llama 2 and 3: rotary positions, RMSNorm before each branch, grouped-query attention, SwiGLU, no biases, own head.
//
// Source: Touvron et al. 2023; names of Hugging Face's LlamaForCausalLM.
#include <fmt/format.h>

#include "builder.hpp"
#include "parameter_list.hpp"

namespace cleave::model {

namespace {

void declare(ParameterList& list, const ModelConfig& c) {
  using enum ParameterList::Bias;
  using enum ParameterList::Use;
  const std::int64_t kv = c.n_kv_head * c.head_dim();
  list.embedding("model.embed_tokens", c.vocab_size, c.d_model);
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    list.linear(layer + "self_attn.q_proj", c.d_model, c.d_model, none);
    list.linear(layer + "self_attn.k_proj", c.d_model, kv, none);
    list.linear(layer + "self_attn.v_proj", c.d_model, kv, none);
    list.linear(layer + "self_attn.o_proj", c.d_model, c.d_model, none, residual);
    list.linear(layer + "mlp.gate_proj", c.d_model, c.d_ff, none);
    list.linear(layer + "mlp.up_proj", c.d_model, c.d_ff, none);
    list.linear(layer + "mlp.down_proj", c.d_ff, c.d_model, none, residual);
    list.norm(layer + "input_layernorm", c.d_model, none);
    list.norm(layer + "post_attention_layernorm", c.d_model, none);
  }
  list.norm("model.norm", c.d_model, none);
  if (!c.tie_embeddings) list.embedding("lm_head", c.vocab_size, c.d_model);
}

Value block(GraphBuilder& b, Value x) {
  const Value y = b.rms_norm(x, "input_layernorm");
  const Value q = b.rope(b.linear(y, "self_attn.q_proj"), "self_attn.q_rope");
  const Value k = b.rope(b.linear(y, "self_attn.k_proj"), "self_attn.k_rope");
  const Value v = b.linear(y, "self_attn.v_proj");
  const Value a = b.linear(b.attention(q, k, v, "self_attn"), "self_attn.o_proj");
  x = b.add(x, a, "self_attn.residual");

  const Value z = b.rms_norm(x, "post_attention_layernorm");
  const Value gate = b.linear(z, "mlp.gate_proj");
  const Value up = b.linear(z, "mlp.up_proj");
  return b.add(x, b.linear(b.swiglu(gate, up, "mlp.swiglu"), "mlp.down_proj"), "mlp.residual");
}

void forward(GraphBuilder& b, const ModelConfig& c) {
  Value x = b.embed("embed_tokens");
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    b.enter_layer("layers", i);
    x = block(b, x);
  }
  b.leave_layers();
  b.loss(b.rms_norm(x, "norm"), c.tie_embeddings ? "embed_tokens" : "lm_head");
}

/// Two thirds of 4d, so that three matrices cost what two did, rounded up to a multiple of 8.
std::int64_t two_thirds(std::int64_t d_model) { return (8 * d_model + 23) / 24 * 8; }

void visit_hub(HubConfig& file, ModelConfig& c) {
  file.integer("max_pos", {"max_position_embeddings"}, c.max_pos, {});
  file.integer("d_model", {"hidden_size"}, c.d_model, {});
  file.integer("n_layer", {"num_hidden_layers"}, c.n_layer, {});
  file.integer("n_head", {"num_attention_heads"}, c.n_head, {});
  file.integer("n_kv_head", {"num_key_value_heads"}, c.n_kv_head, c.n_head);
  file.integer("d_ff", {"intermediate_size"}, c.d_ff, {});
  file.word({"hidden_act"}, {"silu"});
  file.number("norm_eps", "rms_norm_eps", c.norm_eps, 1e-6);
  file.number("rope_theta", "rope_theta", c.rope_theta, 10000.0);
  // Newer files keep the base of the angles in an object; either may ask for scaled angles, which the family lacks.
  file.rotary("rope_scaling", c.rope_theta);
  file.rotary("rope_parameters", c.rope_theta);
  file.fixed({"attention_bias", false, true});
  file.fixed({"mlp_bias", false});
  if (c.n_head > 0)
    file.fixed_size({"head_dim", c.head_dim(), "heads of another width than hidden_size / num_attention_heads"});
}

}  // namespace

FamilyDefinition llama() {
  FamilyDefinition family;
  family.traits.activation = "silu";
  family.traits.has_positions = false;
  family.traits.grouped_query = true;
  family.traits.default_tied = false;
  family.prefix = "model.";
  family.default_d_ff = two_thirds;
  family.presets = {
      // The config.json of meta-llama/Llama-2-* and Meta-Llama-3-8B.
      {"llama2-7b", 32000, 32, 32, 32, 4096, 11008, 4096},
      {"llama2-13b", 32000, 40, 40, 40, 5120, 13824, 4096},
      {"llama2-70b", 32000, 80, 64, 8, 8192, 28672, 4096},
      {"llama3-8b", 128256, 32, 32, 8, 4096, 14336, 8192, 500000.0},
  };
  family.hub.class_name = "LlamaForCausalLM";
  family.hub.buffers = {".rotary_emb.inv_freq"};
  family.hub.visit = visit_hub;
  family.declare = declare;
  family.forward = forward;
  return family;
}

}  // namespace cleave::model
