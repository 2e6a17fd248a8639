// Pieces hold every operation of the graph that belongs to a layer or the head, once, and slices fill every tensor.
#include "cleave/model/pieces.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "tiny_models.hpp"

namespace cleave::model {
namespace {

StepGraph step_of(const ModelConfig& config, std::int64_t batch = 3, std::vector<std::string> freeze = {}) {
  return build_step(config, {.kind = StepKind::train,
                             .batch = batch,
                             .clip = true,
                             .freeze = std::move(freeze),
                             .loss_rows = 4,
                             .row_groups = 1});
}

TEST(Pieces, AreTwoToALayerAndTheHead) {
  for (const NamedConfig& model : tiny_models()) {
    const std::vector<Piece> pieces = pieces_of(step_of(model.config));
    ASSERT_EQ(std::ssize(pieces), 2 * model.config.n_layer + 1) << model.name;
    for (std::int64_t layer = 0; layer < model.config.n_layer; ++layer) {
      const auto at = static_cast<std::size_t>(2 * layer);
      EXPECT_EQ(pieces[at].name(), "h." + std::to_string(layer) + ".attn") << model.name;
      EXPECT_EQ(pieces[at + 1].name(), "h." + std::to_string(layer) + ".mlp") << model.name;
      EXPECT_EQ(pieces[at].units, model.config.n_kv_head * model.config.head_dim()) << model.name;
      EXPECT_EQ(pieces[at + 1].units, model.config.d_ff) << model.name;
    }
    EXPECT_EQ(pieces.back().name(), "head");
    EXPECT_EQ(pieces.back().units, model.config.vocab_size);
    for (const Piece& piece : pieces) EXPECT_EQ(piece.width, model.config.d_model) << model.name << piece.name();
  }
}

TEST(Pieces, AddUpToTheGraphsFlop) {
  for (const NamedConfig& model : tiny_models()) {
    const StepGraph graph = step_of(model.config);
    const auto rows = static_cast<double>(graph.batch * graph.seq);
    double in_graph = 0, in_pieces = 0;
    for (const Operation& op : graph.operations) {
      const bool server = op.kind == OpKind::embed || op.kind == OpKind::embed_backward || op.kind == OpKind::zero;
      if (!server && op.phase != Phase::update) in_graph += flops_of(op).value();
    }
    for (const Piece& piece : pieces_of(graph)) {
      in_pieces += (piece.forward + piece.input_gradient + piece.weight_gradient) * rows;
      in_pieces += static_cast<double>(graph.batch) * piece.attention_flops(0, graph.seq, 7).value();
    }
    EXPECT_NEAR(in_pieces, in_graph, 1e-9 * in_graph) << model.name;
  }
}

TEST(Pieces, ProductsOfAPieceAreSixTimesItsWeights) {
  for (const NamedConfig& model : tiny_models()) {
    for (const Piece& piece : pieces_of(step_of(model.config))) {
      const auto weights = static_cast<double>(piece.weight_elements());
      EXPECT_GE(piece.forward, 2 * weights) << model.name << piece.name();
      EXPECT_GE(piece.input_gradient, 2 * weights) << model.name << piece.name();
      EXPECT_GE(piece.weight_gradient, 2 * weights) << model.name << piece.name();
      // Kernels work on rows, so beside products of this width they are a few per element of the state.
      EXPECT_LE(piece.forward + piece.input_gradient + piece.weight_gradient, 6 * weights + 60 * piece.row_elements)
          << model.name << piece.name();
      const double share = piece.keys_values / (2.0 * static_cast<double>(piece.width));
      EXPECT_EQ(share, static_cast<double>(piece.key_value_columns())) << model.name << piece.name();
    }
  }
}

TEST(Pieces, AttentionOfChunksAddsUp) {
  const std::vector<Piece> pieces = pieces_of(step_of(tiny_llama()));
  const Piece& piece = pieces.front();
  EXPECT_EQ(piece.attention_flops(0, 3, 2).value() + piece.attention_flops(3, 5, 2).value(),
            piece.attention_flops(0, 5, 2).value());
  // Two products of 2 FLOP over 15 pairs of positions in 4 heads of 4.
  EXPECT_EQ(piece.attention_flops(0, 5, 2).value(), 2 * 2 * 15 * 16);
}

// Every place of every parameter of a layer is in one tensor of one piece, but for norms.
TEST(Pieces, TensorsCoverTheParametersOnce) {
  for (const NamedConfig& model : tiny_models()) {
    const StepGraph graph = step_of(model.config);
    std::map<std::int64_t, std::int64_t> covered;
    for (const Piece& piece : pieces_of(graph)) {
      for (const SlicedTensor& tensor : piece.tensors) {
        covered[tensor.tensor.value] += tensor.elements();
        EXPECT_LE(tensor.begin + tensor.extent,
                  tensor.cut_rows ? graph.tensor(tensor.tensor).rows : graph.tensor(tensor.tensor).cols);
        EXPECT_TRUE(tensor.trained);
      }
      for (const TensorId norm : piece.norms) covered[norm.value] += graph.tensor(norm).elements();
    }
    for (const TensorSpec& spec : graph.tensors) {
      if (spec.role != TensorRole::parameter) continue;
      const bool looked_up =
          spec.name.find("wpe") != std::string::npos || spec.name.find("embed_positions") != std::string::npos ||
          (!model.config.tie_embeddings &&
           (spec.name.find("wte") != std::string::npos || spec.name.find("embed_tokens") != std::string::npos));
      EXPECT_EQ(covered[spec.id.value], looked_up ? 0 : spec.elements()) << model.name << ' ' << spec.name;
    }
  }
}

TEST(Pieces, BelowTheLowestTrainedTensorNothingGoesBackward) {
  ModelConfig config = tiny_opt();
  config.n_layer = 3;
  const std::vector<Piece> pieces = pieces_of(step_of(config, 2, {"*embed*", "*layers.0.*", "*layers.1.self_attn.*"}));
  ASSERT_EQ(pieces.size(), 7U);
  EXPECT_FALSE(pieces[0].backward);
  EXPECT_FALSE(pieces[1].backward);
  for (std::size_t i = 4; i < pieces.size(); ++i) EXPECT_TRUE(pieces[i].backward);
  for (const SlicedTensor& tensor : pieces[0].tensors) EXPECT_FALSE(tensor.trained);
  for (const SlicedTensor& tensor : pieces[5].tensors) EXPECT_TRUE(tensor.trained);
}

Operation& named(StepGraph& graph, std::string_view name) {
  return *std::ranges::find(graph.operations, name, &Operation::name);
}

// Devices that hold a piece know nothing but the residual stream below it, so a family whose layers have no such halves
// has no pieces, and runs in tiles.
TEST(Pieces, AreNoneWhereMoreThanTheResidualStreamPasses) {
  const StepGraph sequential = step_of(tiny_gpt2());
  ASSERT_FALSE(pieces_of(sequential).empty());

  StepGraph parallel = sequential;  // both branches read the layer's input, as in GPT-J and GPT-NeoX
  named(parallel, "h.0.ln_2.forward").in[0] = named(parallel, "h.0.ln_1.forward").in[0];
  EXPECT_TRUE(pieces_of(parallel).empty());

  StepGraph skipping = sequential;  // the sum adds to something other than what the half reads
  named(skipping, "h.0.mlp.residual.forward").in[0] = named(skipping, "h.0.ln_1.forward").in[0];
  EXPECT_TRUE(pieces_of(skipping).empty());
}

TEST(Pieces, AreNoneWhereAHalfIsMoreThanOneBranch) {
  const StepGraph graph = step_of(tiny_llama());
  ASSERT_FALSE(pieces_of(graph).empty());

  StepGraph twice = graph;  // a second norm in a half
  named(twice, "layers.0.mlp.swiglu.forward").kind = OpKind::rms_norm;
  EXPECT_TRUE(pieces_of(twice).empty());

  StepGraph without = graph;  // none before the branch
  named(without, "layers.0.input_layernorm.forward").kind = OpKind::gelu;
  EXPECT_TRUE(pieces_of(without).empty());

  StepGraph deep = graph;  // a product of what another product gave
  named(deep, "layers.0.mlp.up_proj.forward").in[0] = named(deep, "layers.0.mlp.gate_proj.forward").out[0];
  EXPECT_TRUE(pieces_of(deep).empty());

  StepGraph beside = graph;  // a last product of something else than what attention gives
  named(beside, "layers.0.self_attn.o_proj.forward").in[0] = named(beside, "layers.0.input_layernorm.forward").out[0];
  EXPECT_TRUE(pieces_of(beside).empty());
}

}  // namespace
}  // namespace cleave::model
