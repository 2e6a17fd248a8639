// The whole graph of a one-layer GPT-2, written out by hand, and the structure of the loss and of frozen models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>

#include "tiny_models.hpp"

namespace cleave::model {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

/// "name kind [m,n,k or columns of inputs] < predecessors by name", numbers in place of names.
std::string describe(const Operation& op) {
  std::ostringstream text;
  text << op.id.value << " " << op.name << " " << name_of(op.kind);
  if (op.kind == OpKind::gemm) {
    text << " " << op.gemm.m << "," << op.gemm.n << "," << op.gemm.k << (op.trans_a ? " A'" : "")
         << (op.trans_b ? " B'" : "") << (op.accumulate ? " +=" : "");
  }
  text << " <";
  for (const OpId before : op.after) text << " " << before.value;
  return text.str();
}

TEST(Graph, OfATinyGpt2ByHand) {
  StepOptions options;
  options.batch = 2;
  const StepGraph graph = build_step(tiny_gpt2(), options);
  std::vector<std::string> lines;
  for (const Operation& op : graph.operations) lines.push_back(describe(op));
  // 10 tokens, width 8, feed-forward 32, vocabulary 11.
  EXPECT_THAT(lines, ElementsAreArray({
                         "0 embed.forward embed <",
                         "1 h.0.ln_1.forward layer_norm < 0",
                         "2 h.0.attn.c_attn.forward gemm 10,24,8 < 1",
                         "3 h.0.attn.c_attn.bias add_bias < 2",
                         "4 h.0.attn.forward attention_forward < 3",
                         "5 h.0.attn.c_proj.forward gemm 10,8,8 < 4",
                         "6 h.0.attn.c_proj.bias add_bias < 5",
                         "7 h.0.attn.residual.forward add < 0 6",
                         "8 h.0.ln_2.forward layer_norm < 7",
                         "9 h.0.mlp.c_fc.forward gemm 10,32,8 < 8",
                         "10 h.0.mlp.c_fc.bias add_bias < 9",
                         "11 h.0.mlp.gelu.forward gelu < 10",
                         "12 h.0.mlp.c_proj.forward gemm 10,8,32 < 11",
                         "13 h.0.mlp.c_proj.bias add_bias < 12",
                         "14 h.0.mlp.residual.forward add < 7 13",
                         "15 ln_f.forward layer_norm < 14",
                         "16 lm_head.forward gemm 10,11,8 B' < 15",
                         "17 lm_head.loss cross_entropy < 16",
                         "18 lm_head.input_gradient gemm 10,8,11 < 17",
                         "19 lm_head.weight_gradient gemm 11,8,10 A' < 15 17",
                         "20 ln_f.backward layer_norm_backward < 14 15 18",
                         "21 ln_f.weight.square_norm square_norm < 20",
                         "22 ln_f.bias.square_norm square_norm < 20",
                         "23 h.0.mlp.c_proj.input_gradient gemm 10,32,8 B' < 20",
                         "24 h.0.mlp.c_proj.weight_gradient gemm 32,8,10 A' < 11 20",
                         "25 h.0.mlp.c_proj.weight.square_norm square_norm < 24",
                         "26 h.0.mlp.c_proj.bias_gradient bias_gradient < 20",
                         "27 h.0.mlp.c_proj.bias.square_norm square_norm < 26",
                         "28 h.0.mlp.gelu.backward gelu_backward < 10 23",
                         "29 h.0.mlp.c_fc.input_gradient gemm 10,8,32 B' < 28",
                         "30 h.0.mlp.c_fc.weight_gradient gemm 8,32,10 A' < 8 28",
                         "31 h.0.mlp.c_fc.weight.square_norm square_norm < 30",
                         "32 h.0.mlp.c_fc.bias_gradient bias_gradient < 28",
                         "33 h.0.mlp.c_fc.bias.square_norm square_norm < 32",
                         "34 h.0.ln_2.backward layer_norm_backward < 7 8 29",
                         "35 h.0.ln_2.weight.square_norm square_norm < 34",
                         "36 h.0.ln_2.bias.square_norm square_norm < 34",
                         "37 h.0.attn.residual.gradient_sum0 accumulate < 20 34",
                         "38 h.0.attn.c_proj.input_gradient gemm 10,8,8 B' < 37",
                         "39 h.0.attn.c_proj.weight_gradient gemm 8,8,10 A' < 4 37",
                         "40 h.0.attn.c_proj.weight.square_norm square_norm < 39",
                         "41 h.0.attn.c_proj.bias_gradient bias_gradient < 37",
                         "42 h.0.attn.c_proj.bias.square_norm square_norm < 41",
                         "43 h.0.attn.backward attention_backward < 3 38",
                         "44 h.0.attn.c_attn.input_gradient gemm 10,8,24 B' < 43",
                         "45 h.0.attn.c_attn.weight_gradient gemm 8,24,10 A' < 1 43",
                         "46 h.0.attn.c_attn.weight.square_norm square_norm < 45",
                         "47 h.0.attn.c_attn.bias_gradient bias_gradient < 43",
                         "48 h.0.attn.c_attn.bias.square_norm square_norm < 47",
                         "49 h.0.ln_1.backward layer_norm_backward < 0 1 44",
                         "50 h.0.ln_1.weight.square_norm square_norm < 49",
                         "51 h.0.ln_1.bias.square_norm square_norm < 49",
                         "52 embed.gradient_sum0 accumulate < 37 49",
                         "53 wpe.weight.zero zero <",
                         "54 embed.backward embed_backward < 19 52 53",
                         "55 wte.weight.square_norm square_norm < 54",
                         "56 wpe.weight.square_norm square_norm < 54",
                         "57 global_norm global_norm < 21 22 25 27 31 33 35 36 40 42 46 48 50 51 55 56",
                         "58 wte.weight.adamw adamw < 0 16 18 54 57",
                         "59 wpe.weight.adamw adamw < 0 54 57",
                         "60 h.0.ln_1.weight.adamw adamw < 1 49 57",
                         "61 h.0.ln_1.bias.adamw adamw < 1 49 57",
                         "62 h.0.attn.c_attn.weight.adamw adamw < 2 44 45 57",
                         "63 h.0.attn.c_attn.bias.adamw adamw < 3 47 57",
                         "64 h.0.attn.c_proj.weight.adamw adamw < 5 38 39 57",
                         "65 h.0.attn.c_proj.bias.adamw adamw < 6 41 57",
                         "66 h.0.ln_2.weight.adamw adamw < 8 34 57",
                         "67 h.0.ln_2.bias.adamw adamw < 8 34 57",
                         "68 h.0.mlp.c_fc.weight.adamw adamw < 9 29 30 57",
                         "69 h.0.mlp.c_fc.bias.adamw adamw < 10 32 57",
                         "70 h.0.mlp.c_proj.weight.adamw adamw < 12 23 24 57",
                         "71 h.0.mlp.c_proj.bias.adamw adamw < 13 26 57",
                         "72 ln_f.weight.adamw adamw < 15 20 57",
                         "73 ln_f.bias.adamw adamw < 15 20 57",
                     }));
}

TEST(Graph, QueriesKeysAndValuesOfGpt2AreColumnsOfOneProduct) {
  StepOptions options;
  options.batch = 2;
  const StepGraph graph = build_step(tiny_gpt2(), options);
  const Operation& forward = graph.operations[4];
  const Operation& backward = graph.operations[43];
  for (std::size_t i = 0; i < 3; ++i) {
    const auto col0 = static_cast<std::int64_t>(8 * i);
    EXPECT_EQ(forward.in[i], (TensorView{graph.operations[2].out[0].tensor, 0, 10, col0, 8}));
    EXPECT_EQ(backward.in[i], forward.in[i]);
    EXPECT_EQ(backward.out[i], (TensorView{graph.operations[44].in[0].tensor, 0, 10, col0, 8}));
  }
  EXPECT_EQ(forward.attention, (AttentionShape{2, 5, 2, 2, 4}));
  EXPECT_EQ(backward.attention, forward.attention);
}

TEST(Graph, TypesLeaveOutTheLayerAndTheChunk) {
  ModelConfig config = tiny_opt();
  config.n_layer = 3;
  StepOptions options;
  options.loss_rows = 2;
  const StepGraph graph = build_step(config, options);
  std::map<std::string, int> count;
  for (const Operation& op : graph.operations) ++count[op.type];
  EXPECT_EQ(count["fc1.forward"], 3);
  EXPECT_EQ(count["self_attn.q_proj.weight_gradient"], 3);
  EXPECT_EQ(count["self_attn.backward"], 3);
  EXPECT_EQ(count["lm_head.input_gradient"], 3);  // chunks of 2, 2 and 1 of 5 rows
  EXPECT_EQ(count["fc1.weight.adamw"], 3);
  EXPECT_EQ(count["embed_positions.weight.adamw"], 1);
}

TEST(Graph, KindsCarryTheirConstants) {
  ModelConfig config = tiny_llama();
  config.rope_theta = 500.0;
  config.norm_eps = 1e-4;
  StepOptions options;
  options.batch = 2;
  for (const Operation& op : build_step(config, options).operations) {
    switch (op.kind) {
      case OpKind::rope:
      case OpKind::rope_backward:
        EXPECT_EQ(op.scalar, 500.0);
        EXPECT_EQ(op.integer, 4);
        EXPECT_EQ(op.attention.seq, 5);
        break;
      case OpKind::rms_norm: EXPECT_EQ(op.scalar, 1e-4); break;
      case OpKind::cross_entropy: EXPECT_EQ(op.scalar, 0.1); break;
      case OpKind::attention_forward:
      case OpKind::attention_backward: EXPECT_EQ(op.attention, (AttentionShape{2, 5, 4, 2, 4})); break;
      default: break;
    }
  }
  EXPECT_EQ(build_step(tiny_opt(), options).operations.front().integer, 2);
  EXPECT_EQ(build_step(tiny_gpt2(), options).operations.front().integer, 0);
}

// ---- loss by chunks

std::vector<const Operation*> select(const StepGraph& graph, const std::string& type) {
  std::vector<const Operation*> found;
  for (const Operation& op : graph.operations) {
    if (op.type == type) found.push_back(&op);
  }
  return found;
}

TEST(Loss, ByChunksUsesTwoBuffersInTurnAndSumsTheHeadsGradient) {
  StepOptions options;
  options.batch = 2;
  options.loss_rows = 4;  // of 10 rows: 4, 4, 2
  const StepGraph graph = build_step(tiny_gpt2(), options);
  const auto forward = select(graph, "lm_head.forward"), loss = select(graph, "lm_head.loss"),
             dx = select(graph, "lm_head.input_gradient"), de = select(graph, "lm_head.weight_gradient");
  ASSERT_EQ(forward.size(), 3U);
  const std::int64_t rows[] = {4, 4, 2}, row0[] = {0, 4, 8};
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(forward[c]->gemm, (GemmShape{rows[c], 11, 8}));
    EXPECT_EQ(forward[c]->in[0].row0, row0[c]);
    EXPECT_EQ(loss[c]->in[1], (TensorView{graph.targets, row0[c], rows[c], 0, 1}));
    EXPECT_EQ(loss[c]->out[1], forward[c]->out[0]);
    EXPECT_EQ(loss[c]->accumulate, c > 0);
    EXPECT_EQ(loss[c]->scalar, 0.1);
    EXPECT_EQ(dx[c]->out[0], (TensorView{dx[0]->out[0].tensor, row0[c], rows[c], 0, 8}));
    EXPECT_EQ(de[c]->gemm, (GemmShape{11, 8, rows[c]}));
    EXPECT_EQ(de[c]->accumulate, c > 0);
    EXPECT_EQ(de[c]->out[0], de[0]->out[0]);
  }
  EXPECT_NE(forward[0]->out[0].tensor, forward[1]->out[0].tensor);
  EXPECT_EQ(forward[0]->out[0].tensor, forward[2]->out[0].tensor);
  // The third product overwrites the first one's logits: not before both gradients have read them.
  EXPECT_THAT(forward[2]->after, ::testing::IsSupersetOf({dx[0]->id, de[0]->id}));
}

TEST(Loss, OfALargeVocabularyIsNeverWhole) {
  ModelConfig config = *find_preset("llama3-8b");
  config.n_layer = 1;
  StepOptions options;
  options.batch = 16;  // 131072 tokens: 67 GB of logits
  const StepGraph graph = build_step(config, options);
  const std::int64_t head = 4 * config.vocab_size * config.d_model;
  std::int64_t logits = 0, rows = 0;
  for (const TensorSpec& spec : graph.tensors) {
    if (spec.cols == config.vocab_size) logits += 4 * spec.elements();
  }
  EXPECT_GT(logits, head);
  EXPECT_LE(logits, 4 * head);
  for (const Operation* op : select(graph, "lm_head.weight_gradient")) {
    if (rows + op->gemm.k < options.batch * config.seq_len) { EXPECT_EQ(op->gemm.k % kBlockK, 0); }
    rows += op->gemm.k;
  }
  EXPECT_EQ(rows, options.batch * config.seq_len);
}

TEST(Loss, OfAnEvaluationLeavesTheLogits) {
  StepOptions options;
  options.kind = StepKind::evaluate;
  options.batch = 2;
  options.loss_rows = 10;
  const StepGraph graph = build_step(tiny_llama(), options);
  ASSERT_TRUE(graph.logits.valid());
  EXPECT_EQ(graph.tensor(graph.logits).rows, 10);
  EXPECT_EQ(graph.tensor(graph.logits).cols, 11);
  EXPECT_EQ(graph.operations.back().kind, OpKind::cross_entropy_loss);
  EXPECT_THAT(graph.operations.back().out, ElementsAre(TensorView{graph.loss, 0, 1, 0, 1}));
  EXPECT_FALSE(graph.grad_norm.valid());
  for (const Operation& op : graph.operations) EXPECT_EQ(op.phase, Phase::forward) << op.name;
}

// ---- frozen parameters

StepGraph frozen(const ModelConfig& config, std::vector<std::string> patterns) {
  StepOptions options;
  options.freeze = std::move(patterns);
  return build_step(config, options);
}

TEST(Freeze, LeavesOutGradientNormAndUpdate) {
  for (const NamedConfig& model : tiny_models()) {
    const StepGraph graph = frozen(model.config, {"*bias", "*norm*", "*ln_*"});
    for (const Operation& op : graph.operations) {
      const bool of_frozen = op.name.find("bias.") != std::string::npos ||
                             op.name.find("norm.weight.") != std::string::npos ||
                             op.name.find("bias_gradient") != std::string::npos;
      EXPECT_FALSE(of_frozen) << op.name;
      if (op.kind == OpKind::layer_norm_backward || op.kind == OpKind::rms_norm_backward) {
        EXPECT_TRUE(op.out[0].valid()) << op.name;
        for (std::size_t i = 1; i < op.out.size(); ++i) EXPECT_FALSE(op.out[i].valid()) << op.name;
      }
    }
    for (const TensorSpec& spec : graph.tensors) {
      if (spec.role == TensorRole::gradient) { EXPECT_FALSE(graph.tensor(spec.parameter).vector) << spec.name; }
    }
  }
}

TEST(Freeze, OfEverythingBelowEndsTheBackwardPassThere) {
  ModelConfig config = tiny_gpt2();
  config.n_layer = 3;
  const StepGraph graph = frozen(config, {"transformer.wte*", "transformer.wpe*", "transformer.h.0.*",
                                          "transformer.h.1.*", "transformer.h.2.ln_1.*"});
  for (const Operation& op : graph.operations) {
    if (op.phase == Phase::forward) continue;
    EXPECT_FALSE(op.name.starts_with("h.0.") || op.name.starts_with("h.1.") || op.name.starts_with("embed")) << op.name;
    EXPECT_NE(op.name, "h.2.attn.c_attn.input_gradient");
    EXPECT_NE(op.name, "lm_head.weight_gradient");
  }
  const auto last = std::ranges::find(graph.operations, "h.2.attn.c_attn.weight_gradient", &Operation::name);
  EXPECT_NE(last, graph.operations.end());
}

TEST(Freeze, OfAllButTheHeadNeedsNoInputGradient) {
  const StepGraph graph = frozen(tiny_llama(), {"model.*"});
  for (const Operation& op : graph.operations) EXPECT_NE(op.phase, Phase::input_gradient) << op.name;
  EXPECT_EQ(select(graph, "lm_head.weight_gradient").size(), 1U);
  EXPECT_EQ(select(graph, "lm_head.weight.adamw").size(), 1U);
}

TEST(Freeze, OfEverythingLeavesAnEvaluation) {
  const StepGraph graph = frozen(tiny_opt(), {"*"});
  EXPECT_FALSE(graph.grad_norm.valid());
  for (const Operation& op : graph.operations) EXPECT_EQ(op.phase, Phase::forward) << op.name;
  StepOptions options;
  options.freeze = {"*"};
  const std::vector<Issue> issues = find_faults(tiny_opt(), options);
  ASSERT_EQ(issues.size(), 1U);
  EXPECT_EQ(issues.front().key, "freeze");
}

TEST(Freeze, OfATiedTableStillTrainsPositions) {
  const StepGraph graph = frozen(tiny_gpt2(), {"transformer.wte.weight"});
  const auto embed = std::ranges::find(graph.operations, OpKind::embed_backward, &Operation::kind);
  ASSERT_NE(embed, graph.operations.end());
  EXPECT_FALSE(embed->out[0].valid());
  EXPECT_TRUE(embed->out[1].valid());
  EXPECT_THAT(select(graph, "lm_head.weight_gradient"), IsEmpty());
}

TEST(Freeze, PatternsThatMatchNothingAreFound) {
  EXPECT_THAT(find_unmatched_freeze(tiny_gpt2(), {"*.wte.*", "lm_head*", "transformer.h.?.ln_1.bias", "wte",
                                                  "*wte.weight*", "transformer.h.1.*", "", "t*r.*.a*.c_*.b*s"}),
              ElementsAre("lm_head*", "wte", "transformer.h.1.*", ""));
  StepOptions options;
  options.freeze = {"h.*.mlp.*"};
  ASSERT_EQ(find_faults(tiny_gpt2(), options).size(), 1U);
  EXPECT_EQ(find_faults(tiny_gpt2(), options).front().key, "freeze");
}

TEST(Graph, OfALargeModelIsBuiltLinearly) {
  const ModelConfig config = *find_preset("llama2-70b");
  StepOptions options;
  options.batch = 128;
  const StepGraph graph = build_step(config, options);
  std::size_t edges = 0;
  for (const Operation& op : graph.operations) edges += op.after.size();
  EXPECT_LT(graph.operations.size(), 80U * 60U + 500U);
  EXPECT_LT(edges, 3 * graph.operations.size());
}

}  // namespace
}  // namespace cleave::model
