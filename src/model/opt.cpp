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

void visit_hub(HubConfig& file, ModelConfig& c) {
  file.integer("max_pos", {"max_position_embeddings"}, c.max_pos, {});
  file.integer("d_model", {"hidden_size"}, c.d_model, {});
  file.integer("n_layer", {"num_hidden_layers"}, c.n_layer, {});
  file.integer("n_head", {"num_attention_heads"}, c.n_head, {});
  c.n_kv_head = c.n_head;
  file.integer("d_ff", {"ffn_dim"}, c.d_ff, {});
  file.fixed_size({"word_embed_proj_dim", c.d_model, "embeddings of another width than hidden_size", true});
  file.fixed({"do_layer_norm_before", true, true});
  file.word({"activation_function"}, {"relu"});
  c.norm_eps = 1e-5;  // PyTorch's own; the format has no key for it
  file.fixed({"enable_bias", true});
  file.fixed({"layer_norm_elementwise_affine", true});
  file.fixed({"_remove_final_layer_norm", false});
}

}  // namespace

FamilyDefinition opt() {
  FamilyDefinition family;
  family.traits.activation = "relu";
  family.traits.pos_offset = kPositionOffset;
  family.prefix = "model.decoder.";
  family.default_d_ff = four_times;
  family.presets = {
      // Zhang et al. 2022, table 1, and the config.json of facebook/opt-*. OPT-350m is another architecture.
      {"opt-125m", 50272, 12, 12, 12, 768, 3072, 2048},   {"opt-1.3b", 50272, 24, 32, 32, 2048, 8192, 2048},
      {"opt-2.7b", 50272, 32, 32, 32, 2560, 10240, 2048}, {"opt-6.7b", 50272, 32, 32, 32, 4096, 16384, 2048},
      {"opt-13b", 50272, 40, 40, 40, 5120, 20480, 2048},  {"opt-30b", 50272, 48, 56, 56, 7168, 28672, 2048},
      {"opt-66b", 50272, 64, 72, 72, 9216, 36864, 2048},
  };
  family.hub.class_name = "OPTForCausalLM";
  family.hub.buffers = {"decoder.version"};
  family.hub.visit = visit_hub;
  family.declare = declare;
  family.forward = forward;
  return family;
}

}  // namespace cleave::model
