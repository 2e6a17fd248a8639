// A small transformer, of any family, for tests of its layouts and of its steps.
#pragma once

#include <cstdint>
#include <string>

#include "cleave/model/config.hpp"

namespace cleave::model {

/// Eight heads, MLPs four times as wide as the model.
inline ModelConfig small_model(const std::string& family, std::int64_t layers, std::int64_t width,
                               std::int64_t vocabulary, std::int64_t tokens) {
  ModelConfig config;
  config.family = family;
  config.n_layer = layers;
  config.n_head = config.n_kv_head = 8;
  config.d_model = width;
  config.d_ff = 4 * width;
  config.vocab_size = vocabulary;
  config.seq_len = config.max_pos = tokens;
  return config;
}

}  // namespace cleave::model
