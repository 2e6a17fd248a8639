// GPT-2: learned positions, LayerNorm before each branch, fused q|k|v, tanh GELU, biases everywhere, tied head.
//
// Weights are Conv1D's [in, out]. Source: Radford et al. 2019; names of Hugging Face's GPT2LMHeadModel.
#include <fmt/format.h>

#include <algorithm>

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

void visit_hub(HubConfig& file, ModelConfig& c) {
  file.integer("max_pos", {"n_positions", "max_position_embeddings", "n_ctx"}, c.max_pos, {});
  file.repeat("n_ctx", c.max_pos);
  file.integer("d_model", {"n_embd", "hidden_size"}, c.d_model, {});
  file.integer("n_layer", {"n_layer", "num_hidden_layers"}, c.n_layer, {});
  file.integer("n_head", {"n_head", "num_attention_heads"}, c.n_head, {});
  c.n_kv_head = c.n_head;
  file.integer("d_ff", {"n_inner"}, c.d_ff, four_times(std::min<std::int64_t>(c.d_model, std::int64_t{1} << 40)));
  file.word({"activation_function"}, {"gelu_new", "gelu_pytorch_tanh"});
  file.number("norm_eps", "layer_norm_epsilon", c.norm_eps, 1e-5);
  file.fixed({"scale_attn_weights", true});
  file.fixed({"scale_attn_by_inverse_layer_idx", false});
}

}  // namespace

FamilyDefinition gpt2() {
  FamilyDefinition family;
  family.traits.activation = "gelu_new";
  family.layout = Layout::in_out;
  family.prefix = "transformer.";
  family.default_d_ff = four_times;
  family.presets = {
      // openai/gpt2, hparams.json.
      {"gpt2-124m", 50257, 12, 12, 12, 768, 3072, 1024},
      {"gpt2-355m", 50257, 24, 16, 16, 1024, 4096, 1024},
      {"gpt2-774m", 50257, 36, 20, 20, 1280, 5120, 1024},
      {"gpt2-1558m", 50257, 48, 25, 25, 1600, 6400, 1024},
  };
  family.hub.class_name = "GPT2LMHeadModel";
  family.hub.buffers = {".attn.bias", ".attn.masked_bias"};
  family.hub.visit = visit_hub;
  family.declare = declare;
  family.forward = forward;
  return family;
}

}  // namespace cleave::model
