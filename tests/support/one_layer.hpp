// The smallest model that has everything, for tests that only need some parameters to save and load.
#pragma once

#include <cstdint>

#include "cleave/model/family.hpp"
#include "cleave/server/parameter_store.hpp"

namespace cleave::testing_support {

inline model::ModelConfig one_layer() {
  return {.family = "gpt2",
          .vocab_size = 11,
          .n_layer = 1,
          .n_head = 1,
          .n_kv_head = 1,
          .d_model = 8,
          .d_ff = 16,
          .seq_len = 4,
          .max_pos = 4};
}

inline server::ParameterStore one_layer_parameters(std::uint64_t seed = 3) {
  return {model::build_step(one_layer(), {.kind = model::StepKind::evaluate, .clip = false, .freeze = {}}), seed};
}

}  // namespace cleave::testing_support
