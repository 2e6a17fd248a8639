// A step of a small model operation by operation, as tiles have it, and what a step in pieces leaves to the server.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cleave/kernels/embedding.hpp"
#include "cleave/kernels/wire.hpp"
#include "cleave/model/family.hpp"
#include "executor.hpp"

namespace cleave::pieces {

using Floats = std::vector<float>;
using Gradients = std::map<std::string, Floats>;

struct SmallModel {
  std::string family;
  std::int64_t heads, keys, width, hidden, seq;
  bool tied = true;
};

inline constexpr std::int64_t kVocabulary = 90;

inline model::StepGraph graph_of(const SmallModel& m, std::int64_t batch, DType wire = DType::f32,
                                 std::optional<DType> boundary = {}) {
  model::ModelConfig config;
  config.family = m.family;
  config.vocab_size = kVocabulary;
  config.n_layer = 2;
  config.n_head = m.heads;
  config.n_kv_head = m.keys;
  config.d_model = m.width;
  config.d_ff = m.hidden;
  config.seq_len = config.max_pos = m.seq;
  config.tie_embeddings = m.tied;
  return model::build_step(config, {.kind = model::StepKind::train,
                                    .batch = batch,
                                    .clip = false,
                                    .freeze = {},
                                    .loss_rows = batch * m.seq,
                                    .row_groups = 1,
                                    .wire = wire,
                                    .boundary = boundary});
}

struct Tokens {
  std::vector<std::int32_t> tokens, targets;
  explicit Tokens(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>((7 * i * i + 3 * i + 1) % kVocabulary));
      targets.push_back(static_cast<std::int32_t>((5 * i + i / 7 + 1) % kVocabulary));
    }
  }
};

struct Trained {
  Gradients gradients;
  double loss = 0;
};

/// In tiles, by the server alone.
inline Trained by_operations(const model::StepGraph& graph, server::ParameterStore& parameters, DType wire,
                             const Tokens& batch) {
  Trained trained;
  server::Executor executor(parameters, wire, {});
  server::StepInputs inputs{batch.tokens, batch.targets, {.lr = 1e-30, .k = 1}, {}};
  inputs.on_gradient = [&](std::string_view of, std::span<const float> gradient) {
    trained.gradients[std::string(of)].assign(gradient.begin(), gradient.end());
  };
  executor.begin_step(graph, inputs);
  for (const model::Operation& op : graph.operations) {
    if (model::runs_on_devices(op.kind)) {
      sched::Tasklet tasklet;
      tasklet.op = op.id;
      tasklet.piece.device = kServerDevice;
      tasklet.piece.box = {0, op.gemm.m, 0, op.gemm.n, 0, op.gemm.k};
      tasklet.piece.pairs = {0, op.attention.pairs()};
      executor.compute(tasklet);
    } else {
      executor.run(op);
    }
    executor.finish(op.id);
    executor.retire(op.id);
  }
  trained.loss = executor.loss();
  return trained;
}

inline kernels::ConstRows rows_of_parameter(const model::StepGraph& graph, server::ParameterStore& parameters,
                                            TensorId id) {
  const model::TensorSpec& spec = graph.tensor(id);
  return {parameters.at(spec.name).value.data(), spec.rows, spec.cols};
}

inline const model::Operation& operation_of(const model::StepGraph& graph, model::OpKind kind) {
  return *std::ranges::find(graph.operations, kind, &model::Operation::kind);
}

/// What the lowest piece reads.
inline void embed(const model::StepGraph& graph, server::ParameterStore& parameters, const Tokens& batch,
                  kernels::Rows x) {
  const model::Operation& op = operation_of(graph, model::OpKind::embed);
  kernels::Parallel parallel;
  kernels::embed(parallel, batch.tokens, graph.seq, rows_of_parameter(graph, parameters, op.in[1].tensor),
                 op.in.size() > 2 ? rows_of_parameter(graph, parameters, op.in[2].tensor) : kernels::ConstRows(),
                 op.integer, x);
  kernels::round_to(graph.boundary, x);
}

/// Adds to the gradients of the embeddings what comes of the lowest piece's dX.
inline void embed_backward(const model::StepGraph& graph, const Tokens& batch, kernels::ConstRows dx,
                           Gradients& gradients) {
  const model::Operation& op = operation_of(graph, model::OpKind::embed_backward);
  const auto of = [&](std::size_t i) {
    const model::TensorSpec& spec = graph.tensor(graph.tensor(op.out[i].tensor).parameter);
    Floats& gradient = gradients[spec.name];
    gradient.resize(static_cast<std::size_t>(spec.elements()));
    return kernels::Rows(gradient.data(), spec.rows, spec.cols);
  };
  kernels::Parallel parallel;
  kernels::embed_backward(parallel, batch.tokens, graph.seq, dx, of(0), op.out.size() > 1 ? of(1) : kernels::Rows(),
                          op.integer, std::ldexp(1.0F, -graph.loss_bits));
}

inline void expect_same(const Gradients& got, const Gradients& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [of, gradient] : wanted) {
    const auto found = got.find(of);
    ASSERT_NE(found, got.end()) << of;
    ASSERT_EQ(found->second.size(), gradient.size()) << of;
    EXPECT_EQ(std::memcmp(found->second.data(), gradient.data(), gradient.size() * sizeof(float)), 0) << of;
  }
}

}  // namespace cleave::pieces
