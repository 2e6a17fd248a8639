// Work of a small model, for layouts of it in stages.
#pragma once

#include <cstdint>
#include <string>

#include "cleave/model/family.hpp"
#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan {

struct SmallModel {
  std::string family = "opt";
  std::int64_t layers = 2, width = 128;
};

/// Sequences of 256 tokens, fp16; MLPs are four times as wide as the model, its vocabulary five times.
inline StageWork small_work(const SmallModel& of, std::int64_t batch) {
  model::ModelConfig config;
  config.family = of.family;
  config.n_layer = of.layers;
  config.n_head = config.n_kv_head = 8;
  config.d_model = of.width;
  config.d_ff = 4 * of.width;
  config.vocab_size = 5 * of.width;
  config.seq_len = config.max_pos = 256;
  model::StepOptions options;
  options.kind = model::StepKind::train;
  options.batch = batch;
  options.row_groups = 1;
  return stage_work_of(model::build_step(config, options), DType::f16);
}

}  // namespace cleave::plan
