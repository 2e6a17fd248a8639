// The derived backward pass is the derivative of the forward pass, in every family and form, in any legal order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "graph_interpreter.hpp"
#include "tiny_models.hpp"

namespace cleave::model {
namespace {

constexpr std::int64_t kBatch = 2;

/// Parameters and a batch that depend on tensor names only, so that graphs of other options get the same.
void fill(GraphInterpreter& interpreter, const StepGraph& graph) {
  for (const TensorId id : graph.parameters()) {
    std::mt19937 random(static_cast<unsigned>(id.value) + 7);
    std::normal_distribution<double> normal(graph.tensor(id).vector ? 0.5 : 0.0, 0.4);
    for (double& x : interpreter.memory(id)) x = normal(random);
  }
  std::mt19937 random(99);
  for (const TensorId id : {graph.tokens, graph.targets}) {
    for (double& x : interpreter.memory(id)) x = static_cast<double>(random() % 11);
  }
}

double mean_loss(GraphInterpreter& interpreter, const StepGraph& graph) {
  return interpreter.memory(graph.loss)[0] / static_cast<double>(graph.batch * graph.seq);
}

StepOptions options_of(StepKind kind, std::int64_t loss_rows = 0, std::vector<std::string> freeze = {}) {
  StepOptions options;
  options.kind = kind;
  options.batch = kBatch;
  options.loss_rows = loss_rows;
  options.freeze = std::move(freeze);
  return options;
}

/// Compares entries of every trained parameter's gradient with central differences of the evaluation graph's loss.
void expect_derivatives(const ModelConfig& config, const StepOptions& options, const std::string& what) {
  const StepGraph train = build_step(config, options), evaluate = build_step(config, options_of(StepKind::evaluate));
  GraphInterpreter backward(train), forward(evaluate);
  fill(backward, train);
  fill(forward, evaluate);
  backward.run(1);
  forward.run(2);
  EXPECT_NEAR(mean_loss(backward, train), mean_loss(forward, evaluate), 1e-13) << what;

  double square_norm = 0;
  std::mt19937 random(3);
  for (const TensorId id : train.parameters()) {
    const std::vector<double> gradient = backward.gradient(id);
    for (const double g : gradient) square_norm += g * g;
    std::vector<double>& parameter = forward.memory(id);
    for (int trial = 0; trial < 3 && !gradient.empty(); ++trial) {
      const std::size_t entry = random() % parameter.size();
      const double kept = parameter[entry], step = 1e-5;
      parameter[entry] = kept + step;
      forward.run(4);
      const double above = mean_loss(forward, evaluate);
      parameter[entry] = kept - step;
      forward.run(5);
      const double below = mean_loss(forward, evaluate);
      parameter[entry] = kept;
      // Differences lose about 1e-16 / step to rounding and step^2 to curvature.
      EXPECT_NEAR(gradient[entry], (above - below) / (2 * step), 2e-8) << what << ", " << train.tensor(id).name;
    }
  }
  if (train.grad_norm.valid()) {
    EXPECT_NEAR(backward.memory(train.grad_norm)[0], std::sqrt(square_norm), 1e-12) << what;
  }
}

TEST(Gradients, AreDerivativesInEveryFamily) {
  for (const NamedConfig& model : tiny_models()) {
    expect_derivatives(model.config, options_of(StepKind::train), model.name);
  }
}

TEST(Gradients, AreDerivativesWithLossByChunks) {
  for (const NamedConfig& model : tiny_models()) {
    if (model.config.n_layer > 1) continue;
    for (const std::int64_t rows : {1, 3, 9}) {
      expect_derivatives(model.config, options_of(StepKind::train, rows), model.name);
    }
  }
}

TEST(Gradients, AreDerivativesWithOneKeyHead) {
  ModelConfig config = tiny_llama();
  config.n_kv_head = 1;
  expect_derivatives(config, options_of(StepKind::train), "multi-query");
}

TEST(Gradients, OfTrainedParametersAreTheSameWhateverIsFrozen) {
  for (const NamedConfig& model : tiny_models()) {
    const StepGraph whole = build_step(model.config, options_of(StepKind::train));
    GraphInterpreter reference(whole);
    fill(reference, whole);
    reference.run(1);
    for (const char* pattern : {"*bias", "*weight", "*embed_tokens*", "*wte*", "*.0.*", "*k_proj*", "*q_proj*",
                                "*attn*", "*norm*", "*ln_*", "lm_head*", "*proj*", "*fc*", "*"}) {
      const StepGraph part = build_step(model.config, options_of(StepKind::train, 0, {pattern}));
      GraphInterpreter interpreter(part);
      fill(interpreter, part);
      interpreter.run(2);
      for (const TensorId id : part.parameters()) {
        const std::vector<double> gradient = interpreter.gradient(id);
        if (gradient.empty()) continue;
        EXPECT_EQ(gradient, reference.gradient(id))
            << model.name << ", frozen " << pattern << ": " << part.tensor(id).name;
      }
    }
  }
}

TEST(Gradients, AreTheSameBitsInEveryLegalOrder) {
  for (const NamedConfig& model : tiny_models()) {
    const StepGraph graph = build_step(model.config, options_of(StepKind::train, 3));
    GraphInterpreter interpreter(graph);
    fill(interpreter, graph);
    interpreter.run(0);
    std::vector<std::vector<double>> first;
    for (const TensorId id : graph.parameters()) first.push_back(interpreter.gradient(id));
    const double loss = interpreter.memory(graph.loss)[0];
    for (unsigned seed = 1; seed < 12; ++seed) {
      interpreter.run(seed);
      EXPECT_EQ(interpreter.memory(graph.loss)[0], loss) << model.name;
      std::size_t i = 0;
      for (const TensorId id : graph.parameters()) EXPECT_EQ(interpreter.gradient(id), first[i++]) << model.name;
    }
  }
}

}  // namespace
}  // namespace cleave::model
