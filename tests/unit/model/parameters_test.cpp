// Every family's parameters have the Hugging Face names, order and shapes, and the initial values of the reference
// runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tiny_models.hpp"

namespace cleave::model {
namespace {

using ::testing::ElementsAreArray;

/// "name RxC", or "name C" for a vector.
std::vector<std::string> describe(const std::vector<TensorSpec>& specs) {
  std::vector<std::string> lines;
  for (const TensorSpec& spec : specs) {
    const std::string rows = spec.vector ? "" : std::to_string(spec.rows) + "x";
    lines.push_back(spec.name + " " + rows + std::to_string(spec.cols));
  }
  return lines;
}

TEST(Parameters, OfGpt2) {
  EXPECT_THAT(describe(parameters_of(tiny_gpt2())), ElementsAreArray({
                                                        "transformer.wte.weight 11x8",
                                                        "transformer.wpe.weight 8x8",
                                                        "transformer.h.0.ln_1.weight 8",
                                                        "transformer.h.0.ln_1.bias 8",
                                                        "transformer.h.0.attn.c_attn.weight 8x24",
                                                        "transformer.h.0.attn.c_attn.bias 24",
                                                        "transformer.h.0.attn.c_proj.weight 8x8",
                                                        "transformer.h.0.attn.c_proj.bias 8",
                                                        "transformer.h.0.ln_2.weight 8",
                                                        "transformer.h.0.ln_2.bias 8",
                                                        "transformer.h.0.mlp.c_fc.weight 8x32",
                                                        "transformer.h.0.mlp.c_fc.bias 32",
                                                        "transformer.h.0.mlp.c_proj.weight 32x8",
                                                        "transformer.h.0.mlp.c_proj.bias 8",
                                                        "transformer.ln_f.weight 8",
                                                        "transformer.ln_f.bias 8",
                                                    }));
}

TEST(Parameters, OfOpt) {
  EXPECT_THAT(describe(parameters_of(tiny_opt())), ElementsAreArray({
                                                       "model.decoder.embed_tokens.weight 11x8",
                                                       "model.decoder.embed_positions.weight 10x8",
                                                       "model.decoder.final_layer_norm.weight 8",
                                                       "model.decoder.final_layer_norm.bias 8",
                                                       "model.decoder.layers.0.self_attn.k_proj.weight 8x8",
                                                       "model.decoder.layers.0.self_attn.k_proj.bias 8",
                                                       "model.decoder.layers.0.self_attn.v_proj.weight 8x8",
                                                       "model.decoder.layers.0.self_attn.v_proj.bias 8",
                                                       "model.decoder.layers.0.self_attn.q_proj.weight 8x8",
                                                       "model.decoder.layers.0.self_attn.q_proj.bias 8",
                                                       "model.decoder.layers.0.self_attn.out_proj.weight 8x8",
                                                       "model.decoder.layers.0.self_attn.out_proj.bias 8",
                                                       "model.decoder.layers.0.self_attn_layer_norm.weight 8",
                                                       "model.decoder.layers.0.self_attn_layer_norm.bias 8",
                                                       "model.decoder.layers.0.fc1.weight 32x8",
                                                       "model.decoder.layers.0.fc1.bias 32",
                                                       "model.decoder.layers.0.fc2.weight 8x32",
                                                       "model.decoder.layers.0.fc2.bias 8",
                                                       "model.decoder.layers.0.final_layer_norm.weight 8",
                                                       "model.decoder.layers.0.final_layer_norm.bias 8",
                                                   }));
}

TEST(Parameters, OfLlamaWithGroupedQueries) {
  EXPECT_THAT(describe(parameters_of(tiny_llama())), ElementsAreArray({
                                                         "model.embed_tokens.weight 11x16",
                                                         "model.layers.0.self_attn.q_proj.weight 16x16",
                                                         "model.layers.0.self_attn.k_proj.weight 8x16",
                                                         "model.layers.0.self_attn.v_proj.weight 8x16",
                                                         "model.layers.0.self_attn.o_proj.weight 16x16",
                                                         "model.layers.0.mlp.gate_proj.weight 20x16",
                                                         "model.layers.0.mlp.up_proj.weight 20x16",
                                                         "model.layers.0.mlp.down_proj.weight 16x20",
                                                         "model.layers.0.input_layernorm.weight 16",
                                                         "model.layers.0.post_attention_layernorm.weight 16",
                                                         "model.norm.weight 16",
                                                         "lm_head.weight 11x16",
                                                     }));
}

TEST(Parameters, ATiedModelHasNoHeadAndAnUntiedOneHas) {
  for (const NamedConfig& model : tiny_models()) {
    const std::vector<TensorSpec> specs = parameters_of(model.config);
    EXPECT_EQ(specs.back().name == "lm_head.weight", !model.config.tie_embeddings) << model.name;
  }
}

TEST(Parameters, OfAGraphAreThoseOfTheConfiguration) {
  for (const NamedConfig& model : tiny_models()) {
    const StepGraph graph = build_step(model.config, {});
    std::vector<TensorSpec> specs;
    for (const TensorId id : graph.parameters()) specs.push_back(graph.tensor(id));
    EXPECT_EQ(describe(specs), describe(parameters_of(model.config))) << model.name;
  }
}

TEST(Parameters, StartAsGpt2Does) {
  ModelConfig config = tiny_gpt2();
  config.n_layer = 8;  // residual projections: 0.02 / sqrt(16)
  for (const ModelConfig& c : {config,
                               [&] {
                                 ModelConfig opt = config;
                                 opt.family = "opt";
                                 return opt;
                               }(),
                               [&] {
                                 ModelConfig llama = config;
                                 llama.family = "llama";
                                 return llama;
                               }()}) {
    for (const TensorSpec& spec : parameters_of(c)) {
      const auto has = [&spec](const char* part) { return spec.name.find(part) != std::string::npos; };
      const bool residual = has("c_proj.weight") || has("out_proj.weight") || has("fc2.weight") ||
                            has("o_proj.weight") || has("down_proj.weight");
      if (spec.vector) {
        EXPECT_EQ(spec.init_deviation, 0) << spec.name;
        EXPECT_EQ(spec.init_value, has(".bias") ? 0 : 1) << spec.name;
      } else {
        EXPECT_DOUBLE_EQ(spec.init_deviation, residual ? 0.005 : 0.02) << spec.name;
      }
    }
  }
}

}  // namespace
}  // namespace cleave::model
