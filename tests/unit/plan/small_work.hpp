// Work of a small model, for layouts of it in stages.
#pragma once

#include <cstdint>
#include <string>

#include "cleave/model/family.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "unit/small_model.hpp"

namespace cleave::plan {

struct SmallModel {
  std::string family = "opt";
  std::int64_t layers = 2, width = 128;
};

/// Sequences of 256 tokens, fp16; the vocabulary is five times the width.
inline StageWork small_work(const SmallModel& of, std::int64_t batch) {
  const model::ModelConfig config = model::small_model(of.family, of.layers, of.width, 5 * of.width, 256);
  model::StepOptions options;
  options.kind = model::StepKind::train;
  options.batch = batch;
  options.row_groups = 1;
  return stage_work_of(model::build_step(config, options), DType::f16);
}

}  // namespace cleave::plan
