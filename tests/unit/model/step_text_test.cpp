// A step as text comes back as it was, and nothing else is taken for one.
#include "cleave/model/step_text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

namespace cleave::model {
namespace {

TEST(StepText, EveryPresetComesBack) {
  for (const std::string& name : preset_names()) {
    StepText step{*find_preset(name), 3, {"wte*", "h.0.*"}};
    step.config.norm_eps = 0.1 + 0.2;
    const auto back = parse_step_text(to_text(step));
    ASSERT_TRUE(back) << name;
    EXPECT_EQ(*back, step) << name;
  }
}

TEST(StepText, TheGraphHasOneChunkOfTheLoss) {
  StepText step;
  step.batch = 5;
  const StepGraph graph = graph_of_stages(step);
  EXPECT_EQ(graph.batch, 5);
  std::int64_t losses = 0;
  for (const Operation& op : graph.operations) losses += op.kind == OpKind::cross_entropy ? 1 : 0;
  EXPECT_EQ(losses, 1);
}

TEST(StepText, TheGraphHasTheWireTypesRoundingsAndLossScale) {
  for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
    StepText step;
    step.batch = 3;
    step.config.n_layer = 2;
    step.config.seq_len = 50;  // 150 tokens: 2^7 is the largest power of two up to that
    step.wire = wire;
    const StepGraph graph = graph_of_stages(*parse_step_text(to_text(step)));
    EXPECT_EQ(graph.loss_bits, wire == DType::f16 ? 7 : 0);
    std::int64_t rounded = 0;
    for (const Operation& op : graph.operations) {
      rounded += op.rounded ? 1 : 0;
      if (op.kind == OpKind::cross_entropy) { EXPECT_EQ(op.scalar, (wire == DType::f16 ? 128.0 : 1.0) / 150); }
    }
    EXPECT_EQ(rounded, wire == DType::f32 ? 0 : 2 * 5) << "what half layers make of embeddings, and its gradients";
  }
}

TEST(StepText, TheGraphHasTheTypeOfBoundaries) {
  for (const DType wire : {DType::f32, DType::f16}) {
    for (const std::optional<DType> boundary : {std::optional<DType>(), std::optional(DType::mxint8)}) {
      StepText step;
      step.config.n_layer = 2;
      step.wire = wire;
      step.boundary = boundary;
      const auto back = parse_step_text(to_text(step));
      ASSERT_TRUE(back);
      EXPECT_EQ(*back, step);
      const StepGraph graph = graph_of_stages(*back);
      EXPECT_EQ(graph.boundary, boundary.value_or(wire));
      const auto rounded = std::ranges::count_if(graph.operations, [](const Operation& op) { return op.rounded; });
      EXPECT_EQ(rounded, graph.boundary == DType::f32 ? 0 : 2 * 5);
    }
  }
}

TEST(StepText, WhatIsBrokenIsNotTaken) {
  StepText step;
  step.batch = 3;
  step.freeze = {"wte*"};
  const std::string text = to_text(step);
  ASSERT_TRUE(parse_step_text(text));
  EXPECT_FALSE(parse_step_text(""));
  for (std::size_t size = 1; size < text.size(); ++size) {
    const bool whole = text[size - 1] == '\n' && text.substr(size).find("boundary") == std::string::npos;
    EXPECT_EQ(parse_step_text(text.substr(0, size)).has_value(), whole) << size;
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  EXPECT_FALSE(parse_step_text(with("family gpt2", "family none")));
  EXPECT_FALSE(parse_step_text(with("n_head 4", "n_head 3")));
  EXPECT_FALSE(parse_step_text(with("n_head 4", "n_head 4x")));
  EXPECT_FALSE(parse_step_text(with("n_head 4", "n_head ")));
  EXPECT_FALSE(parse_step_text(with("n_head 4", "n_head 99999999999999999999")));
  EXPECT_FALSE(parse_step_text(with("batch 3", "batch 0")));
  EXPECT_FALSE(parse_step_text(with("wire fp32", "wire i32")));
  EXPECT_FALSE(parse_step_text(with("wire fp32", "wire mxint8")));
  EXPECT_FALSE(parse_step_text(with("boundary wire", "boundary fp16")));
  EXPECT_FALSE(parse_step_text(with("boundary wire\n", "")));
  EXPECT_FALSE(parse_step_text(with("tie_embeddings true", "tie_embeddings yes")));
  EXPECT_FALSE(parse_step_text(with("norm_eps", "norm_epsilon")));
  EXPECT_FALSE(parse_step_text(text + "more 1\n"));
}

}  // namespace
}  // namespace cleave::model
