// FLOP against closed forms, peak memory against sums by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "tiny_models.hpp"

namespace cleave::model {
namespace {

const Operation& find(const StepGraph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.operations, name, &Operation::name);
  if (found == graph.operations.end()) throw std::runtime_error("no operation " + name);
  return *found;
}

TEST(Cost, ProductsOfAStepAreSixTimesWeightsTimesTokens) {
  for (const NamedConfig& model : tiny_models()) {
    StepOptions options;
    options.batch = 3;
    options.loss_rows = 4;
    const StepGraph graph = build_step(model.config, options);
    double weights = 0;  // that multiply activations: all matrices but tables that are only looked up
    for (const TensorSpec& spec : parameters_of(model.config)) {
      const bool looked_up =
          spec.name.find("wpe") != std::string::npos || spec.name.find("embed_positions") != std::string::npos ||
          (!model.config.tie_embeddings &&
           (spec.name.find("wte") != std::string::npos || spec.name.find("embed_tokens") != std::string::npos));
      if (!spec.vector && !looked_up) weights += static_cast<double>(spec.elements());
    }
    double products = 0, attention = 0;
    for (const Operation& op : graph.operations) {
      if (op.kind == OpKind::gemm) products += flops_of(op).value();
      if (op.kind == OpKind::attention_forward || op.kind == OpKind::attention_backward) {
        attention += flops_of(op).value();
      }
    }
    const double tokens = static_cast<double>(options.batch * model.config.seq_len);
    EXPECT_EQ(products, 6 * weights * tokens) << model.name;
    // Two products forward, five backward, over seq (seq + 1) / 2 = 15 pairs of positions, in every query head.
    const double d = static_cast<double>(model.config.d_model), layers = static_cast<double>(model.config.n_layer);
    EXPECT_EQ(attention, layers * 3 * d * 15 * 2 * 7) << model.name;
    EXPECT_EQ(device_flops(graph).value(), products + attention) << model.name;
  }
}

TEST(Cost, OfServerKernelsByHand) {
  StepOptions options;
  options.batch = 2;  // 10 rows
  const StepGraph graph = build_step(tiny_gpt2(), options);
  EXPECT_EQ(flops_of(find(graph, "h.0.attn.c_attn.bias")).value(), 10 * 24);
  EXPECT_EQ(traffic_of(find(graph, "h.0.attn.c_attn.bias")).value(), 4 * (24 + 2 * 10 * 24));
  EXPECT_EQ(traffic_of(find(graph, "h.0.attn.residual.forward")).value(), 4 * 3 * 80);
  EXPECT_EQ(traffic_of(find(graph, "h.0.mlp.gelu.forward")).value(), 4 * 2 * 320);
  EXPECT_EQ(traffic_of(find(graph, "embed.forward")).value(), 4 * (10 + 3 * 80));
  EXPECT_EQ(traffic_of(find(graph, "embed.backward")).value(), 4 * (10 + 80 + 2 * 2 * 80));
  // AdamW: gradient and norm read; parameter and two moments read and written.
  EXPECT_EQ(traffic_of(find(graph, "wpe.weight.adamw")).value(), 4 * (7 * 64 + 1));
}

// Two rows of width 4, one layer: X = 32 bytes, q|k|v 96, feed-forward 64, statistics 8 each, targets 8 to the end.
ModelConfig two_rows(std::int64_t vocab_size) {
  ModelConfig c = tiny_gpt2();
  c.vocab_size = vocab_size;
  c.n_head = c.n_kv_head = 1;
  c.d_model = 4;
  c.d_ff = 8;
  c.seq_len = 2;
  return c;
}

TEST(Peak, OfAnEvaluationIsItsWidestOperation) {
  StepOptions options;
  options.kind = StepKind::evaluate;
  const StepGraph graph = build_step(two_rows(3), options);
  // c_attn: residual 32, its norm 32, q|k|v 96, targets 8. (Attention and gelu take 168 too.)
  EXPECT_EQ(peak_activation_bytes(graph), Bytes(168));
}

TEST(Peak, OfATrainedNormKeepsWhatItsBackwardNeeds) {
  StepOptions options;
  options.freeze = {"transformer.w*", "transformer.h.*"};
  const StepGraph graph = build_step(two_rows(30), options);
  // The head's product: last residual 32, mean and rstd 16, ln_f 32, logits 240, targets 8. Its input gradient takes
  // as much: ln_f and the targets are gone, the gradient of ln_f and the loss have come.
  EXPECT_EQ(peak_activation_bytes(graph), Bytes(328));
}

TEST(Peak, FallsWhenGradientsNeedNotWaitForTheNorm) {
  ModelConfig config = tiny_gpt2();
  config.n_layer = 12;
  config.seq_len = 1;  // so that gradients, not activations, are what memory holds
  StepOptions options;
  const Bytes clipped = peak_activation_bytes(build_step(config, options));
  options.clip = false;
  const Bytes unclipped = peak_activation_bytes(build_step(config, options));
  const std::int64_t gradients = 4 * build_step(config, options).parameter_count();
  EXPECT_GE(clipped.value(), gradients);
  EXPECT_LT(unclipped.value(), gradients / 2);
}

TEST(Peak, FallsWithSmallerLossChunks) {
  ModelConfig config = tiny_gpt2();
  config.vocab_size = 4000;
  StepOptions options;
  options.batch = 8;  // 40 rows
  const std::int64_t whole = peak_activation_bytes(build_step(config, options)).value();
  options.loss_rows = 5;
  const std::int64_t chunked = peak_activation_bytes(build_step(config, options)).value();
  // Two buffers of 5 rows in place of 40, and the gradient of the head's weight beside them.
  EXPECT_LE(chunked, whole - 4 * 4000 * 30 + 4 * config.vocab_size * config.d_model);
}

}  // namespace
}  // namespace cleave::model
